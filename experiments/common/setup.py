"""What the entry points share: compiled programs, loading of worlds."""

from __future__ import annotations

import dataclasses
import functools
import gc
import os
import pickle
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from experiments.common.compiler_options import add_options
from experiments.common.kept_worlds import kept
from jaxsim.cluster import (
    POOLED,
    STACKS,
    ClusterSpec,
    load_cluster,
    repeat_regions,
)
from jaxsim.files import InputError, one_line
from jaxsim.learning import read_efficiency
from jaxsim.load import SubmittedJob, read_load_trace
from jaxsim.network import read_network_trace
from jaxsim.plan import Plan
from jaxsim.planning import PlanRules, TableInfo
from jaxsim.scenario import JobsWorld, World, build_jobs_world, build_world
from jaxsim.workload import JobSpec, load_model

FUSION = "xla_cpu_use_fusion_emitters"


def compile_cache() -> Path:
    """Where compiled programs are kept between runs."""
    root = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return Path(os.environ.get("JAX_COMPILATION_CACHE_DIR", root / "hippo" / "jax"))


def use_compile_cache() -> None:
    """Keep compiled programs between runs, unless the environment already says where."""
    jax.config.update("jax_compilation_cache_dir", str(compile_cache()))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def compile_for_evaluation() -> None:
    """For commands that compile many programs and run each for a moment; before JAX first computes.

    The CPU's compiler emits code the older way: three quarters of the time, a quarter of the memory
    maps, and these programs run no slower (those of training's epochs do). What tracing makes lives on,
    so the garbage collector need not look through it so often.
    """
    add_options(f"--{FUSION}=false")
    gc.set_threshold(100_000)
    use_compile_cache()


def compile_for_training() -> dict[str, bool]:
    """`compile_for_evaluation`, whose programs training shares; returns the compiler's options of the
    few programs that run for long."""
    compile_for_evaluation()
    sooner = f"--{FUSION}=false" in os.environ.get("XLA_FLAGS", "").split()
    return {FUSION: True} if sooner else {}


def make_room_for_programs(settle: Callable[[], object] | None = None, most: float = 0.7) -> None:
    """Drop this process's compiled programs where they take more than `most` of what it may map, once
    `settle` has returned (when nothing runs).

    On a CPU every kernel of a program is mapped on its own, a few hundred for a step of the
    environment, and beyond Linux's limit (vm.max_map_count, 65,530 by default) XLA crashes. What is
    needed again comes from the compile cache. Beside other threads nothing is dropped.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    try:
        limit = int(Path("/proc/sys/vm/max_map_count").read_text())
        taken = Path("/proc/self/maps").read_bytes().count(b"\n")
    except OSError:  # not Linux
        return
    if taken > most * limit:
        if settle is not None:
            settle()
        jax.clear_caches()
        gc.collect()


def load_regions(cluster: str | None, domains: int | None = None) -> ClusterSpec:
    """Load a cluster file (None = the embedded one), with its regions repeated to `domains` where
    that is given. Raises InputError that names the file and the key."""
    spec = load_cluster(cluster)
    return spec if domains is None else repeat_regions(spec, domains)


def note_efficiency(spec: ClusterSpec) -> dict[str, str | None]:
    """Where the efficiency parameters of a cluster's GPUs come from, for a run's record; said once on
    standard error where the GPU type has no fit of its own."""
    source = spec.efficiency_source
    if source.why:
        _note(f"note: {spec.name}: {source.why}")
    return dataclasses.asdict(source)


@functools.cache
def _note(line: str) -> None:
    """Write a line once in a process."""
    tqdm.write(one_line(line), file=sys.stderr)


def read_traces(
    trace: str | None, load: str | None, spec: ClusterSpec, interval_s: float
) -> dict[str, np.ndarray | None]:
    """The traces of links and of local load, as `scenario_bank` takes them; None where no file is
    given. Raises InputError that names the file and the line."""
    links, held = None, None
    if trace is not None:
        links = read_network_trace(trace, spec, interval_s)
    if load is not None:
        held = read_load_trace(load, spec.domains, np.asarray(spec.gpus), interval_s)
    return {"network_trace": links, "load_trace": held}


def load_world(
    cluster: str | None,
    model: str,
    global_batch: int,
    seq: int,
    table_size: int,
    rules: Mapping[str, PlanRules] | None = None,
    domains: int | None = None,
    layout_limit: int = 4000,
    loaded: bool = False,
    preferences: tuple[tuple[float, ...], ...] = (),
    efficiency: str = "published",
    allow: str = "synchronous",
    note: bool = True,
    running: Plan | None = None,
) -> tuple[ClusterSpec, World, TableInfo]:
    """Load a cluster file (None = the embedded one), with its regions repeated to `domains` where
    that is given, and enumerate plans for one job on it.

    `rules`, such as `agents.registry.plan_rules` returns: rivals whose plans join the table;
    `loaded`: local jobs will hold GPUs; `preferences`: weights that the table is made for as well;
    `efficiency`, `allow` and `running` are those of `build_world`; `note`: call `note_efficiency`.
    Raises InputError that names the file and the key, or says what memory is short.
    """
    sizes = {"global_batch": global_batch, "seq": seq, "table_size": table_size}
    for name, value in {**sizes, "layout_limit": layout_limit}.items():
        if value < 1:
            raise InputError(f"{name}: expected an integer >= 1, got {value}")
    spec = load_regions(cluster, domains)
    fields = {} if spec.stack == POOLED else STACKS[spec.stack].job_fields
    job = JobSpec(load_model(model), global_batch, seq, **fields)
    # Not the names of files but what they say now.
    calibration = jax.tree.map(np.asarray, spec.calibration)
    worth = jax.tree.map(np.asarray, read_efficiency(efficiency))
    about = {"rules": dict(rules or {}), "loaded": loaded, "preferences": preferences}
    about |= {"efficiency": efficiency, "allow": allow, "running": running}
    arguments = (spec, job, table_size, layout_limit, calibration, about)
    world, info = _built(pickle.dumps(arguments), pickle.dumps(worth))
    if note:
        note_efficiency(spec)
    return spec, world, info


@functools.lru_cache(maxsize=4)
def _built(arguments: bytes, worth: bytes) -> tuple[World, TableInfo]:
    """A world from its pickled description and what tokens are worth: the scenes of a suite share
    theirs, and so do commands that run one after another."""
    return kept(arguments + worth, compile_cache() / "worlds", lambda: _build(arguments))


def load_jobs_world(
    spec: ClusterSpec,
    submitted: Sequence[SubmittedJob],
    table_size: int,
    layout_limit: int,
    efficiency: str = "published",
    allow: str = "synchronous",
) -> JobsWorld:
    """`build_jobs_world`, or what it came to before. Raises InputError as it does."""
    # Not the names of files but what they say now.
    said = jax.tree.map(np.asarray, (spec.calibration, read_efficiency(efficiency)))
    asked = pickle.dumps(("jobs", spec, submitted, table_size, layout_limit, allow, said))
    plans = {"efficiency": efficiency, "allow": allow}
    build = functools.partial(build_jobs_world, spec, submitted, table_size, layout_limit, **plans)
    return kept(asked, compile_cache() / "worlds", build)


def _build(arguments: bytes) -> tuple[World, TableInfo]:
    spec, job, table_size, layout_limit, calibration, about = pickle.loads(arguments)
    calibration = jax.tree.map(jnp.asarray, calibration)
    return build_world(spec, job, table_size, layout_limit, calibration, **about)
