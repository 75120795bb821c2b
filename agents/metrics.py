"""What an episode comes to, in the units of the reports."""

from __future__ import annotations

import jax.numpy as jnp
from flax import struct
from jax import Array

from agents.rollout import Episode
from jaxsim.env import EnvParams


@struct.dataclass
class EpisodeMetrics:
    """[] each; means are over the intervals in which the job computed, NaN where it never did."""

    progress: Array  # [training steps], efficiency included
    step_s: Array  # [s] computing time per step
    step_s_std: Array  # [s] spread of the step time between intervals
    tokens_per_s: Array  # downtime included
    utilisation: Array  # useful FLOPs / peak FLOPs of the available GPUs
    memory_utilisation: Array  # fullest GPU of each used domain / its memory
    bandwidth_utilisation: Array  # WAN bytes / what all links could have carried
    comm_to_compute: Array  # exposed communication / computation
    overlap: Array  # share of the WAN's busy time behind computation; NaN if no plan used the WAN
    wan_gb_per_step: Array  # [GB] training and migration
    usd_per_mtoken: Array  # GPUs and egress
    replans: Array  # reconfigurations after the first deployment
    reward: Array  # mean per interval, as are its parts
    reward_eff: Array
    reward_util: Array
    reward_cost: Array
    reward_fair: Array


def episode_metrics(episode: Episode, params: EnvParams) -> EpisodeMetrics:
    """Reduce one episode of a single job; jit-able."""
    record = episode.record
    progress, train_s = record.progress[:, 0], record.train_s[:, 0]
    cost = record.cost
    steps = progress / cost.efficiency[:, 0]
    ran = train_s > 0

    def mean(values, over=ran):
        count = over.astype(jnp.float32).sum()
        return jnp.sum(jnp.where(over, values, 0.0)) / jnp.where(count > 0, count, jnp.nan)

    step_s = cost.step_s[:, 0]
    mean_step_s = mean(step_s)
    total = jnp.where(steps.sum() > 0, steps.sum(), jnp.nan)
    tokens = steps.sum() * params.jobs.tokens_per_step[0]
    span_s = progress.shape[0] * params.interval_s
    used = (cost.memory_gb[:, 0] > 0).astype(jnp.float32)
    fullness = (cost.memory_gb[:, 0] / params.cluster.gpu.memory_gb).sum(axis=1)
    moved_gb = jnp.sum(record.wan_gb + record.migration_gb)
    carried_gb = jnp.sum(episode.bandwidth_gb_per_s) * params.interval_s
    usd = (record.egress_usd + record.gpu_usd).sum()
    parts = record.reward_parts
    return EpisodeMetrics(
        progress=progress.sum(),
        step_s=train_s.sum() / total,
        step_s_std=jnp.sqrt(mean((step_s - mean_step_s) ** 2)),
        tokens_per_s=tokens / span_s,
        utilisation=parts.utilisation.mean(),
        memory_utilisation=mean(fullness / jnp.maximum(used.sum(axis=1), 1.0)),
        bandwidth_utilisation=moved_gb / jnp.maximum(carried_gb, 1e-9),
        comm_to_compute=mean(cost.communication_s[:, 0] / jnp.maximum(cost.compute_s[:, 0], 1e-9)),
        overlap=mean(cost.overlap[:, 0], ran & (cost.wan_busy_s[:, 0] > 0)),
        wan_gb_per_step=moved_gb / total,
        usd_per_mtoken=usd / (total * params.jobs.tokens_per_step[0] / 1e6),
        replans=jnp.sum(record.switched[1:, 0].astype(jnp.float32)),
        reward=episode.reward.mean(),
        reward_eff=parts.efficiency.mean(),
        reward_util=parts.utilisation.mean(),
        reward_cost=parts.cost.mean(),
        reward_fair=parts.fairness.mean(),
    )
