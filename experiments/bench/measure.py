"""One measurement of speed: the cases, each compiled and timed, and the table of them."""

from __future__ import annotations

import dataclasses
import functools
import os
import platform
import resource
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from agents.hi_ppo import Trainer, TrainSettings, make_tape
from agents.hi_ppo.exact import ExactTrainer, record
from analysis.records import RunWriter
from experiments.bench import decision as bench_decision
from experiments.bench import jobs as bench_jobs
from experiments.bench.closed import closed
from experiments.bench.config import BenchConfig
from experiments.bench.episodes import (
    EPISODE,
    bench_cluster,
    env_case,
    env_programs,
    on_all_devices,
)
from experiments.bench.plans import event
from experiments.bench.roofline import roofline
from experiments.bench.watching import DOMAINS as WATCHED
from experiments.bench.watching import watching
from experiments.common import add_options, check_output, put_result
from jaxsim.scenario import ScenarioSettings, build_world, scenario_bank
from jaxsim.workload import MODEL_PRESETS, JobSpec

DOMAINS = (4, 8, 16, 32, 64)
ENVS = (1, 64, 1024, 8192)
# Of the CPU's compiler, for `env` alone: loops over [K, K] as one loop that fills vector registers,
# registers as wide as they come, and short sums as loops of its own, not calls of a library. 2.5 times
# the steps; training and plans gain nothing from it.
ENV_OPTIONS = (
    "--xla_backend_extra_options=xla_cpu_flatten_after_fusion",
    "--xla_cpu_prefer_vector_width=512",
    "--xla_cpu_experimental_ynn_fusion_type=-LIBRARY_FUSION_TYPE_REDUCE",
)
FIDELITIES = {"closed": closed, "event": event}
BUDGET_BYTES = 6e9  # of the largest case: state, params and observation of all environments


def timed(programs: list[tuple[Callable, tuple]], repeats: int) -> dict[str, Any]:
    """Compile and time functions that start together, one per device: seconds to compile the first
    (the others are the same program), fastest call of all, FLOPs that were compiled in one, and what
    the functions returned."""
    compiled, compile_s = [], None
    for function, args in programs:
        start = time.perf_counter()
        compiled.append((jax.jit(function).lower(*args).compile(), args))
        compile_s = time.perf_counter() - start if compile_s is None else compile_s
    best = float("inf")
    for _ in range(repeats + 1):
        start = time.perf_counter()
        outputs = jax.block_until_ready([program(*args) for program, args in compiled])
        best = min(best, time.perf_counter() - start)
    cost = compiled[0][0].cost_analysis() or {}
    flops = cost.get("flops")
    return {"compile_s": compile_s, "best_s": best, "flops": flops, "outputs": outputs}


def bench_env(n_domains: int, n_envs: int, repeats: int, peers: bool) -> dict[str, Any]:
    """One row of the table for the environment: actions are rows of prepared plans; beside it, where
    `peers`, the same episodes with actions that are plans."""
    case = env_case(n_domains, prepared=True)
    programs, at_once = env_programs(case, n_envs)
    row = _env_row(n_domains, n_envs, 1, EPISODE, at_once, timed(programs, repeats))
    row |= {"actions": "rows", **roofline(case, n_envs, repeats)}
    bounds = [row[f"{name}_bound_per_s"] for name in ("flops", "draws", "bytes")]
    row["roofline_share"] = row["per_s"] / min(x for x in bounds if x)
    if peers:
        programs, _ = env_programs(env_case(n_domains, prepared=False), n_envs)
        general = timed(programs, repeats)
        row["peers"] = {"actions that are plans": n_envs * EPISODE / general["best_s"]}
        row["peers_compile_s"] = general["compile_s"]
    return row


def bench_many_jobs(
    n_domains: int, n_envs: int, repeats: int, case: bench_jobs.JobsCase
) -> dict[str, Any]:
    """One row of the table for environments with many jobs, and what became of these."""
    steps, n_jobs = int(case.params.horizon), case.plans.group.shape[0]
    episodes = functools.partial(bench_jobs.jobs_episodes, steps=steps)
    chunk = max(1, bench_jobs.CHUNK // n_jobs)
    keys = jax.random.split(jax.random.key(0), n_envs)
    programs, at_once = on_all_devices(episodes, case, keys, chunk)
    result = timed(programs, repeats)
    row = _env_row(n_domains, n_envs, n_jobs, steps, at_once, result)
    return {**row, "steps": steps, **bench_jobs.figures(result["outputs"])}


def _env_row(n_domains: int, n_envs: int, n_jobs: int, steps: int, at_once: int, result: dict):
    """The figures that environments have in common, whatever they play for `steps` intervals."""
    flops = result["flops"]
    return {
        "what": "env",
        "domains": n_domains,
        "envs": n_envs,
        "jobs": n_jobs,
        "per_s": n_envs * steps / result["best_s"],
        "compile_s": result["compile_s"],
        # The compiler counts a loop's body once: a reset and one step of one device's chunk.
        "flops_per_step": None if flops is None else flops / at_once,
        "peak_memory_gb": peak_memory_gb(),
        "device": device(),
    }


def bench_train(n_domains: int, n_envs: int, repeats: int) -> dict[str, Any]:
    """One row of the table for training by PPO: play, advantage and both updates; the exact gradient's
    intervals per second beside it, each of which is seen from every row of the table."""
    settings = ScenarioSettings(base_spread=0.25, horizon=EPISODE)
    job = JobSpec(MODEL_PRESETS["llama-7b"], 1024, 4096)
    world, _ = build_world(bench_cluster(n_domains), job, 48, layout_limit=500)
    params, keys = scenario_bank(world, settings, range(16), "bench")

    def recorded(one):
        of_bank = jax.jit(jax.vmap(functools.partial(one, horizon=EPISODE), (0, None, 0)))
        return of_bank(params, world.table, keys)

    training, seed = TrainSettings(envs=n_envs), jnp.zeros((1,), jnp.uint32)
    tapes = recorded(functools.partial(make_tape, networks=training.networks))
    trainer = Trainer(training, world.table, tapes, EPISODE, 100)
    result = timed([(trainer.run_epoch, (trainer.init(seed),))], repeats)
    of_exact = functools.partial(record, networks=training.networks)
    exact = ExactTrainer(training, [recorded(of_exact)], 100)
    other = timed([(exact.epoch_on, (exact.init(seed), exact.banks))], repeats)
    return {
        "what": "train",
        "domains": n_domains,
        "envs": n_envs,
        "per_s": trainer.steps_per_epoch / result["best_s"],
        "compile_s": result["compile_s"],
        "flops_per_step": None,
        "peak_memory_gb": peak_memory_gb(),
        "device": device(),
        "peers": {"exact gradient": exact.steps_per_epoch / other["best_s"]},
    }


def bench_plans(n_domains: int, n_plans: int, repeats: int, fidelity: str) -> dict[str, Any]:
    """One row of the table for plans, with its peers."""
    way = FIDELITIES[fidelity](bench_cluster(n_domains), n_plans)
    result = timed([(way.function, way.args)], repeats)
    per_s = way.evaluations / result["best_s"]
    flops = result["flops"] if fidelity == "closed" else None
    device_plans = n_plans / len(jax.devices())
    return {
        "what": "plans",
        "fidelity": fidelity,
        "domains": n_domains,
        "envs": n_plans,
        "per_s": per_s,
        "compile_s": result["compile_s"],
        # The compiler counts a loop's body once: one network, the plans of one device. Of the
        # event-exact form that would be one slot of many.
        "flops_per_step": None if flops is None else flops / device_plans,
        "peak_memory_gb": peak_memory_gb(),
        "device": device(),
        **way.notes(repeats, per_s),
        "peers": way.peers(repeats),
    }


def bench_decision_at(n_domains: int, n_envs: int, repeats: int) -> dict[str, Any]:
    """One row of the table for decisions, one at a time whatever `n_envs`."""
    del n_envs
    row = {"what": "decision", "domains": n_domains, "envs": 1, "flops_per_step": None}
    row |= bench_decision.decision(bench_cluster(n_domains), repeats)
    return {**row, "peak_memory_gb": peak_memory_gb(), "device": device()}


def bench_watch_at(n_domains: int, n_envs: int, repeats: int) -> dict[str, Any]:
    """One row of the table for answers of `hippo watch`, one at a time whatever `n_envs`."""
    del n_envs
    row = {"what": "watch", "domains": n_domains, "envs": 1, "flops_per_step": None}
    row |= watching(bench_cluster(n_domains), repeats)
    return {**row, "peak_memory_gb": peak_memory_gb(), "device": device()}


def peak_memory_gb() -> float:
    """[GB] on the accelerator, or the process's high-water mark on the host."""
    stats = jax.devices()[0].memory_stats() or {}
    if "peak_bytes_in_use" in stats:
        return stats["peak_bytes_in_use"] / 1e9
    scale = 1 if platform.system() == "Darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale / 1e9


def device() -> str:
    """What the figures were measured on."""
    first = jax.devices()[0]
    if first.platform != "cpu":
        return first.device_kind
    return f"CPU, {len(jax.devices())} device(s), {platform.machine()}"


def cases(config: BenchConfig) -> list[tuple[int, int]]:
    """(domains, envs) to measure: what was asked for, or the table."""
    if config.many_jobs:
        domains = config.domains or bench_jobs.regions(config.cluster)
        return [(domains, config.envs or bench_jobs.ENVS)]
    if config.what == "train":
        return [(config.domains or 4, config.envs or 128)]
    if config.what == "decision":
        return [(config.domains or bench_decision.DOMAINS, 1)]
    if config.what == "watch":
        return [(config.domains or WATCHED, 1)]
    if config.what == "plans":
        return [(config.domains or 8, config.envs or 8192)]
    if config.domains is None and config.envs is None:
        column = [(k, b) for k in DOMAINS for b in ENVS]
        return [(k, b) for k, b in column if _bytes(k, b) < BUDGET_BYTES]
    domains = DOMAINS if config.domains is None else (config.domains,)
    envs = ENVS if config.envs is None else (config.envs,)
    return [(k, b) for k in domains for b in envs]


def _bytes(n_domains: int, n_envs: int) -> float:
    # State, observation and temporaries: about 60 float32 per link.
    return 240.0 * n_domains**2 * n_envs


def way(config: BenchConfig) -> Callable[..., dict[str, Any]]:
    """(domains, envs, repeats) -> a row of the table. Raises InputError."""
    if config.many_jobs:
        case = bench_jobs.jobs_case(config.cluster, cases(config)[0][0], config.jobs, config.steps)
        return functools.partial(bench_many_jobs, case=case)
    plans = functools.partial(bench_plans, fidelity=config.fidelity)
    env = functools.partial(bench_env, peers=config.domains is not None and config.envs is not None)
    ways = {"env": env, "plans": plans, "train": bench_train}
    ways |= {"decision": bench_decision_at, "watch": bench_watch_at}
    return ways[config.what]


def set_up(config: BenchConfig) -> None:
    """Options of the compiler and devices, before JAX first computes."""
    if config.what == "env":
        for option in ENV_OPTIONS:
            add_options(option)
    # A program from the cache would hide its compile time.
    jax.config.update("jax_enable_compilation_cache", False)
    # Where the CPU computes, every core is a device; an accelerator is not touched by this.
    jax.config.update("jax_num_cpu_devices", os.cpu_count() or 1)


def bench(config: BenchConfig) -> None:
    """Measure, print the table, keep the records. Raises InputError, RecordError."""
    if config.json not in (None, "-"):
        check_output(config.json, "--json")
    measure = way(config)
    rows = []
    with RunWriter.create("bench", dataclasses.asdict(config), 0, config.out) as writer:
        for n_domains, n_envs in tqdm(cases(config), desc=f"bench {config.what}", unit="case"):
            rows.append(measure(n_domains, n_envs, repeats=config.repeats))
            writer.append("metrics", {k: v for k, v in rows[-1].items() if k != "peers"})
        writer.finish({"rows": rows})
    best = {"peers": {}, **rows[-1]}
    if not put_result(best, config.json):
        return
    print(bench_table(rows))
    for name in sorted(set(best) - set(COLUMNS)):
        print(f"{name}: {best[name]}")
    print(f"run folder: {writer.dir}")


COLUMNS = (
    "what",
    "domains",
    "envs",
    "jobs",
    "per_s",
    "compile_s",
    "flops_per_step",
    "peak_memory_gb",
    "device",
)


def bench_table(rows: list[dict]) -> str:
    """The measured rows as text."""
    table = Table(title=f"steps per second of {rows[0]['what']} on {rows[0]['device']}")
    for name in ("domains", "envs", "steps/s", "compile s", "FLOPs/step", "roofline", "peak GB"):
        table.add_column(name, justify="right")
    for row in rows:
        flops, share = row["flops_per_step"], row.get("roofline_share")
        table.add_row(
            str(row["domains"]),
            str(row["envs"]),
            f"{row['per_s']:,.0f}",
            f"{row['compile_s']:.1f}",
            "-" if flops is None else f"{flops:,.0f}",
            "-" if share is None else f"{share:.0%}",
            f"{row['peak_memory_gb']:.2f}",
        )
    console = Console(width=100, color_system=None)
    with console.capture() as captured:
        console.print(table)
    return captured.get()
