"""How many plans per second the simulator evaluates, beside other ways to do the same.

One row is one fidelity at one number of domains, with whom to compare it, all in the same run. Here:
the event-exact form, a 7B model in one pipeline, MICRO_BATCHES micro-batches through STAGES stages,
every plan under another network. The closed form is in `experiments.bench.closed`.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxsim.cluster import ClusterSpec, default_calibration
from jaxsim.plan import Plan, Problem, Schedule
from jaxsim.step_time import (
    EventBounds,
    NetworkView,
    StageTimes,
    event_step_cost,
    pipeline_events,
    slot_count,
)
from jaxsim.workload import MODEL_PRESETS, JobSpec, build_workload

MICRO_BATCHES, STAGES = 64, 16
BENCH_GPU = "A100-80GB"  # of the embedded cluster
CHUNK = 512  # plans that a core keeps in its cache
SIMPY_PLANS = 16  # that the discrete-event simulator runs; it is some thousand times slower


@dataclasses.dataclass(frozen=True)
class Fidelity:
    """One way to evaluate plans, prepared for a cluster.

    Attributes:
        function: what to compile and to time, on all devices
        args: its arguments
        evaluations: of a plan under a network, in one call
        peers: repeats -> plans per second of others, None where not measured
        notes: (repeats, evaluations per second) -> more figures for the row
    """

    function: Callable
    args: tuple
    evaluations: int
    peers: Callable[[int], dict[str, float | None]]
    notes: Callable[[int, float], dict[str, Any]]


def bench_plan(n_domains: int) -> Plan:
    """All domains in one pipeline of STAGES stages (more, if there are more domains)."""
    stages = np.full(n_domains, max(STAGES // n_domains, 1), np.int32)
    stages[: max(STAGES - stages.sum(), 0)] += 1
    layers = [max(32 // n_domains, 1)] * n_domains
    order = tuple(range(n_domains))
    plan = Plan.assemble((order,), 1, (1,), [(layers, stages.tolist())], n_domains)
    plan.batch_share[0] = MICRO_BATCHES
    return jax.tree.map(jnp.asarray, plan)


def event_costs(spec: ClusterSpec, plan: Plan, bandwidth: jax.Array) -> jax.Array:
    """[P] [s] of whole plans: compute, memory, sync and traffic, with the pipeline event-exact."""
    cluster = spec.to_arrays()
    work = build_workload([JobSpec(MODEL_PRESETS["llama-7b"], MICRO_BATCHES, 4096)]).job(0)
    problem = Problem(work, cluster, default_calibration(BENCH_GPU))
    stages = max(STAGES, spec.n_domains)
    bounds = EventBounds(stages, MICRO_BATCHES, groups=1, schedules=(Schedule.ONE_F_ONE_B,))

    def cost(links):
        view = NetworkView(links, cluster.rtt_s, cluster.gpus)
        total = event_step_cost(plan, problem, view, bounds)
        # Everything is read, so nothing is compiled away; memory does not decide here.
        parts = (total.compute_s, total.bubble_s, total.exposed_wan_s, total.sync_s)
        return sum(parts) + 0.0 * (total.memory_gb.sum() + total.wan_gb.sum() + total.egress_usd)

    return jax.vmap(cost)(bandwidth)


def event(spec: ClusterSpec, n_plans: int) -> Fidelity:
    """The event-exact form."""
    function, args = plans_on_all_devices(event_costs, spec, n_plans)
    return Fidelity(
        function,
        args,
        n_plans,
        lambda repeats: {"simpy": simpy_per_s()},
        lambda repeats, per_s: event_notes(repeats),
    )


def event_notes(repeats: int) -> dict[str, Any]:
    """The recurrence alone on one device: STAGES stages of given times, CHUNK pipelines at once.

    Every slot must read three clocks and six times of every stage and write the clocks back; that
    divided by the rate at which the device streams arrays of this size bounds it (`bound_per_s`).
    """
    times = _random_times(np.random.default_rng(0), CHUNK)
    one = jnp.ones((1,), jnp.int32)
    args = (times, one * Schedule.ONE_F_ONE_B, one * STAGES, one * MICRO_BATCHES)

    def run(*args):
        return pipeline_events(*args, MICRO_BATCHES, (Schedule.ONE_F_ONE_B,)).total_s

    alone_s = best_s(jax.jit(run).lower(*args).compile(), args, repeats)
    slots = slot_count((Schedule.ONE_F_ONE_B,), STAGES, MICRO_BATCHES)
    bytes_per_plan = 4.0 * 12 * STAGES * slots
    rate = stream_bytes_per_s(repeats)
    return {
        "recurrence_per_s": CHUNK / alone_s,
        "recurrence_bytes_per_plan": bytes_per_plan,
        "stream_gb_per_s": rate / 1e9,
        "recurrence_bound_per_s": rate / bytes_per_plan,
    }


def stream_bytes_per_s(repeats: int) -> float:
    """Rate at which NumPy streams arrays as large as a clock through a core's cache: sums in place,
    two arrays read and one written."""
    x, y = (np.full((STAGES, CHUNK), v, np.float32) for v in (0.0, 1.0))
    rounds, best = 2000, float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(rounds):
            np.add(x, y, out=x)
        best = min(best, time.perf_counter() - start)
    return 3.0 * x.nbytes * rounds / best


def best_s(compiled: Callable, args: tuple, repeats: int) -> float:
    """The fastest of `repeats` calls [s], after one that does not count."""
    jax.block_until_ready(compiled(*args))
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(compiled(*args))
        best = min(best, time.perf_counter() - start)
    return best


def _random_times(rng: np.random.Generator, pipelines: int) -> StageTimes:
    def draw(*shape):
        return jnp.asarray(rng.uniform(0.5, 1.0, shape), jnp.float32)

    per_stage = (STAGES, pipelines)
    return StageTimes(
        *(draw(*per_stage) for _ in range(3)),
        draw(pipelines),
        *(draw(1, *per_stage) for _ in range(2)),
        *(draw(*per_stage) for _ in range(2)),
        jnp.zeros((0, pipelines), jnp.float32),
    )


def simpy_per_s() -> float | None:
    """Steps per second of the discrete-event simulator that the tests compare with: the pipeline
    alone. None outside a checkout or without SimPy."""
    if importlib.util.find_spec("simpy") is None:
        return None
    reference = importlib.import_module("jaxsim.reference.simpy_pipeline")
    times = jax.tree.map(np.asarray, _random_times(np.random.default_rng(0), SIMPY_PLANS))
    steps = [
        reference.Step(
            forward=times.forward_s[:, i].tolist(),
            backward=times.backward_s[:, i].tolist(),
            weight=times.weight_s[:, i].tolist(),
            next_send=times.next_send_s[:, :, i].T.tolist(),
            prev_send=times.prev_send_s[:, :, i].T.tolist(),
            next_latency=times.next_latency_s[:, i].tolist(),
            prev_latency=times.prev_latency_s[:, i].tolist(),
            micro_batches=MICRO_BATCHES,
            schedule="1f1b",
            head=float(times.head_s[i]),
        )
        for i in range(SIMPY_PLANS)
    ]
    start = time.perf_counter()
    for step in steps:
        reference.simulate(step)
    return SIMPY_PLANS / (time.perf_counter() - start)


def plans_on_all_devices(
    costs: Callable[[ClusterSpec, Plan, jax.Array], jax.Array], spec: ClusterSpec, n_plans: int
) -> tuple[Callable, tuple]:
    """A function that evaluates `n_plans` plans spread over all devices, and its arguments; on a CPU
    in chunks that fit the cache."""
    devices = jax.devices()
    shards = len(devices) if n_plans % len(devices) == 0 else 1
    mesh = Mesh(np.array(devices[:shards]), ("plan",))
    local = n_plans // shards
    chunk = CHUNK if devices[0].platform == "cpu" and local % CHUNK == 0 else local
    plan = bench_plan(spec.n_domains)

    def evaluate(bandwidth):
        parts = bandwidth.reshape(-1, chunk, *bandwidth.shape[1:])
        return jax.lax.map(lambda part: costs(spec, plan, part), parts).reshape(-1)

    function = jax.shard_map(
        evaluate, mesh=mesh, in_specs=P("plan"), out_specs=P("plan"), check_vma=False
    )
    base = np.asarray(spec.to_arrays().bandwidth_gb_per_s)
    factor = np.random.default_rng(0).uniform(0.7, 1.3, (n_plans, *base.shape))
    bandwidth = jnp.asarray(base * factor, jnp.float32)
    return function, (jax.device_put(bandwidth, NamedSharding(mesh, P("plan"))),)
