"""Which unit keeps, recomputes or offloads what backward needs: least time within a budget.

Memory is additive over units: while unit i runs forward or backward, what is alive is what the units
before it saved, and what it needs itself. Both are read off one predicted trace per option, in which
every unit takes that option. The choice is then a knapsack whose bound holds
at every unit, solved exactly by labels (saved bytes, seconds) of which none is beaten in both.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddp_bench.memory.predict import Prediction, predict
from ddp_bench.memory.step import KEEP, Builder, Policy

GRID = 4096  # steps of the budget that saved bytes are rounded up to once labels get many
MOST_LABELS = 20_000
# Scalars that optimizers make where MemTracker does not see them [B]; 12 in a step of AdamW.
UNSEEN = 1024


class NoRoom(RuntimeError):
    """No policy fits into the budget; says what the least needs."""


@dataclass(frozen=True)
class Option:
    """A unit's choice.

    Attributes:
        name: keep, recompute[:CHILD] or offload.
        saved: what stays alive until the unit's backward [B].
        forward: most alive from its beginning to the next unit's, less what earlier units saved
            [B]; of the last unit, to its backward.
        backward: the same from the beginning of its backward to that of the unit before it.
        seconds: what it costs over keeping everything [s].
    """

    name: str
    saved: int
    forward: int
    backward: int
    seconds: float


@dataclass(frozen=True)
class Costs:
    """What is chosen from.

    Attributes:
        units: options of every unit, in the order of forward.
        floor: most alive where no unit's choice matters, such as in the optimizer's step [B].
    """

    units: dict[str, tuple[Option, ...]]
    floor: int


@dataclass(frozen=True)
class Choice:
    """A policy, the peak that the additive model gives it [B] and what it costs [s]."""

    policy: dict[str, str]
    peak: int
    seconds: float


def costs_of(
    predictions: Mapping[str, Prediction], seconds: Mapping[str, Mapping[str, float]]
) -> Costs:
    """What is chosen from, read off predictions in which every unit takes the same option.

    Args:
        predictions: option -> what was predicted.
        seconds: unit -> option -> what it costs over keeping everything [s].
    """
    parts = {option: _parts(prediction) for option, prediction in predictions.items()}
    units = {
        unit: tuple(Option(name, *parts[name][0][unit], seconds[unit][name]) for name in options)
        for unit, options in ((unit, list(costs)) for unit, costs in seconds.items())
    }
    return Costs(units, max(floor for _, floor in parts.values()))


def _parts(prediction: Prediction) -> tuple[dict[str, tuple[int, int, int]], int]:
    """Memory of the last step of a run, taken apart at its marks: unit -> (saved, forward,
    backward), and what is alive outside of the units [B]."""
    trace, units = prediction.trace, list(prediction.units)
    live = trace.live()
    where = {name: max(at - 1, 0) for at, name in trace.marks}  # of a name, its last mark counts

    def most(first: str, last: str) -> int:
        return max(live[where[first] : where[last] + 1])

    saved_before, out = 0, {}
    for i, unit in enumerate(units):
        begin, is_last = f"forward:{unit}", i + 1 == len(units)
        end = f"after:{unit}" if is_last else f"forward:{units[i + 1]}"
        saved = live[where[end]] - live[where[begin]]
        forward = most(begin, f"backward:{unit}" if is_last else end)
        backward = most(f"backward:{unit}", f"backward:{units[i - 1]}" if i else "optimizer")
        out[unit] = (saved, forward - saved_before, backward - saved_before)
        saved_before += saved
    outside = max(most("forward", f"forward:{units[0]}"), *live[where["optimizer"] :])
    return out, outside


def peak_of(costs: Costs, policy: Policy) -> int:
    """Peak of a policy by the additive model [B]."""
    saved, peak = 0, costs.floor
    for unit, options in costs.units.items():
        option = next(o for o in options if o.name == policy.get(unit, KEEP))
        peak = max(peak, saved + option.forward, saved + option.backward)
        saved += option.saved
    return peak


def choose(costs: Costs, budget: int) -> Choice:
    """The policy of least time whose peak by the additive model is at most `budget` [B].

    Raises:
        NoRoom: where there is none.
    """
    grain = 1
    labels: list[tuple[int, float, tuple[str, ...]]] = [(0, 0.0, ())]
    for options in costs.units.values():
        reached = [
            (saved + -(-o.saved // grain) * grain, seconds + o.seconds, (*names, o.name))
            for saved, seconds, names in labels
            for o in options
            if saved + max(o.forward, o.backward) <= budget
        ]
        labels = _unbeaten(reached)
        if len(labels) > MOST_LABELS:
            grain = max(budget // GRID, 1)  # from here on; rounding up never breaks the budget
            labels = _unbeaten([(-(-s // grain) * grain, t, names) for s, t, names in labels])
    if not labels or costs.floor > budget:
        raise NoRoom(f"no policy fits into {budget:,} B; the least needs {least_peak(costs):,} B")
    _, seconds, names = min(labels, key=lambda label: (label[1], label[0]))
    policy = dict(zip(costs.units, names, strict=True))
    return Choice(policy, peak_of(costs, policy), seconds)


def _unbeaten(labels: Sequence[tuple]) -> list[tuple]:
    """Labels that no other one beats in both saved bytes and seconds."""
    kept: list[tuple] = []
    for label in sorted(labels, key=lambda label: (label[0], label[1])):
        if not kept or label[1] < kept[-1][1]:
            kept.append(label)
    return kept


def least_peak(costs: Costs) -> int:
    """The least that any policy needs by the additive model [B], by bisection over budgets."""
    needs = [max(o.forward, o.backward) for options in costs.units.values() for o in options]
    saved = sum(max(0, *(o.saved for o in options)) for options in costs.units.values())
    low, high = -1, max(costs.floor, *needs) + saved
    while high - low > 1:
        middle = (low + high) // 2
        if _fits(costs, middle):
            high = middle
        else:
            low = middle
    return high


def _fits(costs: Costs, budget: int) -> bool:
    """Whether some policy needs at most `budget`: the least saved bytes that can be, unit by unit."""
    if costs.floor > budget:
        return False
    saved = 0
    for options in costs.units.values():
        fitting = [o.saved for o in options if saved + max(o.forward, o.backward) <= budget]
        if not fitting:
            return False
        saved += min(fitting)
    return True


def fitted(build: Builder, costs: Costs, budget: int) -> tuple[Choice, Prediction]:
    """`choose`, and a prediction of exactly that policy, whose peak leaves UNSEEN of `budget` [B].

    Where units share memory the additive model can be too low; then the budget that it is asked for
    shrinks by what was missing.

    Raises:
        NoRoom: where nothing fits.
    """
    aim = budget = budget - UNSEEN
    while True:
        choice = choose(costs, aim)
        found = predict(build, choice.policy)
        if found.peak <= budget:
            return choice, found
        aim -= max(found.peak - budget, 1)


def exhaustive(costs: Costs, budget: int) -> Choice | None:
    """What `choose` must find, by trying every policy; None where none fits."""
    best = None
    for options in itertools.product(*costs.units.values()):
        policy = {unit: o.name for unit, o in zip(costs.units, options, strict=True)}
        seconds, peak = sum(o.seconds for o in options), peak_of(costs, policy)
        if peak <= budget and (best is None or seconds < best.seconds):
            best = Choice(policy, peak, seconds)
    return best
