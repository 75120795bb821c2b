"""What a calibration file holds of a fit: machines that were measured, and what follows for others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from jaxsim.calibration.documented import PARTS, documented_belief
from jaxsim.calibration.fitting import Fitter, Posterior
from jaxsim.calibration.hierarchy import Machine
from jaxsim.calibration.left_out import domain_of
from jaxsim.calibration.measured import MeasuredRun
from jaxsim.cluster import ANY, POOLED, PRIORS, STACKS, UNKNOWN, Band, Belief

# GPU types of which every stack has an entry; a part with documented values of its own is one.
WITH_EVERY_STACK = ("A100-80GB", "H100-80GB", *PARTS)
PINNED = 1e-6  # spread of what a fit holds at its documented value


def fit_name(machine: Machine) -> str:
    """The key of a machine in a calibration file."""
    return machine.gpu if machine.stack == POOLED else f"{machine.gpu}/{machine.stack}"


def file_entries(
    fitter: Fitter, posterior: Posterior, bands: Mapping[str, Band], unseen: Band
) -> dict[str, dict]:
    """Entries of all machines that were fitted, of each of their GPU types under no stack, and of
    every stack on the GPU types that have them all and wherever else it runs."""
    hierarchy, told = fitter.hierarchy, told_by(fitter, posterior)
    entries = {}
    for place, machine in enumerate(hierarchy.machines):
        runs = [r for r, m in zip(fitter.runs.runs, fitter.runs.machine, strict=True) if m == place]
        entry = belief_entry(posterior.belief(machine), machine, told[place])
        entry["band"] = band_entry(bands.get(machine.fitted, unseen))
        entry["domain"] = _ends(runs)
        counts: dict[str, int] = {}
        for run in runs:
            counts[run.dataset] = counts.get(run.dataset, 0) + 1
        entries[fit_name(machine)] = {"fitted_on": counts, **entry}
    others = [Machine(gpu, POOLED) for gpu in dict.fromkeys(m.gpu for m in hierarchy.machines)]
    others += [Machine(gpu, stack) for gpu in (*WITH_EVERY_STACK, ANY) for stack in STACKS]
    for machine in others:
        if fit_name(machine) not in entries:
            belief = predicted_belief(posterior, machine)
            entry = belief_entry(belief, machine, {}, everything=True)
            entries[fit_name(machine)] = {**entry, "band": band_entry(unseen)}
    return entries


def predicted_belief(posterior: Posterior, machine: Machine) -> Belief:
    """A machine that was not measured: the deviations that it shares with those that were, and the
    documented spread for everything else."""
    known = documented_belief(machine)
    hierarchy = posterior.hierarchy
    design = hierarchy.design_of(machine)
    covariance = design @ posterior.covariance @ design.T
    covariance = covariance + np.diag(hierarchy.unshared(machine, known.spread))
    return Belief(known.centre + design @ posterior.z, covariance)


def told_by(fitter: Fitter, posterior: Posterior) -> list[dict[str, dict[str, float]]]:
    """For each machine: parameter -> data set -> share of the Fisher information on it."""
    slopes = fitter.slopes(posterior.z, np.ones(len(fitter.runs.runs)))
    names = [r.dataset for r in fitter.runs.runs for _ in range(2)]
    names += [e.name for e in fitter.evidence for _ in range(e.n)]
    rows = np.array(names)
    information = {n: (slopes[rows == n] ** 2).sum(axis=0) for n in dict.fromkeys(names)}
    found = []
    for design in fitter.design:
        of_machine: dict[str, dict[str, float]] = {}
        reach = design**2  # [D, E]
        total = np.maximum(reach @ sum(information.values()), 1e-12)
        for i, parameter in enumerate(PRIORS):
            shares = {n: float(reach[i] @ x / total[i]) for n, x in information.items()}
            of_machine[parameter] = {n: round(s, 2) for n, s in shares.items() if s >= 0.05}
        found.append(of_machine)
    return found


def belief_entry(
    belief: Belief, machine: Machine, told: Mapping[str, Mapping], everything: bool = False
) -> dict:
    """Parameters that differ from the common priors or that data tell, and their correlation.

    `everything`: nothing was measured of the machine; spreads that are not listed are the priors'.
    """
    known = documented_belief(machine)
    spread = belief.spread
    listed = []
    for i, (name, prior) in enumerate(PRIORS.items()):
        moved = abs(belief.centre[i] - prior.to_free(prior.value)) > 1e-6
        widened = everything and abs(spread[i] / prior.spread - 1.0) > 0.01
        if moved or (spread[i] > PINNED and not everything) or widened:
            listed.append((i, name, prior))
    parameters = {}
    for i, name, prior in listed:
        low, high = belief.interval(name)
        parameters[name] = {
            "value": _short(float(prior.from_free(belief.centre[i]))),
            "ci95": [_short(float(low)), _short(float(high))],
            "spread": _short(max(float(spread[i]), PINNED)),
            "identified": _identified(float(spread[i]), float(known.spread[i])),
        }
        if told.get(name) and spread[i] > PINNED:
            parameters[name]["told_by"] = dict(told[name])
    entry: dict = {"parameters": parameters}
    if not everything:
        places = [i for i, _, _ in listed]
        scale = np.maximum(spread[places], PINNED)
        correlation = belief.covariance[np.ix_(places, places)] / np.outer(scale, scale)
        np.fill_diagonal(correlation, 1.0)
        entry["correlation"] = [[round(float(x), 3) for x in row] for row in correlation]
    return entry


def _identified(spread: float, documented: float) -> float:
    """How far the data fix a parameter, 0 to 1; one that a fit holds where it was they do not."""
    if spread <= PINNED:
        return 0.0
    return round(float(np.clip(1.0 - spread / documented, 0.0, 1.0)), 2)


def band_entry(band: Band) -> dict[str, float]:
    """A band as a file holds it."""
    return {
        "step": _short(band.step),
        "memory": _short(band.memory),
        "per_doubling": _short(band.per_doubling),
    }


def own_parameters(fitter: Fitter) -> list[dict]:
    """How many parameters each stack has of its own, which, and how many rows it has."""
    machines = fitter.hierarchy.machines
    rows = []
    for stack in dict.fromkeys(m.fitted for m in machines):
        places = [i for i, m in enumerate(machines) if m.fitted == stack]
        own = fitter.hierarchy.of_stack(stack)
        rows.append(
            {
                "stack": stack,
                "rows": int(np.isin(fitter.runs.machine, places).sum()),
                "parameters": len(own),
                "names": ", ".join(_effect_name(e) for e in own),
            }
        )
    return rows


def _effect_name(effect) -> str:
    _, on, family = effect.scope.partition(" on ")
    return f"{effect.parameter} ({family})" if on else effect.parameter


def _ends(runs: Sequence[MeasuredRun]) -> dict[str, list[float]]:
    """The calibrated domain of runs as a file holds it, to the last digit."""
    return {name: [float(end) for end in ends] for name, ends in domain_of(runs).ranges.items()}


def _short(x: float) -> float:
    return float(f"{x:.4g}")


def shown_groups(groups: Sequence[Mapping]) -> list[dict]:
    """Rows of the left-out table, rounded as a file holds them."""
    return [
        {k: round(v, 2) if isinstance(v, float) else v for k, v in row.items()} for row in groups
    ]


def adapted_entries(fitter: Fitter, posterior: Posterior) -> dict[str, dict]:
    """Entries of the machines of one adapted stack; their band is what is left of the rows, and no
    less than a model of a machine ever reached."""
    entries = {}
    off = fitter.residuals(posterior.z, np.ones(len(fitter.runs.runs))).reshape(-1, 2)
    off = np.where(fitter.runs.weight > 0, off / np.maximum(fitter.runs.weight, 1e-9), np.nan)
    for place, machine in enumerate(fitter.hierarchy.machines):
        mine = fitter.runs.machine == place
        runs = [r for r, m in zip(fitter.runs.runs, mine, strict=True) if m]
        entry = belief_entry(posterior.belief(machine), machine, {})
        step, memory = (_left(off[mine, kind]) for kind in (0, 1))
        entry["band"] = band_entry(Band(step, memory, UNKNOWN.per_doubling))
        entry["domain"] = _ends(runs)
        entries[fit_name(machine)] = {"fitted_on": {"adapted": len(runs)}, **entry}
    return entries


def _left(off: np.ndarray) -> float:
    """Standard deviation of what a fit left of few rows, twice as wide as it looks; a floor of 4 %."""
    off = off[np.isfinite(off)]
    if not len(off):
        return UNKNOWN.memory
    return max(2.0 * float(np.sqrt(np.mean(off**2))), 0.04)
