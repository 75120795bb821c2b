"""Fitting all machines at once: maximum a posteriori under a robust loss, with Laplace's intervals."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from jaxsim.calibration.documented import documented
from jaxsim.calibration.hierarchy import Hierarchy, Machine
from jaxsim.calibration.measured import GIB, MeasuredRun, run_arrays
from jaxsim.calibration.profiles import Profile
from jaxsim.calibration.shaped_links import SyncRun, predict_sync_s
from jaxsim.cluster import PRIORS, Belief, Calibration, from_free
from jaxsim.plan import Problem
from jaxsim.step_time import job_step_cost

# Relative error at which a measurement is believed; one per kind, none per data set or row. Beyond
# it the loss grows linearly (soft L1), so that a broken run cannot pull the fit.
STEP_NOISE, MEMORY_NOISE, SYNC_NOISE = 0.006, 0.03, 0.03
PROFILE_NOISE = {"operators": 0.10, "collectives": 0.10, "layers": 0.05}
# A data set speaks as this many rows at most and at least (three times its rows, if they are few):
# rows of one campaign share their errors.
ROWS_AT_MOST, ROWS_AT_LEAST = 54, 25
STEPS, CLOSE = 40, 1e-5  # of the descent


@dataclasses.dataclass(frozen=True)
class Evidence:
    """Profiles and syncs of one machine: residuals in units of their noise."""

    name: str
    machine: int
    n: int
    residuals: Callable[[Array], Array]  # [D] -> [n]
    slope: Callable[[Array], Array]  # [D] -> [n, D]


@dataclasses.dataclass(frozen=True)
class Runs:
    """Step times and peak memory of all runs, their machines and weights."""

    runs: tuple[MeasuredRun, ...]
    arrays: tuple
    machine: np.ndarray  # [N] place among the machines
    log_measured: np.ndarray  # [N, 2] step time [s], memory [GB]; 0 where not measured
    weight: np.ndarray  # [N, 2] 1 / noise; 0 where not measured


@jax.jit
def log_predicted(free: Array, arrays: tuple) -> Array:
    """[N, 2] logarithms of step time [s] and memory [GB] of runs, each under its own parameters
    [N, D] on their unbounded scales."""
    return jax.vmap(_log_cost)(free, arrays)


@jax.jit
def log_slope(free: Array, arrays: tuple) -> Array:
    """[N, 2, D] derivatives of `log_predicted`."""
    return jax.vmap(jax.jacfwd(_log_cost))(free, arrays)


def _log_cost(free: Array, arrays: tuple) -> Array:
    plan, work, cluster, view = arrays
    cost = job_step_cost(plan, Problem(work, cluster, from_free(free)), view)
    return jnp.log(jnp.stack([cost.total_s, cost.memory_gb[0]]))


def weigh(runs: Sequence[MeasuredRun], machines: Sequence[Machine]) -> Runs:
    """Runs as the fit takes them; each data set speaks as ROWS_AT_LEAST to ROWS_AT_MOST rows."""
    measured = np.array(
        [[r.step_s or np.nan, (r.peak_memory_gib or np.nan) * GIB / 1e9] for r in runs], np.float64
    ).reshape(-1, 2)
    known = np.isfinite(measured)
    weight = np.zeros(measured.shape)
    names = np.array([r.dataset for r in runs])
    for name in dict.fromkeys(names.tolist()):
        for kind, noise in enumerate((STEP_NOISE, MEMORY_NOISE)):
            mine = (names == name) & known[:, kind]
            if n := int(mine.sum()):
                rows = min(max(n, min(ROWS_AT_LEAST, 3 * n)), ROWS_AT_MOST)
                weight[mine, kind] = (rows / n) ** 0.5 / noise
    place = [machines.index(Machine(r.gpu, r.stack)) for r in runs]
    log_measured = np.log(np.where(known, measured, 1.0))
    return Runs(tuple(runs), run_arrays(runs), np.array(place), log_measured, weight)


def profile_evidence(profiles: Sequence[Profile], machines: Sequence[Machine]) -> list[Evidence]:
    """Profiles as evidence, each speaking as at most ROWS_AT_MOST rows: operators and collectives of
    hardware, whole layers of the stack of the runs that they were taken for."""
    found = []
    for profile in profiles:
        place = _profiled(profile, machines)
        if place is None:
            continue
        target, n = jnp.asarray(profile.measured_s), len(profile.measured_s)
        weight = (min(n, ROWS_AT_MOST) / n) ** 0.5 / PROFILE_NOISE[profile.kind]

        def residuals(free, profile=profile, target=target, weight=weight):
            off = jnp.log(profile.predict(from_free(free)) / target)
            return weight * (off - off.mean() if profile.shape_only else off)

        found.append(_evidence(profile.name, place, n, residuals))
    return found


def _profiled(profile: Profile, machines: Sequence[Machine]) -> int | None:
    """The machine that a profile speaks of; hardware is the same under every stack."""
    layers = profile.kind == "layers"
    for same in (lambda m: m.gpu == profile.gpu, lambda m: m.family == profile.gpu.split("-")[0]):
        for place, machine in enumerate(machines):
            if same(machine) and (not layers or machine.stack == "deepspeed-eager"):
                return place
    return None


def sync_evidence(runs: Sequence[SyncRun]) -> list[Evidence]:
    """Syncs over shaped links as evidence on the links' parameters, which all machines share."""
    if not runs:
        return []
    target = jnp.asarray([r.sync_s for r in runs], jnp.float32)

    def residuals(free: Array) -> Array:
        return jnp.log(predict_sync_s(runs, from_free(free)) / target) / SYNC_NOISE

    return [_evidence("shaped links", 0, len(runs), residuals)]


def _evidence(name: str, machine: int, n: int, residuals) -> Evidence:
    return Evidence(name, machine, n, jax.jit(residuals), jax.jit(jax.jacfwd(residuals)))


@dataclasses.dataclass(frozen=True)
class Posterior:
    """All machines after the fit: the effects' deviations, in units of their spread."""

    hierarchy: Hierarchy
    z: np.ndarray  # [E]
    covariance: np.ndarray  # [E, E]

    def belief(self, machine: Machine) -> Belief:
        """Parameters of one of the fitted machines."""
        place = self.hierarchy.machines.index(machine)
        design = self.hierarchy.design[place]
        centre = self.hierarchy.centre[place] + design @ self.z
        return Belief(centre, design @ self.covariance @ design.T)

    def calibration(self, machine: Machine) -> Calibration:
        return self.belief(machine).calibration()

    def free(self) -> Float[np.ndarray, "M D"]:
        """[M, D] parameters of all machines on their unbounded scales."""
        return self.hierarchy.centre + self.hierarchy.design @ self.z


class Fitter:
    """Residuals of all evidence under a hierarchy, and their descent."""

    def __init__(self, runs: Runs, evidence: Sequence[Evidence], hierarchy: Hierarchy):
        self.runs, self.evidence, self.hierarchy = runs, list(evidence), hierarchy
        self.design = hierarchy.design

    def residuals(
        self, z: Float[np.ndarray, " E"], keep: Float[np.ndarray, " N"]
    ) -> Float[np.ndarray, " R"]:
        """[R] residuals of runs (`keep` [N] scales them), profiles and syncs, in their noise."""
        free = self.hierarchy.centre + self.design @ z
        mine = jnp.asarray(free[self.runs.machine], jnp.float32)
        got = np.asarray(log_predicted(mine, self.runs.arrays), np.float64)
        off = (got - self.runs.log_measured) * self.runs.weight * keep[:, None]
        rest = [e.residuals(jnp.asarray(free[e.machine], jnp.float32)) for e in self.evidence]
        return np.concatenate([off.ravel(), *(np.asarray(r, np.float64) for r in rest)])

    def slopes(
        self, z: Float[np.ndarray, " E"], keep: Float[np.ndarray, " N"]
    ) -> Float[np.ndarray, "R E"]:
        """[R, E] derivatives of `residuals`."""
        free = self.hierarchy.centre + self.design @ z
        mine = jnp.asarray(free[self.runs.machine], jnp.float32)
        each = np.asarray(log_slope(mine, self.runs.arrays), np.float64)
        each = each * (self.runs.weight * keep[:, None])[..., None]
        out = np.zeros((*each.shape[:2], len(z)))
        for place, design in enumerate(self.design):
            rows = self.runs.machine == place
            out[rows] = each[rows] @ design
        parts = [out.reshape(-1, len(z))]
        for e in self.evidence:
            slope = e.slope(jnp.asarray(free[e.machine], jnp.float32))
            parts.append(np.asarray(slope, np.float64) @ self.design[e.machine])
        return np.concatenate(parts)

    def fit(
        self,
        keep: Float[np.ndarray, " N"] | None = None,
        start: Float[np.ndarray, " E"] | None = None,
    ) -> Posterior:
        """Descend from `start` (None: the documented centres): Gauss-Newton on reweighted squares,
        damped where a step would climb (Marquardt 1963). `keep` [N]: 0 leaves a run out."""
        keep = np.ones(len(self.runs.runs)) if keep is None else keep
        z = np.zeros(len(self.hierarchy.effects)) if start is None else start
        damping, cost = 1e-2, self._cost(z, keep)
        for _ in range(STEPS):
            normal, pull = self._normal(z, keep)
            before = cost
            for _ in range(8):
                step = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), -pull)
                tried = self._cost(z + step, keep)
                if tried < cost:
                    z, cost, damping = z + step, tried, damping / 5.0
                    break
                damping *= 5.0
            if before - cost < CLOSE * before:
                break
        normal, _ = self._normal(z, keep)
        return Posterior(self.hierarchy, z, np.linalg.inv(normal))

    def _cost(self, z: np.ndarray, keep: np.ndarray) -> float:
        loss = 2.0 * (np.sqrt(1.0 + self.residuals(z, keep) ** 2) - 1.0)
        total = 0.5 * (loss.sum() + z @ z)
        return float(total) if np.isfinite(total) else np.inf

    def _normal(self, z: np.ndarray, keep: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Hessian and gradient; soft L1 weighs a residual r by 1 / sqrt(1 + r^2)."""
        off, slope = self.residuals(z, keep), self.slopes(z, keep)
        weight = 1.0 / np.sqrt(1.0 + off**2)
        normal = slope.T @ (slope * weight[:, None]) + np.eye(len(z))
        return normal, slope.T @ (weight * off) + z


def build_hierarchy(machines: Sequence[Machine], effects) -> Hierarchy:
    """A hierarchy around the documented centres."""
    centre = [
        [prior.to_free(documented(m)[name][0]) for name, prior in PRIORS.items()] for m in machines
    ]
    return Hierarchy(tuple(machines), tuple(effects), np.array(centre))


def machines_of(runs: Sequence[MeasuredRun], profiles: Sequence[Profile]) -> list[Machine]:
    """The machines that runs are of, and that profiles alone are of under no stack."""
    found = dict.fromkeys(Machine(r.gpu, r.stack) for r in runs)
    return list(found)
