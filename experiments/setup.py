"""What the entry points share: compile cache, loading of worlds."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import jax

from jaxsim.cluster import ClusterSpec, load_cluster, repeat_regions
from jaxsim.enumeration import TableInfo
from jaxsim.errors import InputError
from jaxsim.nomination import PlanRules
from jaxsim.scenario import World, build_world
from jaxsim.workload import JobSpec, load_model


def use_compile_cache() -> None:
    """Keep compiled programs between runs, unless the environment already says where."""
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        root = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
        jax.config.update("jax_compilation_cache_dir", str(root / "hippo" / "jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def load_world(
    cluster: str | None,
    model: str,
    global_batch: int,
    seq: int,
    table_size: int,
    rules: Mapping[str, PlanRules] | None = None,
    domains: int | None = None,
    layout_limit: int = 4000,
) -> tuple[ClusterSpec, World, TableInfo]:
    """Load a cluster file (None = the embedded one), with its regions repeated to `domains` where
    that is given, and enumerate plans for one job on it.

    `rules`, such as `agents.registry.RULES`: rivals that bring plans of their own into the table.
    Raises InputError that names the file and the key, or says what memory is short.
    """
    sizes = {"global_batch": global_batch, "seq": seq, "table_size": table_size}
    for name, value in {**sizes, "layout_limit": layout_limit}.items():
        if value < 1:
            raise InputError(f"{name}: expected an integer >= 1, got {value}")
    spec = load_cluster(cluster)
    if domains is not None:
        spec = repeat_regions(spec, domains)
    job = JobSpec(load_model(model), global_batch, seq)
    world, info = build_world(spec, job, table_size, layout_limit, rules=rules)
    return spec, world, info
