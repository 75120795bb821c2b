"""Scenarios: seeds -> worlds. A bank of them is generated ahead, so that a reset is an index."""

from __future__ import annotations

import dataclasses
import functools
import pickle
import zlib
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Key

from jaxsim.cluster import Calibration, Cluster, ClusterSpec
from jaxsim.env import EnvParams
from jaxsim.learning import TWO_SIDED_95, TokenEfficiency, lower_end, read_efficiency
from jaxsim.load import Bursts, LoadProcess, burst_trace, load_process
from jaxsim.network import (
    FittedLink,
    NetworkProcess,
    draw_links,
    network_process,
    process_of_links,
)
from jaxsim.plan import Plan, Problem, Recompute, Schedule, empty_plan
from jaxsim.planning import (
    ASKED_PARTS,
    PARTS,
    WHOLE,
    Objective,
    PlanRules,
    PlanSpace,
    PlanTable,
    TableBuilder,
    TableInfo,
    add_candidates,
    base_view,
    build_table,
    one_view,
    propose_candidates,
    score_plans,
    worthwhile_pairs,
)
from jaxsim.planning.exact import wide_plans
from jaxsim.pytree import Pytree
from jaxsim.scenario.settings import ScenarioSettings
from jaxsim.step_time import NetworkView
from jaxsim.trees import stack_on_host, take
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
) -> tuple[World, TableInfo]:
    """Enumerate and score plans; the table is chosen over sampled states of the network.

    `rules` are those of schedulers that bring plans of their own, which join the table. `loaded`:
    local jobs will hold GPUs, so there are plans for parts of them, and states in which some are held.
    `preferences`: weights that the table is made for as well, such as `planning.SAMPLED`.
    `efficiency`: what tokens are worth, as `jaxsim.learning.read_efficiency` takes it; plans are
    chosen by the lower end. `allow` any: the table also holds the best plans of the whole space, local
    SGD and fewer bits included (`jaxsim.planning.PlanSpace`). `every_choice`: no lower choice is left
    out of what is weighed. `crowded`: other jobs will hold GPUs, and choices are weighed that suit
    what they leave. `running`: a plan (NumPy leaves, no job axis) that runs already and must
    stand in the table, so that to stay in it is a choice.
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
        few = jax.tree.map(lambda x: x[:WIDE_VIEWS], core.views)
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
    factor = _base_factor(np.random.default_rng([seed, 7]), sigma, shape)
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
    return _base_factor(np.random.default_rng([seed, 8]), PROPOSED_SPREAD, shape)


def _base_factor(rng: np.random.Generator, sigma: float, shape: tuple[int, ...]) -> np.ndarray:
    return np.exp(sigma * rng.normal(size=shape))


def scenario_bank(
    world: World,
    settings: ScenarioSettings,
    seeds: range,
    split: str,
    weights: tuple[float, float, float, float] = (1.0, 0.0, 0.0, 0.0),
    network_trace: Float[np.ndarray, "R K K"] | None = None,
    load_trace: Float[np.ndarray, "_ K"] | None = None,
    objective: Objective | None = None,
) -> tuple[EnvParams, Key[Array, " B"]]:
    """Params and keys of many scenarios, leaves [S, ...]; nothing is deployed at the start.

    `split` separates training from test seeds: the same number in two splits is another world. A
    seed shifts the traces' offset and draws jitter, load and what tokens are worth. `objective`: what
    schedulers are to maximise, None = progress; `weights` are those of the rewards. Raises InputError
    for a jitter file that cannot be used.
    """
    draws = [Draw(settings, seed, weights) for seed in seeds]
    stacked, keys = drawn_bank(world, draws, split, network_trace, load_trace)
    if objective is not None:
        each = jax.tree.map(lambda x: jnp.broadcast_to(x, (len(seeds), *x.shape)), objective)
        stacked = stacked.replace(objective=each)
    return stacked, keys


@dataclasses.dataclass(frozen=True)
class Draw:
    """One scenario of a bank: how its world is drawn, from which seed, the weights of its rewards."""

    settings: ScenarioSettings
    seed: int
    weights: tuple[float, float, float, float] = (1.0, 0.0, 0.0, 0.0)


def drawn_bank(
    world: World,
    draws: Sequence[Draw],
    split: str,
    network_trace: Float[np.ndarray, "R K K"] | None = None,
    load_trace: Float[np.ndarray, "_ K"] | None = None,
) -> tuple[EnvParams, Key[Array, " B"]]:
    """`scenario_bank` of draws that may differ in their settings, as far as shapes are the same: one
    kind of jitter, one horizon, local jobs in all or in none.

    A draw is the same whatever others stand beside it. Raises InputError for a jitter file that cannot
    be used.
    """
    links = {name: _links(name) for name in {draw.settings.jitter for draw in draws}}
    params, keys = [], []
    for draw in draws:
        source = [draw.seed, zlib.crc32(split.encode())]
        rng = np.random.default_rng(source)
        learning = world.problem.learning
        if draw.settings.token_worth == "drawn":
            learning = _drawn_worth(learning, np.random.default_rng([*source, 1]))
        else:
            learning = lower_end(learning)
        args = (world, draw.settings, links[draw.settings.jitter], rng, draw.weights)
        params.append(_scenario(*args, network_trace, load_trace, learning))
        keys.append(int(rng.integers(2**31)))
    stacked = _with_references(stack_on_host(params), world.table)
    return stacked, jax.vmap(jax.random.key)(jnp.asarray(keys, jnp.uint32))


def _links(jitter: str) -> tuple[FittedLink, ...] | None:
    return ScenarioSettings(jitter=jitter).links()


def _drawn_worth(learning: TokenEfficiency, rng: np.random.Generator) -> TokenEfficiency:
    """What tokens are worth in one scenario: anywhere in the band, as links are drawn."""
    deviate = np.clip(rng.normal(), -TWO_SIDED_95, TWO_SIDED_95)
    return learning.replace(deviate=np.float32(deviate))


def _scenario(
    world, settings, links, rng, weights, network_trace, load_trace, learning
) -> EnvParams:
    k = world.problem.cluster.mask.shape[0]
    white, sigma = rng.uniform(*settings.white), rng.uniform(*settings.ou_sigma)
    tau = np.exp(rng.uniform(*np.log(np.maximum(settings.ou_tau, 1e-3))))
    base = jnp.asarray(_base_factor(rng, settings.base_spread, (k, k)), jnp.float32)
    offsets = rng.integers(2**20, size=2)
    cluster = world.problem.cluster
    trace = None if network_trace is None else jnp.asarray(network_trace, jnp.float32)
    replay = {
        "trace": trace,
        "trace_offset": 0 if trace is None else int(offsets[0]) % trace.shape[0],
    }
    return EnvParams(
        problem=world.problem.replace(
            cluster=cluster.replace(bandwidth_gb_per_s=cluster.bandwidth_gb_per_s * base),
            learning=learning,
        ),
        network=_network(settings, links, rng, k, white, sigma, tau, replay),
        load=_load(
            settings, np.asarray(cluster.gpus), load_trace, int(offsets[1]), rng.spawn(1)[0]
        ),
        gpus_vary=settings.load_share > 0 or settings.load_job_share > 0 or load_trace is not None,
        schedules=world.problem.choices.schedules,
        initial_plan=_nothing_deployed(k),
        progress_ref=jnp.ones((1,), jnp.float32),
        weights=jnp.asarray(weights, jnp.float32),
        interval_s=jnp.float32(settings.interval_s),
        horizon=jnp.int32(settings.horizon),
    )


@functools.lru_cache
def _nothing_deployed(n_domains: int) -> Plan:
    """The empty plan of one job, on the host."""
    return jax.tree.map(lambda x: np.asarray(x)[None], empty_plan(n_domains))


def _load(
    settings: ScenarioSettings,
    gpus: np.ndarray,
    replayed: np.ndarray | None,
    offset: int,
    rng: np.random.Generator,
) -> LoadProcess:
    """Local jobs as the settings draw them, on top of what a trace replays."""
    if settings.load_job_share > 0:
        rows = np.arange(settings.horizon + 1)
        bursts = Bursts(settings.load_share, settings.load_job_share, settings.load_stay)
        drawn = burst_trace(gpus, bursts, len(rows), rng)
        replayed = drawn if replayed is None else drawn + replayed[(rows + offset) % len(replayed)]
        offset = 0
    return load_process(
        len(gpus),
        settings.load_share,
        settings.load_swing,
        None if replayed is None else jnp.asarray(replayed, jnp.float32),
        0 if replayed is None else offset % len(replayed),
    )


def _network(
    settings: ScenarioSettings,
    links: tuple[FittedLink, ...] | None,
    rng: np.random.Generator,
    n_domains: int,
    white: float,
    sigma: float,
    tau: float,
    replay: dict,
) -> NetworkProcess:
    if links is not None:
        rows = draw_links(links, n_domains, rng)
        return process_of_links(links, rows, settings.interval_s, settings.latency, **replay)
    drifts, moves = settings.jitter == "ou", settings.jitter != "none"
    white = white if drifts else settings.uniform
    return network_process(
        n_domains,
        white=white if moves else 0.0,
        latency=settings.latency if moves else 0.0,
        ou_sigma=sigma if drifts else 0.0,
        ou_tau=tau,
        **replay,
    )


@jax.jit
@functools.partial(jax.vmap, in_axes=(0, None))
def _with_references(params: EnvParams, table: PlanTable) -> EnvParams:
    """Measure progress against the best plan that never changes, at each scenario's own base."""
    rate, _ = best_static_row(params, table)
    return params.replace(progress_ref=(rate * params.interval_s)[None])


def best_static_row(params: EnvParams, table: PlanTable) -> tuple[Array, Array]:
    """[] training steps per second at base and [] int32 row of the best row that never moves.

    Base means base bandwidth and mean load.
    """
    view = mean_view(params)
    rates, _ = score_plans(table.plans, one_view(view), params.problem.job(0))
    rates = jnp.where(table.mask, rates[0], -1.0)
    return rates.max(), jnp.argmax(rates).astype(jnp.int32)


def mean_view(params: EnvParams) -> NetworkView:
    """The scenario's links at base and GPUs at mean load."""
    view = base_view(params.problem.cluster)
    held = params.load.share * params.problem.cluster.gpus.astype(jnp.float32)
    held = held + params.load.trace.mean(axis=0)
    return view.replace(
        gpus_available=jnp.maximum(
            params.problem.cluster.gpus - jnp.round(held).astype(jnp.int32), 0
        )
    )
