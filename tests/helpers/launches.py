"""Plans written by hand, as launch files are made from them."""

import dataclasses

import jax
import numpy as np

from experiments.plan.export import job_of
from experiments.plan.export.layout import Passes
from jaxsim.cluster import ClusterSpec
from jaxsim.plan import Plan
from jaxsim.workload import JobSpec, ModelConfig

MODEL = ModelConfig(
    layers=10, hidden=512, heads=8, kv_heads=4, ffn=1024, ffn_matrices=3, vocab=1000
)
EVEN = dataclasses.replace(MODEL, layers=12)  # of which every pipeline here has equal stages
PREDICTED = {
    "plan": {"label": "a | b"},
    "talks": "every step",
    "step_s": 2.0,
    "step_s_band": [1.0, 3.0],
    "effective_tokens_per_s": 1e4,
    "memory_gb_max": 50.0,
    "memory_gb_max_hi": 70.0,
    "memory_gb_held": 85.0,
    "bound_by": {"stage": {"domain": "a", "stage_s": 0.03}},
}
PASSES = Passes(0.01, 0.02, 0.001, 0.002, 1e-4)


def spec(gpus=(8, 8, 8)):
    k = len(gpus)
    apart = ~np.eye(k, dtype=bool)
    return ClusterSpec(
        name="hand",
        gpu="A100-80GB",
        domains=tuple("abcdefgh"[:k]),
        gpus=tuple(gpus),
        gpus_per_node=(4,) * k,
        usd_per_gpu_hour=(1.0,) * k,
        intra_bandwidth_gbps=100.0,
        intra_rtt_ms=0.05,
        bandwidth_gbps=np.where(apart, 5.0, 0.0),
        rtt_ms=np.where(apart, 30.0, 0.0),
        egress_usd_per_gb=np.where(apart, 0.02, 0.0),
    )


def launch(groups, gpus=(8, 8, 8), model=MODEL, batch=64, **fields):
    """A job from groups of domains and the fields of a plan, as `Plan.build` takes them."""
    cluster, job = spec(gpus), JobSpec(model, batch, 256)
    plan = Plan.build(cluster, job, groups, **fields)
    passes = [PASSES] * len(gpus)
    return job_of(jax.tree.map(np.asarray, plan), cluster, job, "tiny", PREDICTED, passes)


# By name: one domain; a pipeline over two; replicas that talk every step and seldom; all of it mixed.
LAUNCHES = {
    "one": (["a"],),
    "pipeline": (["a", "b"],),
    "replicas": (["a"], ["b"]),
    "mixed": (["a", "b"], ["c"]),
}


def named(name, **changes):
    """One of LAUNCHES with settings that it allows."""
    fields = {
        "one": {"tp": 2, "dp": 2, "pp": 2, "micro_batch": 2},
        "pipeline": {"tp": 2, "dp": 2, "micro_batch": 1, "schedule": "eager_1f1b"},
        "replicas": {"tp": 1, "dp": 2, "pp": 4, "micro_batch": 2, "recompute": "full"},
        "mixed": {"tp": 2, "dp": [2, 4], "micro_batch": 1, "batch_share": [20, 6]},
    }[name]
    return launch(LAUNCHES[name], **{**fields, **changes})
