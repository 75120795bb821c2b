"""How long one decision takes at batch 1, from a measurement on the host to a plan on the host.

Two kinds: schedulers that score a prepared table of plans (the shipped policy level by level, and its
rivals), and the exact search over a whole family, as often as a network changes and
with the switch paid over HORIZON intervals. What is prepared once is timed apart. The search stands for
itself: `replan_oracle` is exact over its table, of which it takes the best row.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agents import registry
from agents.hi_ppo import (
    HiPPO,
    decide_lower,
    init_filter,
    init_statistics,
    measure,
    score_upper,
    update_filter,
    update_statistics,
)
from agents.oracles import Truth
from agents.protocol import Scheduler, Setup, make_setup
from agents.staying import first_layouts
from jaxsim.cluster import ClusterSpec
from jaxsim.env import reset
from jaxsim.plan import Problem
from jaxsim.planning import PlanFamily
from jaxsim.planning.exact import ExactSearch
from jaxsim.scenario import ScenarioSettings, build_world, sample_views, scenario_bank
from jaxsim.trees import take
from jaxsim.workload import MODEL_PRESETS, JobSpec, build_workload

# What the planner of Sailor (Strati et al., SOSP 2025) was timed on, and a model of today.
GPUS, DOMAINS, MODEL, GLOBAL_BATCH = 256, 5, "llama-70b", 1024
HORIZON, INTERVAL_S = 10.0, 60.0
LAYOUTS = 5000  # of the family: as many domains per plan as that allows
RIVALS = ("best_static", "hysteresis", "self_tuning_hysteresis", "replan_oracle")
CALLS, SEARCHES = 40, 8  # timed decisions per repeat


def decision(spec: ClusterSpec, repeats: int, gpus: int = GPUS, model: str = MODEL) -> dict:
    """The figures of `bench --what decision` on a cluster whose domains have `gpus` GPUs each."""
    nodes = tuple(min(n, gpus) for n in spec.gpus_per_node)
    spec = dataclasses.replace(spec, gpus=(gpus,) * spec.n_domains, gpus_per_node=nodes)
    job = JobSpec(MODEL_PRESETS[model], GLOBAL_BATCH, 4096)
    start = time.perf_counter()
    world, info = build_world(spec, job, layout_limit=500)
    table_s = time.perf_counter() - start
    settings = ScenarioSettings(horizon=1, interval_s=INTERVAL_S)
    params, keys = scenario_bank(world, settings, range(1), "bench")
    one, key = take((params, keys), 0)
    _, timestep = jax.jit(reset)(key, one)
    observation = jax.tree.map(np.asarray, timestep.observation)
    setup = make_setup(one, world.table)
    start = time.perf_counter()
    ways = scheduler_decisions(setup, observation)
    compile_s = time.perf_counter() - start
    taken = {name: latencies_ms(way, CALLS * repeats) for name, way in ways.items()}
    p50, p99 = ({n: float(np.percentile(x, q)) for n, x in taken.items()} for q in (50, 99))
    found = search_decisions(spec, job, world.problem.calibration, SEARCHES * repeats)
    peers = {name: 1e3 / p50[name] for name in RIVALS}
    return {
        "per_s": 1e3 / p50["hi_ppo"],
        "compile_s": compile_s,
        "p50_ms": p50["hi_ppo"],
        "p99_ms": p99["hi_ppo"],
        "upper_p99_ms": p99["upper"],
        "lower_p99_ms": p99["lower"],
        "gpus_per_domain": gpus,
        "model": model,
        "table_prepare_s": table_s,
        "plans_in_table": info.plans_in_table,
        **found,
        "peers": {**peers, "exact search": 1e3 / found["search_p50_ms"]},
    }


def scheduler_decisions(setup: Setup, observation) -> dict[str, Callable[[], Any]]:
    """Compiled decisions of the shipped policy, whole and level by level, and of rivals: functions
    that take an observation from the host and return what they decided there. What a scheduler
    computes once, when it is bound, lies ready."""
    ours = registry.make("hi_ppo", setup)
    ways = {"upper": (_upper, ours), "lower": (_lower, ours), "hi_ppo": (_whole, ours)}
    ways |= {name: (_whole, registry.make(name, setup)) for name in RIVALS}
    out = {}
    for name, (way, scheduler) in ways.items():
        start = (way, jax.device_put(scheduler), observation)
        out[name] = lambda start=start: jax.device_get(start[0](*start[1:]))
        out[name]()  # compile
    return out


@jax.jit
def _whole(scheduler: Scheduler, observation):
    """[1] the plan, both levels decided."""
    memory = scheduler.init(jax.random.key(0))
    # An oracle sees the coming interval as well: here it equals the one measured.
    views = jax.tree.map(lambda x: jnp.stack([x, x]), observation.view)
    truth = (Truth(views, None, None, None, None, None),) if scheduler.oracle else ()
    return scheduler.decide(jax.random.key(1), observation, memory, *truth)[0]


@jax.jit
def _upper(ours: HiPPO, observation):
    """[] int32 row."""
    measured, _ = measure(
        ours.setup, observation, ours.reference, first_layouts(ours.setup), ours.allowed
    )
    fresh = init_statistics(ours.reference)
    stats = update_statistics(fresh, measured.rates.max(axis=-1), measured.lost)
    networks = (ours.setup, ours.policy, ours.networks, observation)
    return jnp.argmax(score_upper(*networks, stats, fresh.last, ours.reference, measured))


@jax.jit
def _lower(ours: HiPPO, observation):
    """[1] the plan of the row in force."""
    measured, _ = measure(
        ours.setup, observation, ours.reference, first_layouts(ours.setup), ours.allowed
    )
    filtered = update_filter(init_filter(ours.setup.prior), observation.view)
    networks = (ours.setup, ours.policy, ours.networks, observation)
    return decide_lower(*networks, measured, filtered, measured.row)


def latencies_ms(decide: Callable[[], Any], calls: int) -> np.ndarray:
    """[calls] [ms], after two calls that do not count."""
    taken = []
    for _ in range(calls + 2):
        start = time.perf_counter()
        decide()
        taken.append(1e3 * (time.perf_counter() - start))
    return np.array(taken[2:])


def search_decisions(
    spec: ClusterSpec, job: JobSpec, calibration, calls: int
) -> dict[str, float | int]:
    """Exact decisions under as many networks, each from the plan that the last one left in force."""
    cluster, work = spec.to_arrays(), build_workload([job]).job(0)
    family = PlanFamily.within(spec.n_domains, LAYOUTS)
    start = time.perf_counter()
    search = ExactSearch(Problem(work, cluster, calibration), family)
    search.prepare(cluster.gpus)
    prepare_s = time.perf_counter() - start
    views = jax.tree.map(np.asarray, sample_views(cluster, calls + 2, seed=1))
    plan, scored, most = None, 0, {}

    def decide(w):
        nonlocal plan, scored
        view = jax.tree.map(lambda x: jnp.asarray(x[w]), views)
        found = search.best(view, plan, HORIZON * INTERVAL_S)
        plan, scored = found.plan, max(scored, found.plans_scored)
        most.update(covered=found.plans_covered, family=found.plans_in_family)

    networks = iter(range(calls + 2))
    taken = latencies_ms(lambda: decide(next(networks)), calls)
    return {
        "search_p50_ms": float(np.percentile(taken, 50)),
        "search_p99_ms": float(np.percentile(taken, 99)),
        "search_prepare_s": prepare_s,
        "search_plans_scored_most": scored,
        "search_plans_covered": most["covered"],
        "search_plans_in_family": most["family"],
    }
