"""Episodes of one job for timing, in as many environments as are wanted, spread over all devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from experiments.bench.plans import BENCH_GPU
from jaxsim.cluster import ClusterSpec, default_calibration, load_cluster, repeat_regions
from jaxsim.env import EnvParams, State, TimeStep, first_states, step, with_rows
from jaxsim.load import load_process
from jaxsim.network import network_process
from jaxsim.plan import MENU_SCHEDULES, Plan, Problem, default_lower_choices
from jaxsim.pytree import Pytree
from jaxsim.trees import stack_numpy, take
from jaxsim.workload import MODEL_PRESETS, JobSpec, build_workload

EPISODE = 64  # intervals between resets
PLANS = 16  # that the environments choose among
SCENARIOS = 64  # of the bank whose first states are known
CHUNK = 512  # environments of eight domains that a core keeps in its cache
LEAST_CHUNK = 32  # whatever the domains


def env_chunk(n_domains: int) -> int:
    """Environments that a core keeps in its cache: as many links as eight domains have in CHUNK."""
    return max(LEAST_CHUNK, CHUNK * 64 // max(n_domains, 8) ** 2)


def bench_cluster(n_domains: int) -> ClusterSpec:
    """The embedded cluster's regions repeated to any number of domains, for timing alone."""
    return repeat_regions(load_cluster(), n_domains)


def bench_params(n_domains: int) -> EnvParams:
    """One scenario with drift, white noise, latency jitter and background load."""
    cluster = bench_cluster(n_domains).to_arrays()
    return EnvParams(
        problem=Problem(
            build_workload([JobSpec(MODEL_PRESETS["llama-7b"], 1024, 4096)]),
            cluster,
            default_calibration(BENCH_GPU),
            default_lower_choices(),
        ),
        network=network_process(n_domains, white=0.1, latency=0.1, ou_sigma=0.3, ou_tau=50.0),
        load=load_process(n_domains, share=0.25, swing=0.2),
        initial_plan=_of_one_job(pipeline_plan(n_domains, 0, 1)),
        progress_ref=jnp.ones((1,), jnp.float32),
        weights=jnp.asarray([1.0, 0.1, 0.1, 0.1], jnp.float32),
        interval_s=jnp.float32(60.0),
        horizon=jnp.int32(EPISODE),
        schedules=MENU_SCHEDULES,
    )


def pipeline_plan(n_domains: int, *members: int) -> Plan:
    """A 7B pipeline over some domains, as many layers in each."""
    size = len(members)
    split = [32 // size] * size, [4] * size
    plan = Plan.assemble((members,), 1, (1,), [split], n_domains)
    plan.batch_share[0] = 1024
    return jax.tree.map(jnp.asarray, plan)


def _of_one_job(plan: Plan) -> Plan:
    return jax.tree.map(lambda x: jnp.stack([x]), plan)


def bench_plans(n_domains: int) -> Plan:
    """PLANS pipelines over two domains and over four [P, ...], beginning in every domain by turns."""
    plans = []
    for number in range(PLANS):
        size = min(2 + 2 * (number % 2), n_domains)
        plans.append(pipeline_plan(n_domains, *((number + i) % n_domains for i in range(size))))
    return stack_numpy(plans)


class EnvCase(Pytree):
    """What the environments play."""

    params: EnvParams
    first: tuple[State, TimeStep]  # [N, ...] first states of the scenarios
    plans: Plan  # [P, 1, ...]


def env_case(n_domains: int, prepared: bool) -> EnvCase:
    """A bank of SCENARIOS; `prepared`: actions are numbers of rows, else plans."""
    params, plans = bench_params(n_domains), bench_plans(n_domains)
    params = with_rows(params, plans) if prepared else params
    first = first_states(jax.random.split(jax.random.key(0), SCENARIOS), params)
    return EnvCase(params, first, jax.tree.map(lambda x: jnp.asarray(x)[:, None], plans))


def env_episodes(case: EnvCase, numbers: jax.Array) -> jax.Array:
    """Play one episode in every environment, numbers [B], resets included; returns a checksum [B] of
    all that a learner would read (observation, masks, reward, end), so that nothing is compiled away.
    Neighbours hold different plans, as they would under a policy."""

    def episode(number):
        state, first = take(case.first, number % SCENARIOS)

        def body(carry, t):
            state, total = carry
            # Switch now and then, so that transitions run and no plan is a constant.
            row = (number + (t >> 3)) % PLANS
            action = take(case.plans, row)
            if case.params.rows is not None:
                action = row[None]
            state, timestep = step(state.key, state, action, case.params)
            return (state, total + checksum(timestep)), None

        carry = (state, checksum(first))
        return jax.lax.scan(body, carry, jnp.arange(EPISODE, dtype=jnp.int32))[0][1]

    return jax.vmap(episode)(numbers)


def learner_reads(timestep: TimeStep) -> tuple:
    """All that a learner would read of a step."""
    seen = timestep.observation
    return (
        seen.graph.nodes,
        seen.graph.edges,
        seen.job_nodes,
        seen.mask,
        seen.moving,
        seen.since_switch,
        timestep.reward,
        timestep.terminated,
        timestep.truncated,
    )


def checksum(timestep: TimeStep) -> jax.Array:
    """[] a sum over all that a learner would read."""
    leaves = (x.astype(jnp.float32).ravel() for x in jax.tree.leaves(learner_reads(timestep)))
    return sum(jnp.vdot(x, jnp.ones_like(x)) for x in leaves)


def env_programs(case: EnvCase, n_envs: int) -> tuple[list[tuple[Callable, tuple]], int]:
    """`env_episodes` on all devices."""
    n_domains = case.params.problem.cluster.mask.shape[0]
    numbers = jnp.arange(n_envs, dtype=jnp.int32)
    return on_all_devices(env_episodes, case, numbers, env_chunk(n_domains))


def on_all_devices(
    episodes: Callable[[Any, jax.Array], Any], scenario: Any, each: jax.Array, chunk: int
) -> tuple[list[tuple[Callable, tuple]], int]:
    """`episodes` of (scenario, `each` [B]) with the environments spread over all devices, on a CPU in
    chunks that fit the cache: a function and its arguments per device, and the environments that one
    device computes at once. CPU cores count as devices, see `experiments.bench.main`."""
    devices = jax.devices()
    n_envs = each.shape[0]
    devices = devices if n_envs % len(devices) == 0 else devices[:1]
    local = n_envs // len(devices)
    chunk = min(chunk, local)
    chunked = devices[0].platform == "cpu" and local % chunk == 0

    def play(scenario, each):
        if not chunked:
            return episodes(scenario, each)
        parts = each.reshape(-1, chunk)
        out = jax.lax.map(lambda part: episodes(scenario, part), parts)
        return jax.tree.map(lambda x: x.reshape(-1), out)

    programs = [
        (play, jax.device_put((scenario, mine), device))
        for mine, device in zip(each.reshape(len(devices), local), devices, strict=True)
    ]
    return programs, chunk if chunked else local
