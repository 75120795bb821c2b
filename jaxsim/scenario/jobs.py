"""Worlds and scenarios of several jobs."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int, Key

from jaxsim.cluster import ClusterSpec
from jaxsim.env import EnvParams
from jaxsim.files import InputError
from jaxsim.load import SubmittedJob
from jaxsim.plan import Problem, empty_plan
from jaxsim.planning import PARTS, PlanTable, TableInfo, filled, repeated
from jaxsim.pytree import Pytree
from jaxsim.scenario.scenario import best_static_row, scenario_bank
from jaxsim.scenario.settings import ScenarioSettings
from jaxsim.scenario.world import WIDE_VIEWS, World, build_world
from jaxsim.trees import stack, take
from jaxsim.workload import DataSets, JobSpec, build_workload

# Tables are padded to multiples of these, which both settings of `allow` come to: they share programs.
ROWS_STEP, PAIRS_STEP = 72, 256


class JobsWorld(Pytree):
    """What does not change between the scenarios of a cluster and its jobs."""

    problem: Problem  # jobs [J] in order of arrival
    tables: PlanTable  # [U, P], one of each kind of job
    kind: Int[Array, "*batch J"]


def build_jobs_world(
    spec: ClusterSpec,
    submitted: Sequence[SubmittedJob],
    table_size: int = 48,
    layout_limit: int = 200,
    pad_to: int | None = None,
    efficiency: str = "published",
    allow: str = "synchronous",
) -> JobsWorld:
    """Enumerate plans for every kind of job: model, batch and sequence length. `efficiency` and
    `allow` are those of `build_world`.

    `table_size` plans of a kind, `layout_limit` layouts and the states in which the whole space is
    searched are divided among the PARTS of the GPUs that domains have; every part has its fallback
    plans, however few that are. Raises InputError that names all jobs that fit nowhere, or the first
    whose data is nowhere, by file and line.
    """
    shared = {"wide_views": -(-WIDE_VIEWS // len(PARTS)), "crowded": True}
    make = functools.partial(build_world, efficiency=efficiency, allow=allow, **shared)
    kinds, kind = _kinds(spec, submitted, table_size, layout_limit, make)
    jobs = build_workload([job.spec for job in submitted], pad_to)
    jobs = jobs.replace(data=_data_sets(spec, submitted, jobs.mask.shape[0]))
    kind += [0] * (jobs.mask.shape[0] - len(kind))
    by_kind = [[world.table for world in worlds] for worlds in kinds]
    most = max(table_size, *(sum(table.size for table in tables) for tables in by_kind))
    rows = filled(most, ROWS_STEP)
    first = kinds[0][0]
    tables = [_joined(tables, rows, first.problem.choices.size) for tables in by_kind]
    weighed = filled(max(_pairs(table).size for table in tables), PAIRS_STEP)
    tables = [
        table.replace(pairs=jnp.asarray(repeated(np.asarray(_pairs(table)), weighed)))
        for table in tables
    ]
    return JobsWorld(
        problem=first.problem.of(jobs),
        tables=stack(tables),
        kind=jnp.asarray(kind, jnp.int32),
    )


Make = Callable[[ClusterSpec, JobSpec, int, int], tuple[World, TableInfo]]


def _kinds(
    spec: ClusterSpec,
    submitted: Sequence[SubmittedJob],
    table_size: int,
    layout_limit: int,
    make: Make,
) -> tuple[list[list[World]], list[int]]:
    """The worlds of every kind of job, and the kind of each job. Raises InputError."""
    alike: dict[JobSpec, list[SubmittedJob]] = {}
    for job in submitted:
        alike.setdefault(_kind_of(job), []).append(job)
    worlds, misfits = [], []
    for one, jobs in alike.items():
        try:
            worlds.append(_worlds(spec, one, table_size, layout_limit, make))
        except InputError as error:
            where = ", ".join(job.where for job in jobs)
            misfits.append(f"{where}: {jobs[0].model}: {error}")
    if misfits:
        raise InputError("; ".join(misfits))
    order = list(alike)
    return worlds, [order.index(_kind_of(job)) for job in submitted]


def _kind_of(job: SubmittedJob) -> JobSpec:
    """What jobs with the same plans have in common."""
    return dataclasses.replace(job.spec, step_budget=float("inf"), arrival_s=0.0)


def _data_sets(spec: ClusterSpec, submitted: Sequence[SubmittedJob], size: int) -> DataSets | None:
    """Who holds what, padded to `size` jobs; None where nobody has to fetch anything."""
    if not any(job.data_gb for job in submitted):
        return None
    gb, at = np.zeros(size, np.float32), np.zeros((size, len(spec.domains)), bool)
    for j, job in enumerate(submitted):
        for name in job.data_at:
            if name not in spec.domains:
                known = ", ".join(spec.domains)
                raise InputError(f"{job.where}: data_at: unknown domain {name!r}; known: {known}")
            at[j, spec.domains.index(name)] = True
        gb[j] = job.data_gb
    return DataSets(jnp.asarray(gb), jnp.asarray(at))


def _worlds(
    spec: ClusterSpec, job: JobSpec, size: int, layout_limit: int, make: Make
) -> list[World]:
    """One world per part of the GPUs, `size` plans in all, each of its share of the layouts; a part on
    which nothing fits is left out, the whole is not."""
    worlds, limit = [], -(-layout_limit // len(PARTS))
    for i, part in enumerate(PARTS):
        rows = size // len(PARTS) + (i < size % len(PARTS))
        fewer = dataclasses.replace(spec, gpus=tuple(max(1, g // part) for g in spec.gpus))
        try:
            worlds.append(make(fewer, job, rows, limit)[0])
        except InputError:
            if part == 1:
                raise
    return worlds


def _joined(tables: list[PlanTable], rows: int, n_choices: int) -> PlanTable:
    """One table of all, padded to `rows` by mask; its pairs are row x `n_choices` + choice."""
    first = np.cumsum([0, *(table.size for table in tables)])
    pairs = [_pairs(table) + n_choices * row for table, row in zip(tables, first, strict=False)]
    alone = [table.replace(pairs=None) for table in tables]
    joined = jax.tree.map(lambda *x: jnp.concatenate(x), *alone)
    index = np.minimum(np.arange(rows), joined.size - 1)
    padded = take(joined, index)
    mask = padded.mask & (jnp.arange(rows) < joined.size)
    return padded.replace(mask=mask, pairs=jnp.concatenate(pairs).astype(jnp.int32))


def _pairs(table: PlanTable) -> Int[Array, " N"]:
    """Those that are weighed, of a table that does not weigh all."""
    if table.pairs is None:
        raise ValueError("a table of many jobs has its pairs")
    return table.pairs


def jobs_bank(
    world: JobsWorld,
    settings: ScenarioSettings,
    seeds: range,
    split: str,
    sharing: str = "fair",
    network_trace: Float[np.ndarray, "R K K"] | None = None,
    load_trace: Float[np.ndarray, "_ K"] | None = None,
) -> tuple[EnvParams, Key[Array, " B"]]:
    """Params and keys of many scenarios, leaves [S, ...]: `jaxsim.scenario.scenario_bank`, with
    nothing deployed at the start. The same seed is the same world as for one job."""
    table = take(world.tables, 0)
    one_job = jax.tree.map(lambda x: x[:1], world.problem.work)
    params, keys = scenario_bank(
        World(world.problem.of(one_job), table=table, family=table.plans),
        settings,
        seeds,
        split,
        network_trace=network_trace,
        load_trace=load_trace,
    )
    idle = empty_plan(world.problem.cluster.mask.shape[0])
    shape = (len(seeds), world.problem.work.mask.shape[0])

    def for_all(x):
        return jnp.broadcast_to(jnp.asarray(x), (*shape, *np.shape(x)))

    jobs = jax.tree.map(lambda x: jnp.broadcast_to(x, (shape[0], *x.shape)), world.problem.work)
    params = params.replace(
        problem=params.problem.of(jobs),
        initial_plan=jax.tree.map(for_all, idle),
        sharing=sharing,
        gpus_vary=True,  # other jobs come and go
    )
    return params.replace(progress_ref=_references(params, world)), keys


@jax.jit
@functools.partial(jax.vmap, in_axes=(0, None))
def _references(params: EnvParams, world: JobsWorld) -> Array:
    """[J] training steps per interval of each job's best plan that never changes, alone."""

    def one(work, kind):
        alone = params.replace(problem=params.problem.of(jax.tree.map(lambda x: x[None], work)))
        rate, _ = best_static_row(alone, take(world.tables, kind))
        return rate * params.interval_s

    return jax.lax.map(lambda job: one(*job), (params.problem.work, world.kind))
