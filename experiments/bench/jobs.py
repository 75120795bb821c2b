"""Episodes of many jobs for timing: they arrive, wait for GPUs, train, finish and leave.

Every other job asks for its best plan inside one region, those between for their best over several; the
next job asks for the next region, and each environment begins with another one. That is as cheap as a
rule can be; whoever finds the regions taken waits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from experiments.bench.episodes import EPISODE, checksum
from experiments.common import CheckError, load_regions
from jaxsim.cluster import ClusterSpec
from jaxsim.env import EnvParams, reset, step
from jaxsim.load import JobMix, SubmittedJob, busy_tflop, random_jobs, read_jobs
from jaxsim.plan import Plan
from jaxsim.planning import PARTS, complete, one_view, score_plans
from jaxsim.pytree import Pytree
from jaxsim.scenario import JobsWorld, ScenarioSettings, build_jobs_world, jobs_bank, mean_view
from jaxsim.trees import take

DOMAINS, ENVS = 8, 1024  # if none are asked for
CHUNK = 512  # jobs that a core keeps in its cache
LOAD = {"load_share": 0.25, "load_swing": 0.6}


class JobsCase(Pytree):
    """One scenario and what its jobs ask for."""

    params: EnvParams
    plans: Plan  # [J, K] what each job asks for in each region


class Tally(Pytree):
    """[B] each, of an episode; jobs are counted in every interval, means over intervals."""

    checksum: jax.Array  # of all that a learner would read
    training: jax.Array  # jobs
    waiting: jax.Array  # jobs that have arrived and neither train nor are finished
    finished: jax.Array  # jobs at the end
    overcommitted: jax.Array  # GPUs held beyond the available ones, the most in any region: 0


def regions(cluster: str | None) -> int:
    """How many there are, if nobody says. Raises InputError."""
    return DOMAINS if cluster is None else load_regions(cluster).n_domains


def drawn_jobs(spec: ClusterSpec, count: int) -> tuple[SubmittedJob, ...]:
    """`count` jobs that arrive at random within half an EPISODE of minutes."""
    span_s = 60.0 * EPISODE / 2
    work = busy_tflop(spec.peak_tflops, span_s, count)
    return random_jobs(count, JobMix(span_s=span_s), work, 1.0, np.random.default_rng(0))


def jobs_case(
    cluster: str | None, n_domains: int, jobs: int | str, steps: int | None = None
) -> JobsCase:
    """A scenario with drift, noise and local load on a cluster file's regions, repeated to
    `n_domains`, with a number of drawn jobs or those of a file. `steps` are its intervals: if none
    are given, twice as many as the arrivals take, and at least EPISODE. Raises InputError."""
    spec = load_regions(cluster, n_domains)
    submitted = read_jobs(jobs) if isinstance(jobs, str) else drawn_jobs(spec, jobs)
    arrivals = math.ceil(submitted[-1].spec.arrival_s / ScenarioSettings().interval_s)
    horizon = max(EPISODE, 2 * arrivals) if steps is None else steps
    # For each part of the GPUs every region alone is in a table of this size, and as many over several.
    rows = len(PARTS) * 2 * n_domains
    world = build_jobs_world(spec, submitted, rows)
    bank = jobs_bank(world, ScenarioSettings(horizon=horizon, **LOAD), range(1), "bench")
    params = take(bank[0], 0)
    return JobsCase(params, _region_plans(params, world))


@jax.jit
def _region_plans(params: EnvParams, world: JobsWorld) -> Plan:
    """[J, K] for each job its best plan that uses a region, under mean load: inside it for even jobs,
    over several for odd ones, where there are such; the best of all regions for a region that has
    none."""
    view = mean_view(params)

    def one(work, kind, alone):
        table = take(world.tables, kind)
        problem = params.problem.of(work)
        rate, choice = score_plans(table.plans, one_view(view), problem)
        rate = jnp.where(table.mask, rate[0], 0.0)
        preferred = jnp.where(table.single_domain == alone, rate, 0.0)
        rate = jnp.where(jnp.any(preferred > 0), preferred, rate)
        using = jnp.where(table.plans.group >= 0, rate[:, None], 0.0)  # [P, K]
        rows = jnp.where(jnp.any(using > 0, axis=0), using.argmax(axis=0), rate.argmax())
        plans = take(table.plans, rows)
        finish = jax.vmap(complete, in_axes=(0, 0, None, None))
        return finish(plans, choice[0][rows], problem, view)[0]

    alone = jnp.arange(world.kind.shape[0]) % 2 == 0
    return jax.lax.map(lambda job: one(*job), (params.problem.work, world.kind, alone))


def jobs_episodes(case: JobsCase, keys: jax.Array, steps: int) -> Tally:
    """Play `steps` intervals in every environment [B], each with a network and a load of its own."""
    n_jobs, n_domains = case.plans.group.shape[:2]
    params, jobs = case.params, jnp.arange(n_jobs)

    def episode(key, number):
        state, first = reset(key, params)
        regions = (jobs + number) % n_domains
        action = take(case.plans, (jobs, regions))

        def body(carry, t):
            state, tally = carry
            before = state.steps_done
            state, timestep = step(key, state, action, params)
            held = timestep.record.cost.gpus_used.sum(axis=0) - state.view.gpus_available
            trains = timestep.record.train_s > 0
            arrived = params.problem.work.arrival_s <= t.astype(jnp.float32) * params.interval_s
            there = params.problem.work.mask & arrived & (before < params.problem.work.step_budget)
            tally = Tally(
                checksum=tally.checksum + checksum(timestep),
                training=tally.training + _count(trains) / steps,
                waiting=tally.waiting + _count(there & ~trains) / steps,
                finished=_count(state.steps_done >= params.problem.work.step_budget),
                overcommitted=jnp.maximum(tally.overcommitted, held.max()),
            )
            return (state, tally), None

        none = jnp.float32(0.0)
        tally = Tally(checksum(first), none, none, none, jnp.int32(0))
        return jax.lax.scan(body, (state, tally), jnp.arange(steps, dtype=jnp.int32))[0][1]

    return jax.vmap(episode)(keys, jnp.arange(keys.shape[0]))


def _count(flags: jax.Array) -> jax.Array:
    return jnp.sum(flags.astype(jnp.float32))


def figures(tallies: Sequence[Tally]) -> dict[str, float]:
    """What the environments come to. Raises CheckError where GPUs were given away twice."""
    whole = {
        name: np.concatenate([np.asarray(getattr(tally, name)) for tally in tallies])
        for name in ("training", "waiting", "finished", "overcommitted")
    }
    over = int(whole.pop("overcommitted").max())
    if over > 0:
        raise CheckError(f"bench: jobs held {over} GPUs more in a region than it had")
    return {f"jobs_{name}": float(x.mean()) for name, x in whole.items()} | {"overcommitted": over}
