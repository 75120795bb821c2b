"""How many plans per second the closed form evaluates from a table (`jaxsim.planning.exact.costs`).

Random plans of a 7B model, all of different shape, under random networks: one evaluation is one plan
under one network, and every figure of its cost is read. Beside it, in the same run: the closed form
without a table, the table evaluated by NumPy, and the discrete-event simulator of the tests.
"""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from experiments.bench.plans import Fidelity, best_s, simpy_per_s, stream_bytes_per_s
from jaxsim.cluster import ClusterSpec
from jaxsim.plan import Plan, Problem, default_lower_choices
from jaxsim.planning import make_plan
from jaxsim.planning.exact import LinkTimes, PlanCostTable, build_cost_table, link_times, plan_costs
from jaxsim.step_time import NetworkView, job_step_cost
from jaxsim.trees import stack_numpy
from jaxsim.workload import MODEL_PRESETS, JobSpec, Workload, build_workload

NETWORKS = 64  # that every plan is evaluated under
DIRECT_PLANS, NUMPY_NETWORKS = 512, 2  # less of what is slower


def random_plans(spec: ClusterSpec, n_plans: int, work: Workload, seed: int = 0) -> Plan:
    """Complete plans [P, ...]: any domains in any order and groups, the layers spread evenly, any
    tensor and data parallelism that their GPUs allow, and any of the menu's lower choices."""
    rng = np.random.default_rng(seed)
    gpus, layers, batch = np.asarray(spec.gpus), int(work.layers), int(work.global_batch)
    menu = jax.tree.map(np.asarray, default_lower_choices())
    plans = []
    while len(plans) < n_plans:
        order = rng.permutation(spec.n_domains)[: rng.integers(1, spec.n_domains + 1)].tolist()
        ends = np.flatnonzero(rng.random(len(order) - 1) < 0.3) + 1
        layout = tuple(tuple(g.tolist()) for g in np.split(np.array(order), ends))
        dps = tuple(int(d) for d in 2 ** rng.integers(0, 3, len(layout)))
        plan = make_plan(layout, (int(2 ** rng.integers(0, 4)), dps), gpus, layers, spec.n_domains)
        if plan is None:
            continue
        choice = rng.integers(menu.micro_batch.size)
        names = ("micro_batch", "recompute", "schedule")
        free = {name: np.full_like(plan.dp, getattr(menu, name)[choice]) for name in names}
        each = batch // len(layout) // (np.asarray(plan.dp) * free["micro_batch"])
        share = np.where(np.arange(spec.n_domains) < len(layout), np.maximum(each, 1), 0)
        plans.append(plan.replace(batch_share=share.astype(np.int32), **free))
    return stack_numpy(plans)


def closed(spec: ClusterSpec, n_plans: int) -> Fidelity:
    """The closed form from a table of `n_plans` plans, spread over all devices."""
    cluster, calibration = spec.to_arrays(), spec.calibration
    work = build_workload([JobSpec(MODEL_PRESETS["llama-7b"], 1024, 4096)]).job(0)
    problem = Problem(work, cluster, calibration, default_lower_choices())
    plans = random_plans(spec, n_plans, work)
    build_cost_table(plans, problem)  # compiles
    start = time.perf_counter()
    table = build_cost_table(plans, problem)
    build_s = time.perf_counter() - start
    factor = np.random.default_rng(1).uniform(0.7, 1.3, (2, NETWORKS, *cluster.rtt_s.shape))
    networks = tuple(
        jnp.asarray(np.asarray(base) * by, jnp.float32)
        for base, by in zip((cluster.bandwidth_gb_per_s, cluster.rtt_s), factor, strict=True)
    )

    def links(network: tuple[jax.Array, jax.Array]) -> LinkTimes:
        return link_times(*network, calibration)

    def costs(table, networks):  # [W, P]
        return jax.lax.map(lambda network: _read(plan_costs(table, links(network))), networks)

    def direct(plans, networks):  # [W, P]
        def one(plan, network):
            view = NetworkView(*network, cluster.gpus)
            cost = job_step_cost(plan, problem, view, schedules=problem.choices.schedules)
            wan = cost.wan_gb.sum() + cost.egress_usd + cost.wan_busy_s
            return cost.step_s + cost.exposed_wan_s + cost.sync_s + wan

        return jax.lax.map(lambda w: jax.vmap(one, (0, None))(plans, w), networks)

    def peers(repeats: int) -> dict[str, float | None]:
        few = jax.tree.map(lambda x: jnp.asarray(x[: min(DIRECT_PLANS, n_plans)]), plans)
        args = (few, tuple(x[:4] for x in networks))
        first = [links(_nth(networks, i)) for i in range(NUMPY_NETWORKS)]
        without_s = best_s(jax.jit(direct).lower(*args).compile(), args, repeats)
        return {
            "closed form without a table, one core": 4 * few.group.shape[0] / without_s,
            "numpy, one core": _numpy_per_s(table, first, repeats),
            "simpy, one core": simpy_per_s(),
        }

    def notes(repeats: int, per_s: float) -> dict[str, float]:
        rate = stream_bytes_per_s(repeats)
        lookups_s = _lookups_s(table, links(_nth(networks, 0)), repeats)
        devices = len(jax.devices())
        return {
            "plans_in_table": n_plans,
            "table_build_s": build_s,
            "table_bytes_per_plan": table.bytes_per_plan,
            "stream_gb_per_s": rate / 1e9,
            "bytes_bound_per_s": devices * rate / table.bytes_per_plan,
            "lookups_per_plan": 3 * table.link.shape[0] + 2 * table.ring.shape[0],
            "lookups_bound_per_s": devices * n_plans / lookups_s,
        }

    function, args = _on_all_devices(costs, table, networks)
    return Fidelity(function, args, n_plans * NETWORKS, peers, notes)


def _read(costs) -> jax.Array:
    """[P] all figures, so that none is compiled away."""
    return sum(jax.tree.leaves(costs))


def _nth(networks: tuple, i: int) -> tuple:
    return tuple(x[i] for x in networks)


def _on_all_devices(costs, table: PlanCostTable, networks: tuple) -> tuple:
    """The plans of the table divided among the devices; every device has all networks."""
    devices = jax.devices()
    shards = len(devices) if table.size % len(devices) == 0 else 1
    mesh = Mesh(np.array(devices[:shards]), ("plan",))
    rows = jax.tree.map(lambda x: P(*[None] * (x.ndim - 1), "plan"), table)
    function = jax.shard_map(
        costs, mesh=mesh, in_specs=(rows, P()), out_specs=P(None, "plan"), check_vma=False
    )
    split = jax.tree.map(lambda spec: NamedSharding(mesh, spec), rows)
    return function, jax.device_put((table, networks), (split, NamedSharding(mesh, P())))


def _numpy_per_s(table: PlanCostTable, networks: list[LinkTimes], repeats: int) -> float:
    """The same formulas on the same table, vectorised over the plans by NumPy."""
    table, networks = jax.tree.map(np.asarray, (table, networks))
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        for network in networks:
            _read(plan_costs(table, network, np))
        best = min(best, time.perf_counter() - start)
    return len(networks) * table.size / best


def _lookups_s(table: PlanCostTable, links: LinkTimes, repeats: int) -> float:
    """[s] on one device for nothing but what a network is read for: a number per link, by index."""

    def lookups(table, links):
        tables = [(links.inverse, k) for k in table.link] + [
            (links.inverse_back, k) for k in table.link
        ]
        tables += [(links.both_ways_s, k) for k in table.link]
        tables += [(x, k) for k in table.ring for x in (links.ring_inverse, links.ring_latency_s)]
        return sum(x.at[k].get(mode="promise_in_bounds") for x, k in tables)

    return best_s(jax.jit(lookups).lower(table, links).compile(), (table, links), repeats)
