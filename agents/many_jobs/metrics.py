"""What an episode of many jobs comes to, for each of them and for the cluster."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from agents.episodes import Episode, step_metrics, traffic_metrics
from jaxsim.env import EnvParams
from jaxsim.planning import choice_rates
from jaxsim.pytree import Pytree
from jaxsim.scenario import JobsWorld
from jaxsim.step_time import NetworkView
from jaxsim.trees import take

DONE = 1.0 - 1e-5  # of the budget: the sum over intervals is rounded


class JobMetrics(Pytree):
    """[J] each, [] where it says so; NaN for padding and for jobs that arrive after the end."""

    # [s] from arrival to completion, charged where the job is not finished
    jct_s: Float[Array, "*batch J"]
    jct_normalised: Float[Array, "*batch J"]  # the same in units of what the job would need alone
    queueing_s: Float[Array, "*batch J"]  # [s] from arrival until it trains for the first time
    finished: Float[Array, "*batch J"]  # 1 or 0
    progress: Float[Array, "*batch J"]  # [training steps]
    moves: Float[Array, "*batch J"]  # reconfigurations after the first deployment
    # as in `EpisodeMetrics`, to overlap: of each job, NaN where it never trained
    step_s: Float[Array, "*batch J"]
    step_s_std: Float[Array, "*batch J"]
    memory_utilisation: Float[Array, "*batch J"]
    comm_to_compute: Float[Array, "*batch J"]
    overlap: Float[Array, "*batch J"]
    # [s] from the first arrival to the last completion, NaN if one is missing
    makespan_s: Float[Array, "*batch"]
    # useful / peak FLOPs of the available GPUs, while somebody is there
    utilisation: Float[Array, "*batch"]
    # of all jobs together, as the next three: while somebody is there
    tokens_per_s: Float[Array, "*batch"]
    bandwidth_utilisation: Float[Array, "*batch"]
    wan_gb_per_step: Float[Array, "*batch"]  # [GB] per training step of whichever job
    usd_per_mtoken: Float[Array, "*batch"]
    # Jain's index of jct_normalised: 1 = all alike, 1 / J = one has all
    fairness: Float[Array, "*batch"]
    # GPUs held beyond the available ones, the most in any domain: 0
    overcommitted: Int[Array, "*batch"]


def job_metrics(
    episode: Episode, params: EnvParams, alone_s: Float[Array, " J"], available: Int[Array, "T K"]
) -> JobMetrics:
    """Reduce one episode of T intervals; jit-able. `alone_s` [J] is `completion_alone_s`, and
    `available` [T, K] the GPUs that local jobs left.

    A job that is not finished is charged the time it has been there, and for the rest of its work
    what it would need alone: less than any scheduler could.
    """
    record, interval_s = episode.record, params.interval_s
    progress, train_s = record.progress, record.train_s
    length = progress.shape[0]
    begins_s = jnp.arange(length, dtype=jnp.float32) * interval_s
    arrival_s, budget = params.problem.work.arrival_s, params.problem.work.step_budget
    counts = params.problem.work.mask & (arrival_s < length * interval_s)

    share = jnp.cumsum(progress, axis=0) / budget[None]
    complete = share >= DONE
    finished = jnp.any(complete, axis=0)
    busy_s = jnp.where(progress > 0, progress * record.cost.step_s / record.cost.efficiency, 0.0)
    # Training fills the end of an interval; the budget may be used up before.
    ends_s = begins_s[:, None] + (interval_s - train_s) + busy_s
    finish_s = _at_first(complete, ends_s)
    trains = train_s > 0
    starts_s = jnp.where(
        jnp.any(trains, axis=0),
        _at_first(trains, begins_s[:, None] + interval_s - train_s),
        length * interval_s,
    )
    charged_s = length * interval_s + (1.0 - share[-1]) * alone_s
    jct_s = jnp.where(finished, finish_s, charged_s) - arrival_s
    relative = jct_s / alone_s

    there = counts[None] & (begins_s[:, None] + interval_s > arrival_s[None])
    there = jnp.any(there & ~jnp.concatenate([jnp.zeros_like(complete[:1]), complete[:-1]]), axis=1)
    first_s = jnp.min(jnp.where(counts, arrival_s, jnp.inf))
    last_s = jnp.max(jnp.where(counts, finish_s, -jnp.inf))
    # A first deployment is no move: the job held nothing before.
    deployments = jnp.any(record.switched, axis=0).astype(jnp.float32)
    held = jnp.sum(record.cost.gpus_used, axis=1)
    steps = step_metrics(record, params.problem.cluster.gpu.memory_gb)

    def of_jobs(values):
        return jnp.where(counts, values.astype(jnp.float32), jnp.nan)

    return JobMetrics(
        **{name: of_jobs(values) for name, values in steps.items()},
        **traffic_metrics(episode, params, there),
        jct_s=of_jobs(jct_s),
        jct_normalised=of_jobs(relative),
        queueing_s=of_jobs(starts_s - arrival_s),
        finished=of_jobs(finished),
        progress=of_jobs(progress.sum(axis=0)),
        moves=of_jobs(record.switched.astype(jnp.float32).sum(axis=0) - deployments),
        makespan_s=jnp.where(jnp.all(finished | ~counts), last_s - first_s, jnp.nan),
        utilisation=jnp.mean(record.reward_parts.utilisation, where=there),
        fairness=jain_index(relative, counts),
        overcommitted=jnp.maximum(jnp.max(held - available), 0),
    )


def utilisation_alone(
    params: EnvParams, alone_s: Float[Array, " J"], available: Int[Array, "T K"]
) -> Float[Array, ""]:
    """[] useful over peak FLOPs of the available GPUs while somebody is there, at most 1, if every job
    had the cluster to itself from its arrival on.

    The work of all jobs that arrive, over the intervals that no scheduler can do without. Where GPUs
    come and go it is of the fewest, so that it bounds every scheduler's.
    """
    jobs, cluster, interval_s = params.problem.work, params.problem.cluster, params.interval_s
    begins_s = jnp.arange(available.shape[0], dtype=jnp.float32) * interval_s
    counts = jobs.mask & (jobs.arrival_s < available.shape[0] * interval_s)
    there = counts[None] & (begins_s[:, None] + interval_s > jobs.arrival_s[None])
    there = there & (begins_s[:, None] < jobs.arrival_s[None] + alone_s[None])
    needed_s = interval_s * jnp.sum(jnp.any(there, axis=1).astype(jnp.float32))
    work_tflop = jnp.sum(jnp.where(counts, jobs.step_budget * jobs.useful_tflop, 0.0))
    peak = jax.vmap(cluster.peak_tflops)(available)
    return jnp.minimum(work_tflop / jnp.maximum(needed_s * peak.min(), 1e-9), 1.0)


def jain_index(values: Array, counts: Array) -> Array:
    """[] (sum x)^2 / (n sum x^2) of the values [J] that count (Jain, Chiu and Hawe 1984)."""
    x = jnp.where(counts, values, 0.0)
    n = jnp.maximum(jnp.sum(counts.astype(jnp.float32)), 1.0)
    return jnp.sum(x) ** 2 / (n * jnp.maximum(jnp.sum(x**2), 1e-30))


def completion_alone_s(
    params: EnvParams, world: JobsWorld, views: NetworkView
) -> Float[Array, " J"]:
    """[J] [s] from arrival to completion if the job had the cluster to itself, with the best plan
    of its table in every interval and no cost of moving: what no scheduler can beat.

    `views` [T + 1, ...] are those of the scenario, GPUs [K] where they are the same in all of them;
    beyond the last, the mean rate goes on.
    """
    n_kinds, gpus = world.tables.mask.shape[0], views.gpus_available
    later = views.replace(
        bandwidth_gb_per_s=views.bandwidth_gb_per_s[1:],
        rtt_s=views.rtt_s[1:],
        gpus_available=gpus if gpus.ndim == 1 else gpus[1:],
    )

    def best_rate(kind):
        work = params.problem.work.job(jnp.argmax(world.kind == kind))
        table = take(world.tables, kind)
        rate = choice_rates(table.plans, later, params.problem.of(work), table.pairs)
        return jnp.where(table.mask[None, :, None], rate, 0.0).max(axis=(1, 2))

    rates = jax.lax.map(best_rate, jnp.arange(n_kinds))  # [U, T]
    work = params.problem.work
    done_s = jax.vmap(completion_s, in_axes=(0, 0, 0, None))
    return done_s(rates[world.kind], work.arrival_s, work.step_budget, params.interval_s)


def completion_s(
    rate: Float[Array, " T"],
    arrival_s: Float[Array, ""],
    budget: Float[Array, ""],
    interval_s: Float[Array, ""] | float,
) -> Float[Array, ""]:
    """[s] from arrival until `budget` training steps are done at `rate` [T] [1/s] in each interval;
    beyond the last, the mean rate goes on."""
    begins_s = jnp.arange(rate.shape[0], dtype=jnp.float32) * interval_s
    steps = jnp.cumsum(rate * jnp.clip(begins_s + interval_s - arrival_s, 0.0, interval_s))
    complete = steps >= budget
    ends_s = begins_s + interval_s - (steps - budget) / jnp.maximum(rate, 1e-30)
    beyond_s = (budget - steps[-1]) / jnp.maximum(jnp.mean(rate), 1e-30)
    within_s = _at_first(complete[:, None], ends_s[:, None])[0]
    end_s = jnp.where(jnp.any(complete), within_s, begins_s[-1] + interval_s + beyond_s)
    return end_s - arrival_s


def _at_first(happens: Array, values: Array) -> Array:
    """[J] the value [T, J] in the first interval in which `happens` [T, J]."""
    first = jnp.argmax(happens, axis=0)
    return jnp.take_along_axis(values, first[None], axis=0)[0]
