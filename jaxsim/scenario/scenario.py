"""Scenarios: worlds that move, drawn from seeds. A bank is drawn ahead, so that a reset is an index."""

from __future__ import annotations

import dataclasses
import functools
import zlib
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Key

from jaxsim.env import EnvParams, world_tape
from jaxsim.learning import TWO_SIDED_95, TokenEfficiency, lower_end
from jaxsim.load import Bursts, LoadProcess, burst_trace, load_process
from jaxsim.network import (
    FittedLink,
    NetworkProcess,
    draw_links,
    network_process,
    process_of_links,
    stretched,
)
from jaxsim.plan import Plan, Problem, empty_plan
from jaxsim.planning import Objective, PlanTable, base_view, one_view, score_plans
from jaxsim.scenario.settings import ScenarioSettings
from jaxsim.scenario.world import World, base_factor
from jaxsim.short_axes import threadsafe
from jaxsim.step_time import NetworkView
from jaxsim.trees import as_leaf, stack_on_host


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


@functools.partial(jax.jit, static_argnames=("length",))
def tapes(params: EnvParams, keys: Key[Array, " S"], length: int) -> NetworkView:
    """[S, T, ...] the course of each world of a bank."""
    return jax.vmap(lambda params, key: world_tape(params, key, length))(params, keys)


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
    references: bool = True,
) -> tuple[EnvParams, Key[Array, " B"]]:
    """`scenario_bank` of draws that may differ in their settings, as far as shapes are the same: one
    kind of jitter, one horizon, local jobs in all or in none.

    A draw is the same whatever others stand beside it. Without `references` nothing says what progress
    counts as one, for those who look at the worlds alone. Raises InputError for a jitter file that
    cannot be used.
    """
    links = {name: _links(name) for name in {draw.settings.jitter for draw in draws}}
    lower = lower_end(world.problem.learning)
    params, keys = [], []
    for draw in draws:
        source = [draw.seed, zlib.crc32(split.encode())]
        rng = np.random.default_rng(source)
        learning = lower
        if draw.settings.token_worth == "drawn":
            learning = _drawn_worth(world.problem.learning, np.random.default_rng([*source, 1]))
        args = (world, draw.settings, links[draw.settings.jitter], rng, draw.weights)
        drawn = _scenario(*args, network_trace, load_trace, learning)
        movement = _drawn_movement(draw.settings, np.random.default_rng([*source, 2]))
        params.append(drawn.replace(network=stretched(drawn.network, movement)))
        keys.append(int(rng.integers(2**31)))
    stacked = stack_on_host(params)
    if references:
        stacked = _with_references(stacked, world.problem, world.table)
    return stacked, jax.vmap(jax.random.key)(jnp.asarray(keys, jnp.uint32))


def _links(jitter: str) -> tuple[FittedLink, ...] | None:
    return ScenarioSettings(jitter=jitter).links()


def _drawn_worth(learning: TokenEfficiency, rng: np.random.Generator) -> TokenEfficiency:
    """What tokens are worth in one scenario: anywhere in the band, as links are drawn."""
    deviate = np.clip(rng.normal(), -TWO_SIDED_95, TWO_SIDED_95)
    return learning.replace(deviate=np.float32(deviate))


def _drawn_movement(settings: ScenarioSettings, rng: np.random.Generator) -> float:
    return float(np.exp(rng.uniform(*np.log(settings.movement))))


def _scenario(
    world, settings, links, rng, weights, network_trace, load_trace, learning
) -> EnvParams:
    k = world.problem.cluster.mask.shape[0]
    there = int(np.asarray(world.problem.cluster.mask).sum())  # others stand last, and draw nothing
    white, sigma = rng.uniform(*settings.white), rng.uniform(*settings.ou_sigma)
    tau = np.exp(rng.uniform(*np.log(np.maximum(settings.ou_tau, 1e-3))))
    base = as_leaf(_extended(base_factor(rng, settings.base_spread, (there, there)), k, axes=2))
    offsets = rng.integers(2**20, size=2)
    cluster = world.problem.cluster
    trace = None if network_trace is None else as_leaf(_extended(network_trace, k, axes=2))
    replay = {
        "trace": trace,
        "trace_offset": 0 if trace is None else int(offsets[0]) % trace.shape[0],
    }
    return EnvParams(
        problem=world.problem.replace(
            cluster=cluster.replace(
                bandwidth_gb_per_s=np.asarray(cluster.bandwidth_gb_per_s) * base
            ),
            learning=learning,
        ),
        network=_network(settings, links, rng, (there, k), white, sigma, tau, replay),
        load=_load(
            settings,
            np.asarray(cluster.gpus)[:there],
            k,
            load_trace,
            int(offsets[1]),
            rng.spawn(1)[0],
        ),
        gpus_vary=settings.load_share > 0 or settings.load_job_share > 0 or load_trace is not None,
        schedules=world.problem.choices.schedules,
        initial_plan=_nothing_deployed(k),
        progress_ref=as_leaf(np.ones((1,))),
        weights=as_leaf(weights),
        interval_s=as_leaf(settings.interval_s),
        horizon=as_leaf(settings.horizon, np.int32),
    )


@functools.lru_cache
def _nothing_deployed(n_domains: int) -> Plan:
    """The empty plan of one job, on the host."""
    return jax.tree.map(lambda x: np.asarray(x)[None], empty_plan(n_domains))


def _extended(values: np.ndarray, size: int, axes: int) -> np.ndarray:
    """Values [..., K] or [..., K, K] (`axes` 1 or 2) of domains, zero for masked ones up to `size`."""
    more = [(0, size - n) for n in values.shape[-axes:]]
    return np.pad(values, [(0, 0)] * (values.ndim - axes) + more)


def _load(
    settings: ScenarioSettings,
    gpus: np.ndarray,
    n_domains: int,
    replayed: np.ndarray | None,
    offset: int,
    rng: np.random.Generator,
) -> LoadProcess:
    """Local jobs as the settings draw them for GPUs [K], on top of what a trace replays; there are
    masked domains up to `n_domains`."""
    if settings.load_job_share > 0:
        rows = np.arange(settings.horizon + 1)
        bursts = Bursts(settings.load_share, settings.load_job_share, settings.load_stay)
        drawn = burst_trace(gpus, bursts, len(rows), rng)
        replayed = drawn if replayed is None else drawn + replayed[(rows + offset) % len(replayed)]
        offset = 0
    return load_process(
        n_domains,
        settings.load_share,
        settings.load_swing,
        None if replayed is None else as_leaf(_extended(replayed, n_domains, axes=1)),
        0 if replayed is None else offset % len(replayed),
    )


def _network(
    settings: ScenarioSettings,
    links: tuple[FittedLink, ...] | None,
    rng: np.random.Generator,
    n_domains: tuple[int, int],
    white: float,
    sigma: float,
    tau: float,
    replay: dict,
) -> NetworkProcess:
    """How links move; `n_domains` are there, and with masked ones."""
    there, k = n_domains
    if links is not None:
        rows = _extended(draw_links(links, there, rng), k, axes=2)
        return process_of_links(links, rows, settings.interval_s, settings.latency, **replay)
    drifts, moves = settings.jitter == "ou", settings.jitter != "none"
    white = white if drifts else settings.uniform
    return network_process(
        k,
        white=white if moves else 0.0,
        latency=settings.latency if moves else 0.0,
        ou_sigma=sigma if drifts else 0.0,
        ou_tau=tau,
        **replay,
    )


@threadsafe
@functools.partial(jax.vmap, in_axes=(0, None, None))
def _with_references(params: EnvParams, problem: Problem, table: PlanTable) -> EnvParams:
    """Measure progress against the best plan that never changes, at each scenario's own base.

    `problem` is every scenario's but for links and the worth of tokens. What depends on neither, as the
    times of stages do, is computed once for all scenarios.
    """
    own = problem.replace(learning=params.problem.learning)
    view = mean_view(params)
    if not params.gpus_vary:
        view = view.replace(gpus_available=problem.cluster.gpus)  # the same, and told to be
    rate, _ = _best_row(own, table, view)
    return params.replace(progress_ref=(rate * params.interval_s)[None])


def best_static_row(params: EnvParams, table: PlanTable) -> tuple[Array, Array]:
    """[] training steps per second at base and [] int32 row of the best row that never moves.

    Base means base bandwidth and mean load.
    """
    return _best_row(params.problem, table, mean_view(params))


def _best_row(problem: Problem, table: PlanTable, view: NetworkView) -> tuple[Array, Array]:
    rates, _ = score_plans(table.plans, one_view(view), problem.job(0))
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
