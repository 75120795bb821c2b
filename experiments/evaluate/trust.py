"""How far the time of a plan may be off, and what of it lies outside what was calibrated."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from jaxsim.calibration import Machine, documented_belief
from jaxsim.cluster import (
    UNKNOWN,
    Band,
    Belief,
    Calibration,
    ClusterSpec,
    GpuType,
    above_record,
    prior_belief,
    site_samples,
)
from jaxsim.plan import Plan, Problem, schedules_among
from jaxsim.step_time import NetworkView, job_step_cost
from jaxsim.workload import FLOAT8, Workload

DRAWS = 64  # of what is believed of the machine, as `validate` draws them
RANKINGS = 4000  # draws of who is fastest
BELOW_5_PCT = 1.645  # standard deviations: a 90 % band leaves 5 % on either side


def plan_trust(spec: ClusterSpec, problem: Problem, plan: Plan, tokens_per_s: float) -> dict:
    """The 90 % bands of a plan's tokens per second and peak memory [GB], and a sentence for every
    reason to doubt it.

    plan, problem: of one job, no job axis. A band joins what is not known of the parameters and the
    model's error at the distance of the plan from the calibrated domain, as that of `validate` does;
    of several GPU types the widest.
    """
    at, work = plan_features(problem.work, plan)[0], problem.work
    doubts = list(
        dict.fromkeys(x for gpu in types_used(spec, plan) for x in _outside(spec, gpu, at))
    )
    spread = parameter_spread(_draws(spec), problem, plan)
    reach = float(np.exp(_reach(spec, plan, at, spread[0])))
    _, fullness, fullest = (np.asarray(x)[0] for x in _fitted_peaks(problem, plan))
    room_gb = np.broadcast_to(problem.cluster.gpu.memory_gb, problem.cluster.gpus.shape)
    memory_gb, held_gb = float(fullness * room_gb[fullest]), spec.gpu_specs[fullest].memory_gb
    band, distance = _model_error(spec, spec.gpu_of[fullest], at)
    most_gb = memory_gb * float(np.exp(band.reach(distance, spread[1], memory=True)))
    if most_gb > held_gb:
        doubts.append(_tight(memory_gb, most_gb, held_gb))
    if record := _above_records(spec, work, plan, tokens_per_s):
        doubts.append(record)
    return {
        "tokens_per_s_lo": tokens_per_s / reach,
        "tokens_per_s_hi": tokens_per_s * reach,
        "memory_gb": memory_gb,
        "memory_gb_hi": most_gb,
        "memory_gb_held": held_gb,
        "doubts": doubts,
    }


def types_used(spec: ClusterSpec, plan: Plan) -> list[GpuType]:
    """The GPU types of the domains that a plan uses."""
    types, type_of = spec.gpu_types, spec.type_of
    used = np.flatnonzero(np.asarray(plan.group) >= 0)
    return [types[i] for i in dict.fromkeys(type_of[k] for k in used)]


def _outside(spec: ClusterSpec, gpu: GpuType, at: dict[str, float]) -> list[str]:
    """What of a plan's features nobody measured on a GPU type, in sentences."""
    fit = spec.fit_of(gpu)
    if fit is None or fit.domain is None:
        name = gpu if isinstance(gpu, str) else "this GPU"
        return [f"no run of {spec.stack} on {name} was measured: the band is that of a guess"]
    on = f" of {gpu}" if len(spec.gpu_types) > 1 else ""
    return [f"outside the calibrated domain{on}: {what}" for what in fit.domain.outside(at)]


def in_calibrated_domain(spec: ClusterSpec, work: Workload, plan: Plan) -> bool:
    """Were runs like this plan measured on all GPU types that it uses?"""
    at = plan_features(work, plan)[0]
    return not any(_outside(spec, gpu, at) for gpu in types_used(spec, plan))


def _above_records(
    spec: ClusterSpec, work: Workload, plan: Plan, tokens_per_s: float
) -> str | None:
    """What is said of a plan that uses more of its GPUs' peak than anybody published, of any of their
    types; None where it does not."""
    _, gpus = _gpus_used(plan)
    peaks = [one.peak_tflops for one in spec.gpu_specs]
    peak = sum(peaks[k] * n for k, n in enumerate(gpus) if n)
    share = float(work.useful_tflop) * tokens_per_s / float(work.tokens_per_step) / peak
    types, float8 = types_used(spec, plan), int(work.precision) == FLOAT8
    if not all(isinstance(gpu, str) for gpu in types):
        return None
    above = [above_record(share, gpu, float8) for gpu in types]
    return above[0] if all(above) else None


def speed_reaches(
    spec: ClusterSpec, problem: Problem, plans: list[Plan]
) -> Float[np.ndarray, " P"]:
    """[P] half the 90 % band of each plan's tokens per second, in logarithms: as `plan_trust` has it,
    for many plans at once (complete, NumPy leaves)."""
    draws = _draws(spec)
    # All are begun before any is read.
    step_s = [_drawn_peaks(problem, plan, draws)[0] for plan in plans]
    at = [plan_features(problem.work, plan)[0] for plan in plans]
    every = zip(plans, at, step_s, strict=True)
    return np.array([_reach(spec, plan, where, _spread(drawn)) for plan, where, drawn in every])


def least_reach(spec: ClusterSpec) -> float:
    """What none of `speed_reaches` is below: a plan like the measured ones, all parameters known."""
    fits = map(spec.fit_of, spec.gpu_types)
    return min((UNKNOWN if fit is None else fit.band).reach(0.0) for fit in fits)


def _model_error(spec: ClusterSpec, gpu: GpuType, at: dict[str, float]) -> tuple[Band, float]:
    """A GPU type's model error inside what was calibrated, and how many doublings outside of it a plan
    with these features lies; 0 where nothing was calibrated."""
    fit = spec.fit_of(gpu)
    if fit is None or fit.domain is None:
        return UNKNOWN if fit is None else fit.band, 0.0
    return fit.band, fit.domain.distance(at)


def _reach(spec: ClusterSpec, plan: Plan, at: dict[str, float], spread: float) -> float:
    """Half the 90 % band of a plan's step time in logarithms, the widest of its GPU types'."""
    errors = [_model_error(spec, gpu, at) for gpu in types_used(spec, plan)]
    return max(band.reach(distance, spread) for band, distance in errors)


def _tight(memory_gb: float, most_gb: float, held_gb: float) -> str:
    """What is said of a plan that may run out of memory."""
    return (
        f"memory: {memory_gb:.0f} GB of a GPU's {held_gb:.0f}, with a 90 % band up to "
        f"{most_gb:.0f}: it may not fit"
    )


def parameter_spread(draws: Calibration, problem: Problem, plan: Plan) -> tuple[float, float]:
    """Standard deviations of the logarithms of a plan's step time and peak memory that come from what
    is not known of the parameters, `draws` of which are given (DRAWS); on the links of the cluster
    file."""
    step_s, fullness, _ = _drawn_peaks(problem, plan, draws)
    return _spread(step_s), _spread(fullness)


def _spread(values: jax.Array) -> float:
    """Standard deviation of the logarithms."""
    return float(np.std(np.log(np.asarray(values, np.float64))))


def compile_trust(problem: Problem, plan: Plan) -> None:
    """Compile what `plan_trust` asks of any plan with these schedules."""
    _fitted_peaks(problem, plan)


def _fitted_peaks(problem: Problem, plan: Plan) -> tuple[jax.Array, ...]:
    """`_drawn_peaks`, all draws the fit: a program of its own would take seconds to compile."""
    fitted = jax.tree.map(lambda x: jnp.broadcast_to(x, (DRAWS, *x.shape)), problem.calibration)
    return _drawn_peaks(problem, plan, fitted)


def _drawn_peaks(problem: Problem, plan: Plan, calibrations: Calibration) -> tuple[jax.Array, ...]:
    """[D] step time [s], share of its memory that the fullest GPU holds, and in which domain that is,
    on the links of the cluster file."""
    return _peaks(problem, plan, calibrations, schedules_among(np.asarray(plan.schedule)))


@functools.partial(jax.jit, static_argnames="schedules")
def _peaks(
    problem: Problem, plan: Plan, calibrations: Calibration, schedules: tuple[int, ...]
) -> tuple[jax.Array, ...]:
    cluster = problem.cluster
    view = NetworkView(cluster.bandwidth_gb_per_s, cluster.rtt_s, cluster.gpus)

    def one(calibration):
        changed = problem.replace(calibration=calibration)
        cost = job_step_cost(plan, changed, view, schedules=schedules)
        fullness = cost.memory_gb / cluster.gpu.memory_gb
        return cost.total_s, jnp.max(fullness), jnp.argmax(fullness)

    return jax.vmap(one)(calibrations)


def _draws(spec: ClusterSpec) -> Calibration:
    """DRAWS of what is believed of a cluster's GPUs."""
    beliefs = [_belief(spec, gpu) for gpu in spec.gpu_types]
    return site_samples(beliefs, spec.type_of, _belief(spec, spec.gpu), DRAWS, seed=0)


def _belief(spec: ClusterSpec, gpu: GpuType) -> Belief:
    """What is believed of a GPU type: the fit, what is documented of it, the priors."""
    fit = spec.fit_of(gpu)
    if fit is not None:
        return fit.belief
    if not isinstance(gpu, str):
        return prior_belief()
    return documented_belief(Machine(gpu, spec.stack))


def probabilities_best(
    tokens_per_s: Float[np.ndarray, " P"], lowest: Float[np.ndarray, " P"], seed: int = 0
) -> Float[np.ndarray, " P"]:
    """[P] how often each plan is the fastest if times are off as their bands say: log-normal, 5 % of
    the draws below `lowest`, plans off independently of each other. What all plans of a machine are
    off by together decides nothing, so the ties are rather too many than too few. Plans at 0 never
    run and are never best."""
    runs = tokens_per_s > 0
    if not runs.any():
        return np.zeros(len(tokens_per_s))
    spread = np.log(np.where(runs, tokens_per_s / np.maximum(lowest, 1e-30), 1.0)) / BELOW_5_PCT
    off = np.random.default_rng(seed).normal(size=(RANKINGS, len(runs)))
    with np.errstate(divide="ignore"):
        drawn = np.log(np.where(runs, tokens_per_s, 0.0)) + off * spread
    return np.bincount(drawn.argmax(axis=1), minlength=len(runs)) / RANKINGS


def plan_features(work: Workload, plan: Plan) -> tuple[dict[str, float], int]:
    """What places a plan in a domain (its largest entries), and how many GPUs it uses."""
    group = np.asarray(plan.group)
    used, each = _gpus_used(plan)
    gpus = int(each.sum())
    cp = float(np.asarray(plan.cp)[used].max())
    micro_batch = float(np.asarray(plan.micro_batch)[group[used]].max())
    features = {
        "hidden": float(work.hidden),
        "seq": float(work.seq),
        "gpus": float(gpus),
        "tokens": micro_batch * float(work.seq) / cp,
        "tp": float(np.asarray(plan.tp)[used].max()),
        "pp": float(np.asarray(plan.pp)[used].max()),
        "cp": cp,
    }
    return features, gpus


def _gpus_used(plan: Plan) -> tuple[np.ndarray, np.ndarray]:
    """[K] bool and int: is a domain used, and how many of its GPUs."""
    group = np.asarray(plan.group)
    dp = np.asarray(plan.dp)[np.maximum(group, 0)]
    each = np.asarray(plan.tp) * np.asarray(plan.pp) * np.asarray(plan.cp) * dp
    return group >= 0, np.where(group >= 0, each, 0)
