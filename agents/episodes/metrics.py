"""What an episode comes to, in the units of the reports."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from agents.episodes.rollout import Episode
from jaxsim.env import EnvParams, IntervalRecord
from jaxsim.pytree import Pytree


class EpisodeMetrics(Pytree):
    """[] each; means are over the intervals in which the job computed, NaN where it never did."""

    progress: Float[Array, "*batch"]  # [training steps], efficiency included
    step_s: Float[Array, "*batch"]  # [s] computing time per step
    step_s_std: Float[Array, "*batch"]  # [s] spread of the step time between intervals
    tokens_per_s: Float[Array, "*batch"]  # downtime included
    utilisation: Float[Array, "*batch"]  # useful FLOPs / peak FLOPs of the available GPUs
    memory_utilisation: Float[Array, "*batch"]  # fullest GPU of each used domain / its memory
    bandwidth_utilisation: Float[Array, "*batch"]  # WAN bytes / what all links could have carried
    comm_to_compute: Float[Array, "*batch"]  # exposed communication / computation
    # share of the WAN's busy time behind computation; NaN if no plan used the WAN
    overlap: Float[Array, "*batch"]
    wan_gb_per_step: Float[Array, "*batch"]  # [GB] training and migration
    usd_per_mtoken: Float[Array, "*batch"]  # GPUs and egress
    # what a token was worth of one of synchronous training, in the mean over tokens
    efficiency: Float[Array, "*batch"]
    effective_tokens_per_s: Float[Array, "*batch"]
    usd_per_effective_mtoken: Float[Array, "*batch"]
    replans: Float[Array, "*batch"]  # reconfigurations after the first deployment
    reward: Float[Array, "*batch"]  # mean per interval, as are its parts
    reward_eff: Float[Array, "*batch"]
    reward_util: Float[Array, "*batch"]
    reward_cost: Float[Array, "*batch"]
    reward_fair: Float[Array, "*batch"]


def step_metrics(
    record: IntervalRecord, memory_gb: Float[Array, ""] | Float[Array, " K"]
) -> dict[str, Float[Array, " J"]]:
    """What the steps of each job were like, [J] each: the fields of EpisodeMetrics of these names.

    `memory_gb` is that of a GPU, [K] where the domains' differ.
    """

    def of_job(progress, train_s, cost):  # [T, ...]
        steps = progress / cost.efficiency
        ran = train_s > 0

        def mean(values, over=ran):
            count = over.astype(jnp.float32).sum()
            return jnp.sum(jnp.where(over, values, 0.0)) / jnp.where(count > 0, count, jnp.nan)

        # Not train_s: the budget may be used up before an interval ends.
        busy_s = jnp.where(steps > 0, steps * cost.step_s, 0.0)
        total = jnp.where(steps.sum() > 0, steps.sum(), jnp.nan)
        used = (cost.memory_gb > 0).astype(jnp.float32)
        fullness = (cost.memory_gb / jnp.broadcast_to(memory_gb, used.shape)).sum(axis=1)
        return {
            "step_s": busy_s.sum() / total,
            "step_s_std": jnp.sqrt(mean((cost.step_s - mean(cost.step_s)) ** 2)),
            "memory_utilisation": mean(fullness / jnp.maximum(used.sum(axis=1), 1.0)),
            "comm_to_compute": mean(cost.communication_s / jnp.maximum(cost.compute_s, 1e-9)),
            "overlap": mean(cost.overlap, ran & (cost.wan_busy_s > 0)),
        }

    return jax.vmap(of_job, in_axes=1)(record.progress, record.train_s, record.cost)


def traffic_metrics(
    episode: Episode, params: EnvParams, counts: Bool[Array, " T"] | bool = True
) -> dict[str, Float[Array, ""]]:
    """What the jobs together trained, sent and cost, [] each: the fields of EpisodeMetrics of these
    names, over the intervals that `counts` [T] names."""
    record = episode.record
    counts = jnp.broadcast_to(counts, episode.reward.shape)
    each = jnp.sum(
        jnp.where(counts[:, None], record.progress / record.cost.efficiency, 0.0), axis=0
    )
    steps, tokens = each.sum(), jnp.vdot(each, params.problem.work.tokens_per_step)
    moved_gb = jnp.sum(_where(counts, record.wan_gb + record.migration_gb))
    carried_gb = jnp.sum(_where(counts, episode.bandwidth_gb_per_s)) * params.interval_s
    usd = jnp.sum(_where(counts, record.egress_usd + record.gpu_usd))
    span_s = jnp.sum(counts.astype(jnp.float32)) * params.interval_s
    return {
        "tokens_per_s": tokens / span_s,
        "bandwidth_utilisation": moved_gb / jnp.maximum(carried_gb, 1e-9),
        "wan_gb_per_step": moved_gb / jnp.where(steps > 0, steps, jnp.nan),
        "usd_per_mtoken": usd / (jnp.where(tokens > 0, tokens, jnp.nan) / 1e6),
    }


def _where(counts: Array, values: Array) -> Array:
    """The values [T, ...] of the intervals that count, 0 in the others."""
    return jnp.where(counts.reshape(counts.shape + (1,) * (values.ndim - 1)), values, 0.0)


def episode_metrics(episode: Episode, params: EnvParams) -> EpisodeMetrics:
    """Reduce one episode of a single job; jit-able."""
    record, parts = episode.record, episode.record.reward_parts
    steps = step_metrics(record, params.problem.cluster.gpu.memory_gb)
    traffic, progress = traffic_metrics(episode, params), record.progress[:, 0].sum()
    span_s = episode.reward.shape[0] * params.interval_s
    effective = progress * params.problem.work.tokens_per_step[0] / span_s
    tokens_per_s = traffic["tokens_per_s"]
    efficiency = effective / jnp.where(tokens_per_s > 0, tokens_per_s, jnp.nan)
    return EpisodeMetrics(
        **{name: values[0] for name, values in steps.items()},
        **traffic,
        efficiency=efficiency,
        effective_tokens_per_s=effective,
        usd_per_effective_mtoken=traffic["usd_per_mtoken"] / efficiency,
        progress=progress,
        utilisation=parts.utilisation.mean(),
        replans=jnp.sum(record.switched[1:, 0].astype(jnp.float32)),
        reward=episode.reward.mean(),
        reward_eff=parts.efficiency.mean(),
        reward_util=parts.utilisation.mean(),
        reward_cost=parts.cost.mean(),
        reward_fair=parts.fairness.mean(),
    )
