"""The simulator's parameters from kernels, sums and steps of one machine, and its data-parallel steps.

A rank stands for a GPU. Its data sheet is the best that was seen of the machine: the fastest product,
copy and sum. Three fits follow, none of which knows a step of data parallelism:

1. Compute: kernels on their own, and steps of ranks that say nothing to each other. N ranks share the
   cores, so that each has a share of the machine's speed, one number for each N. A processor starts
   no kernels ahead: what a start takes adds to every kernel (`kernel_s`), and no launch hides.
2. Sums: latency and rate for each N, from all-reduces of all sizes.
3. Overlap for each N: steps beside which one message of the gradients' size travels from the begin of
   the backward pass on.

The parameters of N ranks are one entry of the calibration file, `cpu-N-ranks`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.optimize import least_squares

from experiments.calibrate.microbench import Bench, Step
from jaxsim.cluster import PRIORS, Calibration, ClusterSpec, Gpu, prior_calibration
from jaxsim.plan import Plan, Problem, Schedule, empty_plan
from jaxsim.step_time import NetworkView, StepCost, flash_alone_s, gemm_alone_s, job_step_cost
from jaxsim.trees import stack
from jaxsim.workload import (
    FP32_ACTIVATION_BYTES,
    SENT_GRADIENT_BYTES,
    JobSpec,
    Workload,
    build_workload,
)

NOTHING = 1e-9  # [s] that stand for none
NONE, ALL = 1e-6, 1.0 - 1e-6  # shares that stand for none and for the whole
# What a processor does not have, or has by definition: its data sheet is in float32, whose gradients
# travel as float32; nobody launches its kernels; all its logits are a product as any other.
HELD = {
    **dict.fromkeys(("launch_forward_s", "launch_backward_s", "micro_batch_s"), NOTHING),
    **dict.fromkeys(("fp32_speed", "vocabulary_efficiency"), ALL),
    "data_parallel_efficiency": SENT_GRADIENT_BYTES / FP32_ACTIVATION_BYTES,
}
PRODUCTS = ("gemm_efficiency", "gemm_tail_tiles", "gemm_depth")
ATTENTION = ("flash_efficiency", "flash_width", "flash_length")
COMPUTE = (*PRODUCTS, *ATTENTION, "memory_efficiency", "optimizer_bytes", "eager_passes")
COMPUTE += ("kernel_s", "head_passes", "step_fixed_s")
SUMS = ("nvlink_efficiency", "collective_alpha_s")
# Slower by the share that a rank has of the machine: rates fall, times rise.
FALLS = ("gemm_efficiency", "flash_efficiency", "memory_efficiency")
RISES = ("kernel_s", "step_fixed_s")
# Deviations: of parameters from the values documented of GPUs, which hardly say anything here; of the
# logarithms of seconds from what fits.
PRIOR_SPREAD, SHARE_SPREAD, KERNEL_SPREAD, STEP_SPREAD = 2.0, 0.5, 0.15, 0.05
GRID = 101  # values that an overlap is looked for among
LOSS = {"loss": "soft_l1", "f_scale": 2.0}  # one disturbed measurement must not bend a fit


@dataclasses.dataclass(frozen=True)
class Fit:
    """Parameters of N ranks: value and, where it was fitted, spread on the unbounded scale."""

    values: Mapping[str, float]
    spread: Mapping[str, float]

    def calibration(self) -> Calibration:
        """The documented values where nothing else is known."""
        known = {name: jnp.float32(value) for name, value in self.values.items()}
        return prior_calibration().replace(**known)


def entry_name(ranks: int) -> str:
    """Of the entry of a calibration file."""
    return f"cpu-{ranks}-ranks"


# --- the simulator


def _cluster(bench: Bench, ranks: int) -> ClusterSpec:
    nothing = np.zeros((1, 1))
    one = {"domains": (bench.name,), "gpus": (ranks,), "gpus_per_node": (ranks,)}
    network = {"bandwidth_gbps": nothing, "rtt_ms": nothing, "egress_usd_per_gb": nothing}
    return ClusterSpec(
        name=bench.name,
        gpu=dataclasses.asdict(bench.sheet),
        usd_per_gpu_hour=(0.0,),
        intra_bandwidth_gbps=8.0 * bench.sheet.nvlink_gb_per_s,
        intra_rtt_ms=0.0,
        **one,
        **network,
    )


def _plan(bench: Bench, model: str, ranks: int) -> Plan:
    """Data parallel, and every rank updates all weights."""
    fields = {"group": 0, "layers": bench.models[model].layers, "batch_share": 1, "dp": ranks}
    fields |= {"micro_batch": bench.rows, "schedule": Schedule.ONE_F_ONE_B}
    fields |= {"tp": 1, "pp": 1, "cp": 1, "zero_stage": 0}
    return empty_plan(1).replace(**{k: np.array([v], np.int32) for k, v in fields.items()})


def _work(bench: Bench, model: str, ranks: int) -> Workload:
    job = JobSpec(
        bench.models[model],
        global_batch=bench.rows * ranks,
        seq=bench.length,
        precision="fp32",
        compiled=False,
        sequence_parallel=False,
    )
    return build_workload([job]).job(0)


@jax.jit
def _costs(plans: Plan, works: Workload, clusters, calibrations: Calibration) -> StepCost:
    def one(plan, work, cluster, calibration):
        view = NetworkView(cluster.bandwidth_gb_per_s, cluster.rtt_s, cluster.gpus)
        return job_step_cost(plan, Problem(work, cluster, calibration), view)

    return jax.vmap(one)(plans, works, clusters, calibrations)


def _arrays(bench: Bench, steps: Sequence[Step]) -> tuple:
    """(plans, works, clusters) of steps; ranks that say nothing to each other are alone."""
    ranks = [1 if step.talk == "none" else step.ranks for step in steps]
    plans = [_plan(bench, step.model, n) for step, n in zip(steps, ranks, strict=True)]
    works = [_work(bench, step.model, n) for step, n in zip(steps, ranks, strict=True)]
    return stack(plans), stack(works), stack([_cluster(bench, n).to_arrays() for n in ranks])


def predict(bench: Bench, steps: Sequence[Step], fits: Mapping[int, Calibration]) -> np.ndarray:
    """[N] [s] of steps that were measured, under the parameters of their numbers of ranks."""
    calibrations = stack([fits[step.ranks] for step in steps])
    return np.asarray(_costs(*_arrays(bench, steps), calibrations).total_s, np.float64)


# --- the fits


def fit_machine(bench: Bench) -> dict[int, Fit]:
    """Number of ranks -> its parameters, for 1 and all that trained together."""
    shared, shares, spread = _fit_compute(bench)
    fits = {1: Fit({**HELD, **shared}, spread)}
    for ranks, share in shares.items():
        compute = HELD | shared
        compute |= {name: shared[name] * share for name in FALLS}
        compute |= {name: shared[name] / share for name in RISES}
        sums, sums_spread = _fit_sums(bench, ranks)
        fit = Fit(compute | sums, spread | sums_spread)
        overlap = {"dp_overlap": _fit_overlap(bench, ranks, fit)}
        of_overlap = {"dp_overlap": PRIORS["dp_overlap"].spread}
        fits[ranks] = Fit({**fit.values, **overlap}, {**fit.spread, **of_overlap})
    return fits


def _fit_compute(bench: Bench) -> tuple[dict[str, float], dict[int, float], dict[str, float]]:
    """Parameters of a rank alone, the share of the machine's speed that one of N has, and spreads."""
    groups = bench.groups
    steps = [step for step in bench.of("none") if step.ranks in (1, *groups)]
    inputs = _inputs(bench, steps)
    measured = [*bench.products[:, 3], *bench.attentions[:, 3], *bench.copies[:, 1]]
    measured = np.log([*measured, bench.update_s, *(step.seconds for step in steps)])
    kernels = len(measured) - len(steps)
    sigma = np.array([KERNEL_SPREAD] * kernels + [STEP_SPREAD] * len(steps))
    centre = [PRIORS[name].to_free(PRIORS[name].value) for name in COMPUTE]
    centre = np.array(centre + [np.log(min(1.0, bench.cores / n)) for n in groups])
    about = np.array([PRIOR_SPREAD] * len(COMPUTE) + [SHARE_SPREAD] * len(groups))

    def errors(x: np.ndarray) -> np.ndarray:
        told = np.asarray(_compute_logs(jnp.asarray(x, jnp.float32), inputs), np.float64)
        return np.concatenate([(told - measured) / sigma, (x - centre) / about])

    def slopes(x: np.ndarray) -> np.ndarray:
        at = np.asarray(_compute_slopes(jnp.asarray(x, jnp.float32), inputs), np.float64)
        return np.concatenate([at / sigma[:, None], np.diag(1.0 / about)])

    # However fast the machine became between two measurements, no rank has more than all of it.
    most = np.array([np.inf] * len(COMPUTE) + [0.0] * len(groups))
    best = least_squares(errors, centre, jac=slopes, bounds=(-np.inf, most), **LOSS)
    deviation = np.sqrt(np.diag(np.linalg.inv(slopes(best.x).T @ slopes(best.x))))
    own, n = best.x.tolist(), len(COMPUTE)
    found = {name: PRIORS[name].from_free(x) for name, x in zip(COMPUTE, own[:n], strict=True)}
    found |= {name: min(x, ALL) for name, x in found.items() if PRIORS[name].share}
    shares = dict(zip(groups, np.exp(own[n:]).tolist(), strict=True))
    return found, shares, dict(zip(COMPUTE, deviation[:n].tolist(), strict=True))


class _Inputs(NamedTuple):
    """What was measured, as the simulator takes it."""

    sheet: Gpu
    steps: tuple  # plans, works, clusters
    products: Float[Array, "3 N"]  # rows, columns, depth
    attentions: Float[Array, "3 N"]  # heads, tokens, width
    copied_gb: Float[Array, " N"]
    place: Float[Array, "N G"]  # 1 where a step is one of G numbers of ranks


def _inputs(bench: Bench, steps: Sequence[Step]) -> _Inputs:
    return _Inputs(
        sheet=bench.sheet.to_arrays(),
        steps=_arrays(bench, steps),
        products=jnp.asarray(bench.products.T[:3], jnp.float32),
        attentions=jnp.asarray(bench.attentions.T[:3], jnp.float32),
        copied_gb=jnp.asarray(bench.copies[:, 0] / 1e9, jnp.float32),
        place=jnp.array([[step.ranks == n for n in bench.groups] for step in steps], jnp.float32),
    )


@jax.jit
def _compute_logs(x: Float[Array, " D"], inputs: _Inputs) -> Float[Array, " N"]:
    """Free parameters and logarithms of shares -> logarithms of seconds: kernels, then steps."""
    n, sheet = len(COMPUTE), inputs.sheet
    held = {name: jnp.float32(value) for name, value in HELD.items()}
    free = {
        name: jax.nn.sigmoid(x[i]) if PRIORS[name].share else jnp.exp(x[i])
        for i, name in enumerate(COMPUTE)
    }
    cal = prior_calibration().replace(**held, **free)
    rate = sheet.memory_gb_per_s * cal.memory_efficiency
    kernels = [
        gemm_alone_s(sheet, cal, *inputs.products, wide=True),
        flash_alone_s(sheet, cal, *inputs.attentions, wide=True),
        inputs.copied_gb / rate + cal.kernel_s,
        (1e-9 * cal.optimizer_bytes / rate)[None],
    ]
    share = jnp.exp(inputs.place @ x[n:])  # 1 of a rank alone
    slower = {name: getattr(cal, name) * share for name in FALLS}
    slower |= {name: getattr(cal, name) / share for name in RISES}
    every = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, share.shape), cal)
    cost = _costs(*inputs.steps, every.replace(**slower))
    return jnp.log(jnp.concatenate([*kernels, cost.total_s]))


_compute_slopes = jax.jit(jax.jacfwd(_compute_logs))


def _fit_sums(bench: Bench, ranks: int) -> tuple[dict[str, float], dict[str, float]]:
    """Share of the best rate, and latency [s] per doubling of ranks, of one pass of a sum: a sum is
    two passes, as the simulator's gradient sync is. Values and spreads."""
    table = [tuple(row[1:]) for row in bench.sums if row[0] == ranks]
    table += [(_gradient_bytes(bench, s.model), s.seconds) for s in bench.of("message", ranks)]
    size, seconds = np.array(table).T
    sent_gb = 2.0 * (ranks - 1.0) / ranks * size / 1e9
    start = np.array([PRIORS[name].to_free(PRIORS[name].value) for name in SUMS])

    def errors(x: np.ndarray) -> np.ndarray:
        share, alpha = (PRIORS[name].from_free(v) for name, v in zip(SUMS, x, strict=True))
        found = 2.0 * alpha * np.log2(ranks) + sent_gb / (bench.sheet.nvlink_gb_per_s * share)
        off = (np.log(found) - np.log(seconds)) / KERNEL_SPREAD
        return np.concatenate([off, (x - start) / PRIOR_SPREAD])

    best = least_squares(errors, start, **LOSS)
    deviation = np.sqrt(np.diag(np.linalg.inv(best.jac.T @ best.jac)))
    found = {name: PRIORS[name].from_free(v) for name, v in zip(SUMS, best.x.tolist(), strict=True)}
    found |= {name: min(x, ALL) for name, x in found.items() if PRIORS[name].share}
    return found, dict(zip(SUMS, deviation.tolist(), strict=True))


def _gradient_bytes(bench: Bench, model: str) -> float:
    """[B] of all gradients of a model in float32."""
    return FP32_ACTIVATION_BYTES * bench.models[model].params


def _fit_overlap(bench: Bench, ranks: int, fit: Fit) -> float:
    """Share of the backward pass that hides a message, from the seconds that steps with a message
    beside them take beyond those without; the least that explains them."""
    steps = bench.of("beside", ranks)
    alone = {step.model: step.seconds for step in bench.of("none", ranks)}
    of_step = np.array([alone[step.model] for step in steps])
    added = np.maximum([step.seconds for step in steps] - of_step, 0.0)
    arrays = _arrays(bench, steps)

    def error(overlap: float) -> float:
        cal = fit.calibration().replace(dp_overlap=jnp.float32(overlap))
        told = np.asarray(_costs(*arrays, stack([cal] * len(steps))).sync_s, np.float64)
        return float(np.sum(np.abs(told - added) / of_step))

    return min(np.linspace(NONE, ALL, GRID).tolist(), key=error)
