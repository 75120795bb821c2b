"""Bands of model error from left-out groups, and whether they hold."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import stdtrit

from jaxsim.calibration.left_out import Coverage, LeftOutRow
from jaxsim.cluster import UNKNOWN, Band

Z90 = 1.644854
WIDENING = (0.0, 0.1, 0.25, 0.5, 1.0)  # shares per doubling that are tried
LEAST = 0.01  # no model of a machine is better than this
STACK = "stack"


def stack_bands(rows: Sequence[LeftOutRow]) -> dict[str, Band]:
    """Stack -> its band: the least that holds 90 % of its rows left out with their group, and the
    widening per doubling that all stacks together make most likely."""
    inside = [r for r in rows if r.kind != STACK]
    stacks = dict.fromkeys(r.machine.fitted for r in inside)
    mine = {s: [r for r in inside if r.machine.fitted == s] for s in stacks}
    likely = {k: sum(_log_likelihood(m, k) for m in mine.values()) for k in WIDENING}
    widening = max(likely, key=lambda k: likely[k])
    return {s: _band(m, widening) for s, m in mine.items()}


def unseen_band(rows: Sequence[LeftOutRow], without: str = "") -> Band:
    """The band of a stack that nobody measured, from those that were left out as a whole (but
    `without`): each stack is one observation of a spread, and Student's t for the next of so few."""
    alone = [r for r in rows if r.kind == STACK and r.name != without]
    each = [
        _band([r for r in alone if r.name == stack], 0.0)
        for stack in dict.fromkeys(r.name for r in alone)
    ]
    if len(each) < 2:
        return UNKNOWN
    step = _of_the_next([band.step for band in each])
    memory = [b.memory for b, rows in zip(each, _memories(alone), strict=True) if rows]
    return Band(step, _of_the_next(memory) if len(memory) > 1 else UNKNOWN.memory, 0.0)


def _memories(alone: Sequence[LeftOutRow]) -> list[bool]:
    """Of each stack, whether its memory was measured."""
    stacks = dict.fromkeys(r.name for r in alone)
    return [any(np.isfinite(r.memory) for r in alone if r.name == stack) for stack in stacks]


def _of_the_next(sigmas: Sequence[float]) -> float:
    """Spread of one more of a handful: their root mean square, by Student's 90 % instead of Gauss's."""
    n = len(sigmas)
    reach = stdtrit(n - 1, 0.95) / Z90 * (1.0 + 1.0 / n) ** 0.5
    return float(np.sqrt(np.mean(np.square(sigmas))) * reach)


GroupKey = tuple[str, str, str]  # kind, name and label of a group


def group_of(row: LeftOutRow) -> GroupKey:
    """The group that a row was left out with."""
    return row.kind, row.name, row.label


def bands_without(rows: Sequence[LeftOutRow]) -> dict[GroupKey, Band]:
    """Group -> the band that its stack would have without any of its runs, in whatever other groups
    they were left out; of a whole stack, that of an unseen one by the other stacks."""
    groups: dict[GroupKey, list[LeftOutRow]] = {}
    for row in rows:
        groups.setdefault(group_of(row), []).append(row)
    bands = stack_bands(rows)
    found = {}
    for key, held in groups.items():
        if held[0].kind == STACK:
            found[key] = unseen_band(rows, without=held[0].name)
            continue
        stack, runs = held[0].machine.fitted, {_run_of(r) for r in held}
        others = [
            r
            for r in rows
            if r.kind != STACK and r.machine.fitted == stack and _run_of(r) not in runs
        ]
        found[key] = _band(others, bands[stack].per_doubling) if others else bands[stack]
    return found


def coverage(rows: Sequence[LeftOutRow]) -> dict[str, Coverage]:
    """Kind of group -> how many rows a nominal 90 % band holds, each by `bands_without`."""
    bands, found = bands_without(rows), {}
    for row in rows:
        if np.isfinite(row.step):
            found.setdefault(row.kind, []).append(is_inside(row, bands[group_of(row)]))
    return {kind: Coverage(len(x), sum(x)) for kind, x in found.items()}


def _run_of(row: LeftOutRow) -> tuple[str, str]:
    return row.run.dataset, row.run.row_id


def is_inside(row: LeftOutRow, band: Band) -> bool:
    """Does the 90 % band around the predicted step time hold the measured one?"""
    distance = 0.0 if np.isnan(row.distance) else row.distance
    return abs(row.step) <= band.reach(distance, row.step_spread)


def _band(rows: Sequence[LeftOutRow], widening: float) -> Band:
    step = _sigma(rows, widening, [r.step for r in rows], [r.step_spread for r in rows])
    memory = _sigma(rows, widening, [r.memory for r in rows], [r.memory_spread for r in rows])
    return Band(step, memory if np.isfinite(memory) else UNKNOWN.memory, widening)


def _sigma(rows, widening: float, errors, spreads) -> float:
    """What the parameters' spread leaves to the model, so that 90 % lie inside; NaN without rows."""
    errors, spreads = np.array(errors), np.array(spreads)
    far = np.nan_to_num([r.distance for r in rows])
    known = np.isfinite(errors)
    if not known.any():
        return float("nan")
    left = np.sqrt(np.maximum((errors / Z90) ** 2 - spreads**2, 0.0)) / (1.0 + widening * far)
    # The next of n exchangeable rows lies below the ceil(0.9 (n + 1))-th smallest in nine of ten cases
    # (split conformal prediction, Lei et al. 2018); of fewer than nine that is the largest.
    ordered = np.sort(left[known])
    rank = min(int(np.ceil(0.9 * (len(ordered) + 1))), len(ordered))
    return max(float(ordered[rank - 1]), LEAST)


def _log_likelihood(rows: Sequence[LeftOutRow], widening: float) -> float:
    errors = np.array([r.step for r in rows])
    known = np.isfinite(errors)
    if not known.any():
        return 0.0
    far = np.nan_to_num([r.distance for r in rows])[known]
    scale = 1.0 + widening * far
    sigma = max(float(np.median(np.abs(errors[known]) / scale)) / 0.6745, LEAST)
    # Heavy tails: broken runs must not decide how a band widens (Laplace's density).
    return float(-np.sum(np.log(sigma * scale) + np.abs(errors[known]) / (sigma * scale)))
