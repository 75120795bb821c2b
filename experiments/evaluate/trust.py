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
    MachineFit,
    above_record,
    prior_belief,
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
    model's error at the distance of the plan from the calibrated domain, as that of `validate` does.
    """
    fit, work = spec.fit, problem.work
    at, gpus = plan_features(work, plan)
    doubts = []
    if fit is None or fit.domain is None:
        name = spec.gpu if isinstance(spec.gpu, str) else "this GPU"
        doubts.append(f"no run of {spec.stack} on {name} was measured: the band is that of a guess")
    else:
        doubts += [f"outside the calibrated domain: {what}" for what in fit.domain.outside(at)]
    band, distance = _model_error(spec, at)
    spread = parameter_spread(_belief(spec, fit), problem, plan)
    reach = float(np.exp(band.reach(distance, spread[0])))
    memory_gb = float(_fitted_peaks(problem, plan)[1][0])
    most_gb = memory_gb * float(np.exp(band.reach(distance, spread[1], memory=True)))
    if most_gb > spec.gpu_spec.memory_gb:
        doubts.append(_tight(memory_gb, most_gb, spec.gpu_spec.memory_gb))
    flops = float(work.useful_tflop) * tokens_per_s / float(work.tokens_per_step)
    share = flops / (gpus * spec.gpu_spec.peak_tflops)
    float8 = int(work.precision) == FLOAT8
    if isinstance(spec.gpu, str) and (record := above_record(share, spec.gpu, float8)):
        doubts.append(record)
    return {
        "tokens_per_s_lo": tokens_per_s / reach,
        "tokens_per_s_hi": tokens_per_s * reach,
        "memory_gb": memory_gb,
        "memory_gb_hi": most_gb,
        "doubts": doubts,
    }


def speed_reaches(
    spec: ClusterSpec, problem: Problem, plans: list[Plan]
) -> Float[np.ndarray, " P"]:
    """[P] half the 90 % band of each plan's tokens per second, in logarithms: as `plan_trust` has it,
    for many plans at once (complete, NumPy leaves)."""
    draws = _belief(spec, spec.fit).samples(DRAWS, seed=0)
    found = []
    for plan in plans:
        band, distance = _model_error(spec, plan_features(problem.work, plan)[0])
        found.append(band.reach(distance, _spread(_drawn_peaks(problem, plan, draws)[0])))
    return np.array(found)


def least_reach(spec: ClusterSpec) -> float:
    """What none of `speed_reaches` is below: a plan like the measured ones, all parameters known."""
    return (UNKNOWN if spec.fit is None else spec.fit.band).reach(0.0)


def _model_error(spec: ClusterSpec, at: dict[str, float]) -> tuple[Band, float]:
    """The model's error inside what was calibrated, and how many doublings outside of it a plan with
    these features lies; 0 where nothing was calibrated."""
    fit = spec.fit
    if fit is None or fit.domain is None:
        return UNKNOWN if fit is None else fit.band, 0.0
    return fit.band, fit.domain.distance(at)


def _tight(memory_gb: float, most_gb: float, held_gb: float) -> str:
    """What is said of a plan that may run out of memory."""
    return (
        f"memory: {memory_gb:.0f} GB of a GPU's {held_gb:.0f}, with a 90 % band up to "
        f"{most_gb:.0f}: it may not fit"
    )


def parameter_spread(belief: Belief, problem: Problem, plan: Plan) -> tuple[float, float]:
    """Standard deviations of the logarithms of a plan's step time and peak memory that come from what
    is not known of the parameters; on the links of the cluster file."""
    draws = belief.samples(DRAWS, seed=0)
    step_s, memory_gb = _drawn_peaks(problem, plan, draws)
    return _spread(step_s), _spread(memory_gb)


def _spread(values: jax.Array) -> float:
    """Standard deviation of the logarithms."""
    return float(np.std(np.log(np.asarray(values, np.float64))))


def compile_trust(problem: Problem, plan: Plan) -> None:
    """Compile what `plan_trust` asks of any plan with these schedules."""
    _fitted_peaks(problem, plan)


def _fitted_peaks(problem: Problem, plan: Plan) -> tuple[jax.Array, jax.Array]:
    """`_drawn_peaks`, all draws the fit: a program of its own would take seconds to compile."""
    fitted = jax.tree.map(lambda x: jnp.broadcast_to(x, (DRAWS, *x.shape)), problem.calibration)
    return _drawn_peaks(problem, plan, fitted)


def _drawn_peaks(
    problem: Problem, plan: Plan, calibrations: Calibration
) -> tuple[jax.Array, jax.Array]:
    """[D] step time [s] and memory [GB] of the fullest GPU, on the links of the cluster file."""
    return _peaks(problem, plan, calibrations, schedules_among(np.asarray(plan.schedule)))


@functools.partial(jax.jit, static_argnames="schedules")
def _peaks(
    problem: Problem, plan: Plan, calibrations: Calibration, schedules: tuple[int, ...]
) -> tuple[jax.Array, jax.Array]:
    cluster = problem.cluster
    view = NetworkView(cluster.bandwidth_gb_per_s, cluster.rtt_s, cluster.gpus)

    def one(calibration):
        changed = problem.replace(calibration=calibration)
        cost = job_step_cost(plan, changed, view, schedules=schedules)
        return cost.total_s, jnp.max(cost.memory_gb)

    return jax.vmap(one)(calibrations)


def _belief(spec: ClusterSpec, fit: MachineFit | None) -> Belief:
    """What is believed of a cluster's GPUs: the fit, what is documented of their type, the priors."""
    if fit is not None:
        return fit.belief
    if not isinstance(spec.gpu, str):
        return prior_belief()
    return documented_belief(Machine(spec.gpu, spec.stack))


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
    used = group >= 0
    dp = np.asarray(plan.dp)[np.maximum(group, 0)]
    each = np.asarray(plan.tp) * np.asarray(plan.pp) * np.asarray(plan.cp) * dp
    gpus = int(each[used].sum())
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
