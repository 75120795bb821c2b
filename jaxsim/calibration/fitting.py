"""Fitting a calibration: maximum a posteriori under a robust loss, with intervals."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy.optimize import least_squares

from jaxsim.calibration.measured import GIB, MeasuredRun, predict_runs, run_arrays
from jaxsim.calibration.profiles import Profile
from jaxsim.calibration.shaped_links import SyncRun, predict_sync_s
from jaxsim.cluster import PRIORS, Belief, Calibration, independent

# Relative error at which a measurement is believed; one per kind, none per data set or row. Beyond
# it the loss grows linearly (soft L1), so that a broken run cannot pull the fit.
STEP_NOISE, MEMORY_NOISE, SYNC_NOISE = 0.006, 0.03, 0.03
PROFILE_NOISE = {"operators": 0.10, "collectives": 0.10, "layers": 0.05}
# A data set speaks as this many rows at most and at least (three times its rows, if they are few):
# rows of one campaign share their errors.
ROWS_AT_MOST, ROWS_AT_LEAST = 54, 25
# Cards of one type differ between sites: what a profile fixes, it fixes to this and no further.
PROFILE_FLOOR = 0.08
RESTARTS = 3


@dataclasses.dataclass(frozen=True)
class Evidence:
    """One data set: its residuals in units of its noise."""

    name: str
    n: int
    residuals: Callable[[Calibration], Array]  # -> [n]


@dataclasses.dataclass(frozen=True)
class Fit:
    """A fitted calibration beside what was believed before."""

    belief: Belief
    prior: Belief
    told_by: dict[str, dict[str, float]]  # parameter -> data set -> share of its information

    @property
    def calibration(self) -> Calibration:
        return self.belief.calibration()

    def identified(self, name: str) -> float:
        """1 - (posterior spread / prior spread): 0 = the data say nothing, 1 = they fix it."""
        i = list(PRIORS).index(name)
        return float(1.0 - min(self.belief.spread[i] / self.prior.spread[i], 1.0))

    def _moved(self, name: str) -> bool:
        """Does the belief differ from the common prior: by the data, or by the architecture?"""
        i, common = list(PRIORS).index(name), PRIORS[name]
        at_prior = abs(self.prior.centre[i] - common.to_free(common.value)) < 1e-9
        return self.identified(name) > 0.005 or not at_prior

    def to_mapping(self, fitted_on: Mapping[str, int]) -> dict:
        """What a calibration file holds of one GPU type; four digits are all that the data give."""
        moved = [name for name in PRIORS if self._moved(name)]
        places = [list(PRIORS).index(name) for name in moved]
        scale = np.outer(self.belief.spread, self.belief.spread)
        correlation = (self.belief.covariance / scale)[np.ix_(places, places)]
        parameters = {}
        for name, i in zip(moved, places, strict=True):
            low, high = self.belief.interval(name)
            shares = {e: round(float(x), 2) for e, x in self.told_by[name].items() if x >= 0.05}
            parameters[name] = {
                "value": _short(PRIORS[name].from_free(self.belief.centre[i])),
                "ci95": [_short(low), _short(high)],
                "spread": _short(self.belief.spread[i]),
                "identified": round(self.identified(name), 2),
                "told_by": shares,
            }
        rows = [[round(float(x), 3) for x in row] for row in correlation]
        return {"fitted_on": dict(fitted_on), "parameters": parameters, "correlation": rows}


def _short(x: float) -> float:
    return float(f"{x:.4g}")


# What is known of an architecture beside the common priors, (value, spread). A100: large products
# reach about 280 of 312 TFLOP/s, NVSwitch all-reduces 230 of 300 GB/s (public nccl-tests), and the
# Megatron-LM of 2021 sent gradients after the backward pass; DeepSpeed's ZeRO-3 of that time moved
# 1,050 GB a step in 67 s on 768 and on 1,536 GPUs alike (SC 2021, Table 2). H100: large products
# H100 reach 650-750 of 989 TFLOP/s (Vidur's profile), FlashAttention-2 about 35 % there (Shah et al.
# 2024, FlashAttention-3); at 500 of 700 W clocks under load are a fifth lower (an assumption).
ARCHITECTURE = {
    "A100": {
        "gemm_efficiency": (0.90, 0.15),
        "memory_efficiency": (0.85, 0.2),
        "nvlink_efficiency": (0.78, 0.25),
        "dp_overlap": (0.05, 0.3),
        "straggler": (0.02, 1.0),
        "gather_efficiency": (0.2, 0.3),
    },
    "H100": {"gemm_efficiency": (0.74, 0.2), "flash_efficiency": (0.38, 0.2)},
    "H100-96GB-500W": {"gemm_efficiency": (0.60, 0.25), "flash_efficiency": (0.31, 0.25)},
}


def prior_belief(gpu: str = "") -> Belief:
    """The documented priors, with what is known of the GPU's architecture."""
    special = ARCHITECTURE.get(gpu, ARCHITECTURE.get(gpu.split("-")[0], {}))
    known = {name: special.get(name, (p.value, p.spread)) for name, p in PRIORS.items()}
    centre = [PRIORS[name].to_free(value) for name, (value, _) in known.items()]
    return independent(np.array(centre), np.array([spread for _, spread in known.values()]))


def step_evidence(runs: Sequence[MeasuredRun]) -> list[Evidence]:
    """Step times and peak memory, one Evidence per data set and quantity."""
    found = []
    for name in dict.fromkeys(r.dataset for r in runs):
        timed = [r for r in runs if r.dataset == name and r.step_s is not None]
        weighed = [r for r in runs if r.dataset == name and r.peak_memory_gib is not None]
        if timed:
            measured = np.array([r.step_s for r in timed], np.float32)
            found.append(_log_ratios(name, timed, measured, STEP_NOISE, lambda c: c.total_s))
        if weighed:
            gb = np.array([r.peak_memory_gib * GIB / 1e9 for r in weighed], np.float32)  # pyright: ignore[reportOptionalOperand]
            kind = f"{name} memory"
            found.append(_log_ratios(kind, weighed, gb, MEMORY_NOISE, lambda c: c.memory_gb[:, 0]))
    return found


def _log_ratios(name, runs, measured, noise, of_cost) -> Evidence:
    arrays, n = run_arrays(runs), len(runs)
    rows = min(max(n, min(ROWS_AT_LEAST, 3 * n)), ROWS_AT_MOST)
    weight = (rows / n) ** 0.5 / noise
    target = jnp.asarray(measured)

    def residuals(cal: Calibration) -> Array:
        return weight * jnp.log(of_cost(predict_runs(arrays, cal)) / target)

    return Evidence(name, n, residuals)


def sync_evidence(runs: Sequence[SyncRun]) -> list[Evidence]:
    """Syncs over shaped links as evidence on the WAN's parameters."""
    if not runs:
        return []
    target = jnp.asarray([r.sync_s for r in runs], jnp.float32)

    def residuals(cal: Calibration) -> Array:
        return jnp.log(predict_sync_s(runs, cal) / target) / SYNC_NOISE

    return [Evidence("shaped links", len(runs), residuals)]


def profile_evidence(profiles: Sequence[Profile]) -> list[Evidence]:
    """Profiles as evidence, each speaking as at most ROWS_AT_MOST rows."""

    def residuals_of(profile: Profile):
        target = jnp.asarray(profile.measured_s)
        n = len(profile.measured_s)
        weight = (min(n, ROWS_AT_MOST) / n) ** 0.5 / PROFILE_NOISE[profile.kind]

        def residuals(cal: Calibration) -> Array:
            off = jnp.log(profile.predict(cal) / target)  # pyright: ignore[reportCallIssue]
            return weight * (off - off.mean() if profile.shape_only else off)

        return residuals

    return [Evidence(p.name, len(p.measured_s), residuals_of(p)) for p in profiles]


def fit(evidence: Sequence[Evidence], prior: Belief, max_evaluations: int = 200) -> Fit:
    """Maximum a posteriori of all evidence at once; intervals by Laplace's approximation.

    Trust-region least squares (Branch et al. 1999) on soft-L1 residuals; the Jacobian comes from
    forward-mode differentiation of the simulator.
    """
    d = len(PRIORS)

    def data(z):
        cal = prior.calibration(z)
        return jnp.concatenate([e.residuals(cal) for e in evidence] + [z])

    value = jax.jit(data)
    slope = jax.jit(jax.jacfwd(data))

    def descend(start: np.ndarray):
        return least_squares(
            lambda z: np.asarray(value(jnp.asarray(z, jnp.float32)), np.float64),
            start,
            jac=lambda z: np.asarray(slope(jnp.asarray(z, jnp.float32)), np.float64),  # pyright: ignore[reportArgumentType]
            loss="soft_l1",
            max_nfev=max_evaluations,
        )

    # Several valleys of nearly one depth: start from the prior's centre and from draws near it.
    rng = np.random.default_rng(0)
    starts = [np.zeros(d), *(0.7 * rng.standard_normal((RESTARTS, d)))]
    done = min((descend(start) for start in starts), key=lambda one: one.cost)
    z = jnp.asarray(done.x, jnp.float32)
    jacobian = np.asarray(slope(z), np.float64)
    # Soft L1 weighs a residual r by 1 / sqrt(1 + r^2); the prior's rows keep their weight.
    off = np.asarray(value(z), np.float64)
    weight = (1.0 + off**2) ** -0.25
    weight[-d:] = 1.0
    jacobian = jacobian * weight[:, None]
    covariance = np.linalg.inv(jacobian.T @ jacobian)
    covariance = covariance * np.outer(prior.spread, prior.spread)
    centre = prior.centre + prior.spread * np.asarray(done.x)
    return Fit(Belief(centre, covariance), prior, _shares(evidence, jacobian))


def _shares(evidence: Sequence[Evidence], jacobian: np.ndarray) -> dict[str, dict[str, float]]:
    """How much of each parameter's Fisher information every data set holds."""
    start, information = 0, {}
    for e in evidence:
        rows = jacobian[start : start + e.n]
        information[e.name] = (rows**2).sum(axis=0)
        start += e.n
    total = np.maximum(sum(information.values()), 1e-12)
    return {
        name: {e: float(information[e][i] / total[i]) for e in information}
        for i, name in enumerate(PRIORS)
    }


def fit_in_stages(
    runs: Sequence[MeasuredRun],
    profiles: Sequence[Profile] = (),
    syncs: Sequence[SyncRun] = (),
    prior: Belief | None = None,
) -> Fit:
    """Profiles first, then step times and memory with what the profiles left of the prior.

    A small table of step times can be matched by many combinations of operator speeds; the
    profiles choose among them (the shape of matrix products, NVLink, launch).
    """
    prior = prior_belief() if prior is None else prior
    first, start = None, prior
    if profiles:
        first = fit(profile_evidence(profiles), prior)
        floor = np.minimum(np.maximum(first.belief.spread, PROFILE_FLOOR), prior.spread)
        start = independent(first.belief.centre, floor)
    # A profile of whole layers is of the runs' own software: it keeps its say.
    same_stack = [p for p in profiles if p.kind == "layers"]
    evidence = step_evidence(runs) + profile_evidence(same_stack) + sync_evidence(syncs)
    if not evidence:
        return fit([], prior) if first is None else first
    second = fit(evidence, start)
    before: Mapping[str, dict[str, float]] = {} if first is None else first.told_by
    from_profiles = 1.0 - np.minimum(start.spread / prior.spread, 1.0)
    merged = {
        name: _mixed(before.get(name, {}), second.told_by[name], float(from_profiles[i]))
        for i, name in enumerate(PRIORS)
    }
    return dataclasses.replace(second, prior=prior, told_by=merged)


def _mixed(first: Mapping[str, float], second: Mapping[str, float], weight: float):
    """Shares of two stages, `weight` of them the first's; one data set may speak in both."""
    names = dict.fromkeys([*first, *second])
    return {e: weight * first.get(e, 0.0) + (1.0 - weight) * second.get(e, 0.0) for e in names}
