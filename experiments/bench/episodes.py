"""Episodes of one job for timing, in as many environments as are wanted, spread over all devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.bench.plans import BENCH_GPU
from jaxsim.cluster import ClusterSpec, default_calibration, load_cluster, repeat_regions
from jaxsim.env import EnvParams, TimeStep, reset, step
from jaxsim.load import load_process
from jaxsim.network import network_process
from jaxsim.plan import MENU_SCHEDULES, Plan, Problem, default_lower_choices, empty_plan
from jaxsim.workload import MODEL_PRESETS, JobSpec, build_workload

EPISODE = 64  # intervals between resets
CHUNK = 512  # environments a core keeps in its cache


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


def pipeline_plan(n_domains: int, first: int, second: int) -> Plan:
    """A 7B pipeline over two domains, half the layers each."""
    plan = empty_plan(n_domains)
    group, position = np.array(plan.group), np.array(plan.position)
    layers, share, pp = np.array(plan.layers), np.array(plan.batch_share), np.array(plan.pp)
    group[[first, second]], position[second] = 0, 1
    layers[[first, second]], pp[[first, second]], share[0] = 16, 4, 1024
    plan = plan.replace(group=group, position=position, layers=layers, batch_share=share, pp=pp)
    return jax.tree.map(jnp.asarray, plan)


def _of_one_job(plan: Plan) -> Plan:
    return jax.tree.map(lambda x: jnp.stack([x]), plan)


def env_episodes(params: EnvParams, keys: jax.Array) -> jax.Array:
    """Play one episode in every environment, resets included; returns a checksum [B] of all that a
    learner would read (observation, masks, reward, end), so that nothing is compiled away. Neighbours
    hold different plans, as they would under a policy."""
    n_domains = params.initial_plan.group.shape[1]
    plans = [_of_one_job(pipeline_plan(n_domains, *ends)) for ends in ((0, 1), (1, 0))]
    actions = jax.tree.map(lambda *xs: jnp.stack(xs), *plans)

    def episode(key, number):
        state, first = reset(key, params)

        def body(carry, t):
            state, total = carry
            # Switch now and then, so that transitions run and no plan is a constant.
            second = (((t >> 3) + number) & 1) == 1
            action = jax.tree.map(lambda x: jnp.where(second, x[1], x[0]), actions)
            state, timestep = step(key, state, action, params)
            return (state, total + checksum(timestep)), None

        carry = (state, checksum(first))
        return jax.lax.scan(body, carry, jnp.arange(EPISODE, dtype=jnp.int32))[0][1]

    return jax.vmap(episode)(keys, jnp.arange(keys.shape[0]))


def checksum(timestep: TimeStep) -> jax.Array:
    """[] a sum over all that a learner would read."""
    seen = timestep.observation
    parts = (
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
    leaves = (x.astype(jnp.float32).ravel() for x in jax.tree.leaves(parts))
    return sum(jnp.vdot(x, jnp.ones_like(x)) for x in leaves)


def on_all_devices(
    episodes: Callable[[Any, jax.Array], Any], scenario: Any, n_envs: int, chunk: int = CHUNK
) -> tuple[list[tuple[Callable, tuple]], int]:
    """`episodes` of (scenario, keys [B]) with the environments spread over all devices, on a CPU in
    chunks that fit the cache: a function and its arguments per device, and the environments that one
    device computes at once. CPU cores count as devices, see `experiments.bench.main`."""
    devices = jax.devices()
    devices = devices if n_envs % len(devices) == 0 else devices[:1]
    local = n_envs // len(devices)
    chunked = devices[0].platform == "cpu" and local % chunk == 0

    def play(scenario, keys):
        if not chunked:
            return episodes(scenario, keys)
        parts = keys.reshape(-1, chunk)
        out = jax.lax.map(lambda part: episodes(scenario, part), parts)
        return jax.tree.map(lambda x: x.reshape(-1), out)

    keys = jax.random.split(jax.random.key(0), n_envs).reshape(len(devices), local)
    programs = [
        (play, jax.device_put((scenario, mine), device))
        for mine, device in zip(keys, devices, strict=True)
    ]
    return programs, chunk if chunked else local
