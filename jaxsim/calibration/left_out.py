"""Groups of runs left out of the fit and predicted by it: what the error really is."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxsim.calibration.choosing import Choice
from jaxsim.calibration.documented import documented_belief
from jaxsim.calibration.fitting import Fitter, Posterior, log_predicted, log_slope
from jaxsim.calibration.hierarchy import Machine
from jaxsim.calibration.measured import MeasuredRun
from jaxsim.cluster import GPU_PRESETS, Domain
from jaxsim.workload import build_workload


class Group(NamedTuple):
    """Runs that share what the fit must do without."""

    kind: str  # model, scale, length, parallelism or stack
    name: str  # data set, or the stack that is left out
    label: str
    places: np.ndarray  # among the fitter's runs


class LeftOutRow(NamedTuple):
    """One run as predicted without its group; logarithms of predicted / measured."""

    kind: str
    name: str
    label: str
    machine: Machine
    run: MeasuredRun
    step: float  # NaN where not measured
    memory: float
    step_spread: float  # of the parameters, 1 sigma
    memory_spread: float
    distance: float  # doublings outside the domain of what was kept; NaN where nothing was
    baseline: float  # of the closed form with one constant utilisation per GPU type


KINDS: dict[str, Callable[[MeasuredRun], object]] = {
    "model": lambda r: r.model_key,
    "scale": lambda r: r.n_gpus,
    "length": lambda r: r.seq,
    "parallelism": lambda r: (r.tp, r.cp, r.pp),
}


def features(run: MeasuredRun) -> dict[str, float]:
    """What places a run in a domain, by the names of `jaxsim.cluster.FEATURES`."""
    return {
        "hidden": float(run.model.hidden),
        "seq": float(run.seq),
        "gpus": float(run.n_gpus),
        "tokens": float(run.micro_batch * run.seq / run.cp),
        "tp": float(run.tp),
        "pp": float(run.pp),
        "cp": float(run.cp),
    }


def domain_of(runs: Sequence[MeasuredRun]) -> Domain:
    """The box of the runs' features."""
    each = [features(run) for run in runs]
    return Domain({k: (min(f[k] for f in each), max(f[k] for f in each)) for k in each[0]})


def left_out_groups(fitter: Fitter) -> list[Group]:
    """Every group to leave out: by model, scale, length and parallelism within what one data set says
    of one stack (torchtitan's tables count as one), and every stack as a whole."""
    runs, machines = fitter.runs.runs, fitter.hierarchy.machines
    stack = [machines[m].fitted for m in fitter.runs.machine]
    names = [s if s == "torchtitan" else r.dataset for s, r in zip(stack, runs, strict=True)]
    groups = []
    for name in dict.fromkeys(names):
        mine = [i for i, n in enumerate(names) if n == name]
        for kind, key in KINDS.items():
            groups += [
                Group(kind, name, str(value), np.array(places))
                for value, places in _by(mine, lambda i, key=key: key(runs[i])).items()
                if len(places) < len(mine)
            ]
    for one, places in _by(range(len(runs)), lambda i: stack[i]).items():
        if len(places) < len(runs):
            groups.append(Group("stack", one, one, np.array(places)))
    return groups


def _by(places, key) -> dict:
    found: dict = {}
    for i in places:
        found.setdefault(key(i), []).append(i)
    return found


def leave_out(choice: Choice, groups: Sequence[Group]) -> Iterator[list[LeftOutRow]]:
    """Choose parameters and fit without each group, and predict it; one list of rows a group."""
    runs, machines = choice.full.runs, choice.full.hierarchy.machines
    work = [r.step_s for r in runs.runs]
    ideal = np.log(_ideal_s(runs.runs))
    lag = np.log(np.array([x or np.nan for x in work])) - ideal
    alike = np.array([f"{r.dataset} {r.gpu.split('-')[0]}" for r in runs.runs])
    gpus = np.array([r.gpu for r in runs.runs])
    for group in groups:
        keep = np.ones(len(runs.runs))
        keep[group.places] = 0.0
        errors, spreads = predict_places(*choice.fit(keep), group.places, group.kind == "stack")
        rows = []
        for row, place in enumerate(group.places):
            machine = machines[runs.machine[place]]
            kept = (keep > 0) & np.isfinite(lag)
            choices = (kept & (x == x[place]) for x in (alike, gpus))
            same = next((x for x in choices if x.any()), kept)
            rows.append(
                LeftOutRow(
                    *group[:3],
                    machine,
                    runs.runs[place],
                    float(errors[row, 0]),
                    float(errors[row, 1]),
                    float(spreads[row, 0]),
                    float(spreads[row, 1]),
                    _distance(choice.full, keep, machine, runs.runs[place]),
                    float(np.median(lag[same]) - lag[place]),
                )
            )
        yield rows


def predict_places(
    fitter: Fitter, posterior: Posterior, places: np.ndarray, unmeasured: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """[P, 2] log errors of step time and memory (NaN where not measured), and what the parameters'
    uncertainty adds to them (1 sigma), of the runs at `places`.

    Of an `unmeasured` stack, what no shared deviation stands for is as uncertain as documented.
    """
    runs = fitter.runs
    machine = runs.machine[places]
    # All runs at once: another number of rows would be compiled again.
    free = jnp.asarray(posterior.free()[runs.machine], jnp.float32)
    predicted = np.asarray(log_predicted(free, runs.arrays), np.float64)[places]
    slope = np.asarray(log_slope(free, runs.arrays), np.float64)[places]
    known = runs.weight[places] > 0.0
    errors = np.where(known, predicted - runs.log_measured[places], np.nan)
    across = np.einsum("pkd,pde->pke", slope, fitter.design[machine])
    variance = np.einsum("pke,ef,pkf->pk", across, posterior.covariance, across)
    if unmeasured:
        known = [documented_belief(m).spread for m in fitter.hierarchy.machines]
        pairs = zip(fitter.hierarchy.machines, known, strict=True)
        rest = np.array([fitter.hierarchy.unshared(m, spread) for m, spread in pairs])
        variance += np.einsum("pkd,pd->pk", slope**2, rest[machine])
    return errors, np.sqrt(variance)


def _distance(fitter: Fitter, keep: np.ndarray, machine: Machine, run: MeasuredRun) -> float:
    """Doublings outside the kept runs of the same stack on the same architecture (or any)."""
    alike = [fitter.hierarchy.machines[m] for m in fitter.runs.machine]
    kept = [
        r
        for r, m, k in zip(fitter.runs.runs, alike, keep, strict=True)
        if k and m.fitted == machine.fitted and m.family == machine.family
    ]
    kept = kept or [
        r
        for r, m, k in zip(fitter.runs.runs, alike, keep, strict=True)
        if k and m.fitted == machine.fitted
    ]
    return domain_of(kept).distance(features(run)) if kept else np.nan


def _ideal_s(runs: Sequence[MeasuredRun]) -> np.ndarray:
    """[N] [s] model FLOPs at the GPUs' peak."""
    flops = np.asarray(build_workload([r.job for r in runs]).useful_tflop, np.float64)
    peak = np.array([GPU_PRESETS[r.gpu].peak_tflops * r.n_gpus for r in runs])
    return flops / peak


@dataclasses.dataclass(frozen=True)
class Coverage:
    """Of the rows of all left-out groups, how many a nominal 90 % band holds."""

    rows: int
    inside: int

    @property
    def share(self) -> float:
        return self.inside / self.rows if self.rows else float("nan")
