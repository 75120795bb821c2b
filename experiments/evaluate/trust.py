"""How far the time of a plan may be off, and what of it lies outside what was calibrated."""

from __future__ import annotations

import numpy as np

from jaxsim.cluster import (
    UNKNOWN,
    ClusterSpec,
    MachineFit,
    above_record,
    shipped_fit,
)
from jaxsim.plan import Plan
from jaxsim.workload import FLOAT8, Workload


def plan_trust(spec: ClusterSpec, work: Workload, plan: Plan, tokens_per_s: float) -> dict:
    """The 90 % band of a plan's tokens per second, and a sentence for every reason to doubt it.

    plan: one job, no job axis; work: without its job axis. The band is that of step times at the
    distance of the plan from the calibrated domain.
    """
    fit = shipped_fit(spec.gpu, spec.stack) if isinstance(spec.gpu, str) else None
    at, gpus = plan_features(work, plan)
    doubts = []
    band = UNKNOWN if fit is None else fit.band
    distance = 0.0
    if fit is None or fit.domain is None:
        name = spec.gpu if isinstance(spec.gpu, str) else "this GPU"
        doubts.append(f"no run of {spec.stack} on {name} was measured: the band is that of a guess")
    else:
        distance = fit.domain.distance(at)
        doubts += [f"outside the calibrated domain: {what}" for what in fit.domain.outside(at)]
    reach = float(np.exp(band.reach(distance, _spread(fit))))
    flops = float(work.useful_tflop) * tokens_per_s / float(work.tokens_per_step)
    share = flops / (gpus * spec.gpu_spec.peak_tflops)
    float8 = int(work.precision) == FLOAT8
    if isinstance(spec.gpu, str) and (record := above_record(share, spec.gpu, float8)):
        doubts.append(record)
    return {
        "tokens_per_s_lo": tokens_per_s / reach,
        "tokens_per_s_hi": tokens_per_s * reach,
        "doubts": doubts,
    }


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


def _spread(fit: MachineFit | None) -> float:
    """What the parameters add to the logarithm of a step time: that of a machine that was measured is
    in its band; of another, about its products'."""
    if fit is None or fit.domain is not None:
        return 0.0
    return 0.1
