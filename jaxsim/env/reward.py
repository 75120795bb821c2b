"""The books of one interval: what the jobs achieved, what it cost, and the reward."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from jaxsim.env.types import EnvParams, IntervalRecord, RewardParts
from jaxsim.step_time import NetworkView, StepCost


def account(
    params: EnvParams,
    view: NetworkView,
    cost: StepCost,
    progress: Array,
    train_s: Array,
    moved: Array | None,
    switched: Array,
) -> IntervalRecord:
    """Account for one interval; `moved` [J, K, K] is None at reset."""
    steps = progress / cost.efficiency
    wan_gb = jnp.sum(cost.wan_gb * steps[:, None, None], axis=0)
    migration = jnp.zeros_like(wan_gb) if moved is None else jnp.sum(moved, axis=0)
    cluster, jobs = params.problem.cluster, params.problem.work
    egress_usd = jnp.sum(cost.egress_usd * steps)
    egress_usd = egress_usd + jnp.vdot(migration, cluster.egress_usd_per_gb)
    in_force = jnp.where(jobs.mask[:, None], cost.gpus_used, 0)
    price = cluster.usd_per_gpu_hour * (params.interval_s / 3600.0)
    in_force_gpus = jnp.sum(in_force, axis=0).astype(jnp.float32)
    gpu_usd = jnp.vdot(in_force_gpus, price)
    peak = cluster.gpu.peak_tflops * view.gpus_available.astype(jnp.float32)
    available_tflop = jnp.maximum(jnp.sum(peak), 1e-9) * params.interval_s
    active = jobs.mask.astype(jnp.float32)
    n_active = jnp.maximum(jnp.sum(active), 1.0)
    relative = progress / params.progress_ref - 1.0
    held = in_force.sum(axis=0) + cluster.gpus - view.gpus_available
    load = held.astype(jnp.float32) / jnp.maximum(cluster.gpus, 1).astype(jnp.float32)
    real = cluster.mask.astype(jnp.float32)
    mean = jnp.sum(load * real) / jnp.sum(real)
    parts = RewardParts(
        efficiency=jnp.sum(active * relative) / n_active,
        utilisation=jnp.sum(progress * jobs.useful_tflop) / available_tflop,
        cost=egress_usd / cluster.gpu_usd(in_force_gpus, params.interval_s),
        fairness=jnp.sum(real * (load - mean) ** 2) / jnp.sum(real),
    )
    return IntervalRecord(
        progress=progress,
        train_s=train_s,
        cost=cost,
        wan_gb=wan_gb,
        migration_gb=migration,
        egress_usd=egress_usd,
        gpu_usd=gpu_usd,
        switched=jnp.broadcast_to(switched, progress.shape),
        reward_parts=parts,
    )


def weighted_reward(parts: RewardParts, weights: Array) -> Array:
    """[] w1 R_eff + w2 R_util - w3 R_cost - w4 R_fair; `weights` [4]."""
    signed = jnp.stack([parts.efficiency, parts.utilisation, -parts.cost, -parts.fairness])
    return jnp.sum(weights * signed)
