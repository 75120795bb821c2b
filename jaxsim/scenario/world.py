"""Worlds: what the scenarios of a cluster and a job share, the table of plans above all."""

from __future__ import annotations

import dataclasses
import functools
import pickle
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxsim.cluster import Calibration, Cluster, ClusterSpec
from jaxsim.learning import read_efficiency
from jaxsim.plan import Plan, Problem, Recompute, Schedule
from jaxsim.planning import (
    ASKED_PARTS,
    PARTS,
    WHOLE,
    PlanRules,
    PlanSpace,
    PlanTable,
    TableBuilder,
    TableInfo,
    add_candidates,
    build_table,
    propose_candidates,
    worthwhile_pairs,
)
from jaxsim.planning.exact import wide_plans
from jaxsim.pytree import Pytree
from jaxsim.step_time import NetworkView
from jaxsim.trees import take
from jaxsim.workload import JobSpec, build_workload

VIEWS = 96  # states of the network over which a table is chosen
# States over which the lower choices worth weighing are picked, half of them of links that move more.
PAIR_VIEWS, WILD = 192, 1.5
# Rivals propose plans for the network of the cluster file and for some that are drawn beside it.
PROPOSED_FOR = 8  # drawn networks, at most
MOST_PROPOSALS = 32  # drawn networks times domains, at most
PROPOSED_SPREAD = 0.25  # base_spread of the drawn networks
# States of the network for each of which the best plan of the whole space is sought, beside the base.
WIDE_VIEWS = 7
CORES = 64  # that are kept: many jobs need one of each kind and part, of every cluster
# The names under which plans of no scheduler join a table.
WIDE, RUNNING = "any", "the plan in force"
WIDE_RULES = PlanRules(lambda builder, allowed: [], tuple(Recompute), tuple(Schedule))


class World(Pytree):
    """What does not change between the scenarios of a cluster and a job."""

    problem: Problem  # jobs [J]
    table: PlanTable  # [P], of job 0
    family: Plan  # [N], every plan that was scored, for bounds


def build_world(
    spec: ClusterSpec,
    job: JobSpec,
    table_size: int = 48,
    layout_limit: int = 4000,
    calibration: Calibration | None = None,
    seed: int = 0,
    rules: Mapping[str, PlanRules] | None = None,
    loaded: bool = False,
    preferences: Sequence[Sequence[float]] = (),
    efficiency: str = "published",
    allow: str = "synchronous",
    every_choice: bool = False,
    crowded: bool = False,
    running: Plan | None = None,
    wide_views: int = WIDE_VIEWS,
) -> tuple[World, TableInfo]:
    """Enumerate and score plans; the table is chosen over sampled states of the network.

    `rules` are those of schedulers that bring plans of their own, which join the table. `loaded`:
    local jobs will hold GPUs, so there are plans for parts of them, and states in which some are held.
    `preferences`: weights that the table is made for as well, such as `planning.SAMPLED`.
    `efficiency`: what tokens are worth, as `jaxsim.learning.read_efficiency` takes it; plans are
    chosen by the lower end. `allow` any: the table also holds the best plans of the whole space, local
    SGD and fewer bits included (`jaxsim.planning.PlanSpace`), at base and in `wide_views` other states.
    `every_choice`: no lower choice is left out of what is weighed. `crowded`: other jobs will hold
    GPUs, and choices are weighed that suit what they leave. `running`: a plan (NumPy leaves, no job
    axis) that runs already and must stand in the table, so that to stay in it is a choice.
    Raises InputError when no plan fits the cluster.
    """
    learning, _ = read_efficiency(efficiency), PlanSpace(allow)  # refuses what it does not know
    calibration = spec.calibration if calibration is None else calibration
    asked = (spec, job, jax.tree.map(np.asarray, calibration), jax.tree.map(np.asarray, learning))
    of_schedulers, rules = frozenset(rules or ()), dict(rules or {})
    sizes = (table_size, layout_limit, seed, loaded, tuple(map(tuple, preferences)))
    core = _core(pickle.dumps((asked, rules, sizes)))
    builder, proposed = core.builder, dict(core.proposed)
    if allow == "any":
        few = jax.tree.map(lambda x: x[:wide_views], core.views)
        wide = wide_plans(builder.problem, few, preferences=preferences)
        proposed[WIDE], rules[WIDE] = wide, WIDE_RULES
    if running is not None:
        proposed[RUNNING], rules[RUNNING] = [running], WIDE_RULES
    table, info, family = core.table, core.info, core.family
    if rules:
        table, info, family = add_candidates(table, info, family, builder, proposed, rules)
    if not every_choice:
        table = table.replace(pairs=_pairs(builder, table, seed, loaded or crowded))
    # Tables of both settings are of one structure then, and share compiled programs.
    own = {name: rows for name, rows in table.candidates_of.items() if name in of_schedulers}
    table = table.replace(candidates_of=own)
    return World(builder.problem.of(build_workload([job])), table, family), info


def _pairs(builder: TableBuilder, table: PlanTable, seed: int, loaded: bool) -> Array:
    """[N] the pairs of a table, picked in ordinary and in extreme states of the network."""
    draw = functools.partial(sample_views, builder.problem.cluster, PAIR_VIEWS // 2, loaded=loaded)
    views = jax.tree.map(
        lambda x, y: jnp.concatenate([x, y]), draw(seed=seed), draw(seed=seed, sigma=WILD)
    )
    rows = [take(jax.tree.map(np.asarray, table.plans), i) for i in range(table.size)]
    rates = builder.choice_rates(rows, views) * np.asarray(table.mask)[:, None]
    allowed = [np.asarray(mask) for mask in table.candidates_of.values()]
    return jnp.asarray(worthwhile_pairs(rates, allowed))


@dataclasses.dataclass(frozen=True)
class _Core:
    """What a world has whichever plans are allowed."""

    builder: TableBuilder
    views: NetworkView  # [W, ...] for which the table was chosen
    table: PlanTable
    info: TableInfo
    family: Plan
    proposed: dict[str, list[Plan]]


@functools.lru_cache(maxsize=CORES)
def _core(arguments: bytes) -> _Core:
    """The core of a world from its pickled description: both settings of `allow` share it."""
    (spec, job, calibration, learning), rules, sizes = pickle.loads(arguments)
    calibration, learning = (jax.tree.map(jnp.asarray, x) for x in (calibration, learning))
    table_size, layout_limit, seed, loaded, preferences = sizes
    parts, asked_parts = (PARTS, ASKED_PARTS) if loaded else (WHOLE, WHOLE)
    factors = _proposed_for(spec.n_domains, seed) if rules else ()
    asked = (spec, build_workload([job]).job(0), calibration)
    choices, proposed = propose_candidates(*asked, rules, factors, learning, asked_parts)
    builder = TableBuilder(*asked, choices, parts=parts, learning=learning)
    views = sample_views(builder.problem.cluster, VIEWS, seed, loaded)
    found = build_table(builder, views, table_size, layout_limit, preferences)
    return _Core(builder, views, *found, proposed)


def sample_views(
    cluster: Cluster, count: int, seed: int, loaded: bool = False, sigma: float = 0.5
) -> NetworkView:
    """[W, ...] states of the network to choose a table for: every link log-normal around its base, with
    `sigma` 0.5 between a fifth and five times as much, with more that much further. All GPUs are free;
    of a `loaded` cluster only in every other state, in the rest local jobs hold a uniform share of each
    domain's."""
    k = cluster.mask.shape[0]
    share = np.random.default_rng([seed, 9]).uniform(size=(count, k))
    share *= loaded * (np.arange(count)[:, None] % 2)
    gpus = np.asarray(cluster.gpus)[None]
    shape = (count, k, k)
    factor = base_factor(np.random.default_rng([seed, 7]), sigma, shape)
    most = 5.0 ** (sigma / 0.5)
    factor = jnp.asarray(np.clip(factor, 1.0 / most, most), jnp.float32)
    return NetworkView(
        bandwidth_gb_per_s=cluster.bandwidth_gb_per_s[None] * factor,
        rtt_s=jnp.broadcast_to(cluster.rtt_s[None], shape),
        gpus_available=jnp.asarray(gpus - np.round(share * gpus), jnp.int32),
    )


def _proposed_for(n_domains: int, seed: int) -> np.ndarray:
    """[N, K, K] factors on the links for which plans are proposed, spread as the bases of scenarios
    are; fewer in large clusters, whose planners take long."""
    shape = (min(PROPOSED_FOR, MOST_PROPOSALS // n_domains), n_domains, n_domains)
    return base_factor(np.random.default_rng([seed, 8]), PROPOSED_SPREAD, shape)


def base_factor(rng: np.random.Generator, sigma: float, shape: tuple[int, ...]) -> np.ndarray:
    """Factors [shape] on the links, log-normal around 1 with standard deviation `sigma` of the log."""
    return np.exp(sigma * rng.normal(size=shape))
