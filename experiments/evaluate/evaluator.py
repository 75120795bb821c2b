"""Playing schedulers on one bank of scenarios: common random numbers, the truth solved once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agents.episodes import Episode, EpisodeMetrics
from agents.foresight import distinct_transfers
from agents.oracles import Truth
from agents.protocol import Scheduler, ScoredTable, Setup, make_setup
from agents.registry import Settings, default_settings, find
from experiments.common import make_room_for_programs, side_by_side
from experiments.evaluate.contestants import named
from experiments.evaluate.playing import Scenes, play_block
from experiments.evaluate.programs import (
    bound_of_family,
    decision_times_ms,
    expected_views,
    plan_rates,
    rates_now,
    rates_under,
    truths,
    truths_for,
    worths,
)
from jaxsim.env import EnvParams, Samples
from jaxsim.network import network_process
from jaxsim.plan import Plan
from jaxsim.planning import Objective, Preference
from jaxsim.scenario import (
    Draw,
    Others,
    ScenarioSettings,
    World,
    other_draws,
    samples_of,
    scenario_bank,
    tapes,
)
from jaxsim.step_time import NetworkView
from jaxsim.trees import distinct, take, take_at_once

BLOCK = 16  # scenarios that are played at once: banks of 16 and more share compiled programs
# Plans of the family, with lower choices, that the bound is over; see `Evaluator.bound`.
EVERY_PAIR, CONTENDERS, SAMPLED = 4096, 2048, 16
BLOCK_OF_PLANS = 256  # that are scored at once
VIEWS, FEW = 33, 2  # under which a table is scored at once; one by one


def synchronous(plans: Plan) -> bool:
    """Do all plans [P, ...] sync every step in 16 bits? A token is then worth 1, whatever is drawn."""
    full = np.all(np.asarray(plans.wire_bits) >= 16) and np.all(
        np.asarray(plans.activation_bits) >= 16
    )
    return bool(full and np.all(np.asarray(plans.sync_period) == 1))


def lost_pct(progress: np.ndarray, best: np.ndarray) -> np.ndarray:
    """What `progress` lacks of `best` [%]; NaN where nothing can run."""
    best = np.where(best > 0, best, np.nan)
    return 100.0 * (1.0 - progress / best)


def on_tape(params: EnvParams, tape: NetworkView) -> EnvParams:
    """Scenarios [S, ...] with their worlds' courses [S, T, ...] known beforehand: however these are
    drawn, the compiled programs that play them are the same."""
    count, k = params.load.trace.shape[0], params.load.trace.shape[-1]
    still = jax.tree.map(lambda x: jnp.stack([x] * count), network_process(k))
    load = params.load.replace(trace=jnp.zeros((count, 1, k), jnp.float32))
    return params.replace(network=still, load=load, tape=tape)


class Evaluator:
    """A bank of scenarios with everything that schedulers are compared against.

    Scenarios are played in blocks of one size, and compiled programs are shared by all evaluators.
    Banks of the same sizes, of other jitter, load or length of the bank, cost no compilation.
    """

    def __init__(
        self,
        world: World,
        settings: ScenarioSettings,
        seeds: range,
        split: str,
        weights: tuple[float, float, float, float],
        network_trace: np.ndarray | None = None,
        load_trace: np.ndarray | None = None,
        objective: Objective | None = None,
    ):
        """`objective`: what schedulers maximise and are measured by, None = progress."""
        self.world, self.horizon, self.weights = world, settings.horizon, weights
        self._transfers = distinct_transfers(world.table.plans, world.problem.job(0))
        self.params, self.keys = scenario_bank(
            world, settings, seeds, split, weights, network_trace, load_trace, objective
        )
        self._weighed: dict[Preference, tuple[np.ndarray, ScoredTable]] = {}
        self._solved_for: dict[Preference, Truth] = {}
        draws = [Draw(settings, seed, weights) for seed in seeds]
        others = other_draws(world, draws, split, network_trace, load_trace)
        self.taped = self._taped().replace(outlook=self._outlook(others))
        self.scored = self._scored(self.taped)
        self.truth = self._solved()
        # [S, T + 1, P, V] as measured before each interval, by those who do not know what a token is
        # worth in this scenario: where all plans train in every step, everybody knows.
        shared = synchronous(world.table.plans)
        self.rates = self.truth.rates if shared else self._rates_along(self.taped, known=False)
        best = functools.partial(self.play, self.named("clairvoyant"))
        self.clairvoyant, self.static = side_by_side([best, self._static])

    def __len__(self) -> int:
        return self.keys.shape[0]

    def _static(self) -> tuple[EpisodeMetrics, Episode]:
        """The best plan that never changes, played."""
        return self.play(self.named("best_static"))

    def named(self, name: str) -> Scheduler:
        """A scheduler that is not learned and not tuned, for `play`."""
        return named(name, self.world, {})

    def _taped(self) -> EnvParams:
        return on_tape(self.params, self._courses(self.params, self.keys))

    def _outlook(self, others: Others) -> Samples:
        """[S, W, ...] what each scenario's links and free GPUs may look like."""
        return samples_of(others, self._courses(others.params, others.keys), self.params)

    def _courses(self, params: EnvParams, keys: jax.Array) -> NetworkView:
        """[N, T + 1, ...] how the worlds of a bank of any size N move."""

        def block(params, keys):
            return tapes(params, keys, self.horizon + 1)

        return self._in_blocks(block, (params, keys), keys.shape[0])

    def _solved(self) -> Truth:
        """What the future of every scenario holds, [S, ...]."""
        return self._solved_on(self._rates_along(self.taped, known=True))

    def _solved_on(self, rates: np.ndarray) -> Truth:
        """`_solved`, on rates [S, T + 1, P, V] of the table along the scenarios' courses."""
        facts = self.world.table, self._transfers
        return self._in_blocks(lambda *args: truths(*facts, *args), (self.taped, rates))

    def _rates_along(self, params: EnvParams, known: bool) -> np.ndarray:
        """[S, T + 1, P, V] the table's rates along the scenarios' courses, for those to whom it is
        `known` what a token is worth or for all others."""

        def block(params):
            worth = worths(self.world.table, params)[0 if known else 1]
            return self._rates_under(params, worth, params.tape)

        return self._in_blocks(block, (params,))

    def _rates_under(
        self, params: EnvParams, worth: Any, views: NetworkView, *balanced: NetworkView
    ) -> np.ndarray:
        """[S, T, P, V] of a block, by one program that takes VIEWS views at once; where links stand
        still each of the FEW views that there are is scored once."""
        index, which = distinct((views, balanced))
        at_once = VIEWS if len(index) > FEW else 1
        rates = []
        for start in range(0, len(index), at_once):
            rows = index[np.minimum(np.arange(start, start + at_once), len(index) - 1)]
            some = jax.tree.map(lambda x, rows=rows: x[:, rows], (views, *balanced))
            rates.append(np.asarray(rates_under(self.world.table, params, worth, *some)))
        return np.concatenate(rates, axis=1)[:, which]

    def _scored(self, params: EnvParams) -> ScoredTable:
        """[S, ...] the table as everybody expects it."""
        table = self.world.table

        def block(params):
            worth = worths(table, params)[1]
            every = self._rates_under(params, worth, expected_views(table, params))
            prior, sampled = every[:, 0], every[:, 1:]
            if not params.gpus_vary:
                return ScoredTable(prior, outlook=sampled)
            samples = params.outlook
            played = self._rates_under(params, worth, samples.now, samples.before)
            return ScoredTable(prior, outlook=played, before=sampled)

        return self._in_blocks(block, (params,))

    def weigh(self, preferences: Sequence[Preference], oracle: bool = False) -> None:
        """Prepare `weighed` for many preferences at once; what the future holds, for an `oracle`."""
        missing = [asked for asked in preferences if asked not in self._weighed]
        side_by_side([functools.partial(self.weighed, asked, oracle=False) for asked in missing])
        if oracle:
            unsolved = [a for a in preferences if a in self._weighed and a not in self._solved_for]
            self._solve_for(unsolved)

    def weighed(
        self, asked: Preference, oracle: bool = True
    ) -> tuple[EnvParams, ScoredTable, Truth, np.ndarray]:
        """The scenarios with other weights, in their rewards and for those who maximise an objective,
        the table as it is expected, what the future holds for an `oracle`, and the table's rates as
        they are measured."""

        def each(x):
            return jnp.tile(x, (len(self), *[1] * x.ndim))

        objective = jax.tree.map(each, Objective.of(*asked))
        tiled = each(jnp.asarray(asked.weights, jnp.float32))
        params = self.taped.replace(weights=tiled, objective=objective)
        if objective is None and self.taped.objective is None:
            return params, self.scored, self.truth, self.rates
        if asked not in self._weighed:
            rates = self._rates_along(params, known=False)
            self._weighed[asked] = rates, self._scored(params)
        rates, scored = self._weighed[asked]
        if not oracle:
            return params, scored, self.truth, rates
        if asked not in self._solved_for:
            self._solve_for([asked])
        return params, scored, self._solved_for[asked], rates

    def _solve_for(self, many: Sequence[Preference]) -> None:
        """What the future of every scenario holds for each of these preferences."""
        shared, each = synchronous(self.world.table.plans), []
        for asked in many:
            params, _, _, rates = self.weighed(asked, oracle=False)
            rates = rates if shared else self._rates_along(params, known=True)
            each.append(((params.weights, params.objective), rates))
        if not each:
            return
        told, rates = jax.tree.map(lambda *x: np.stack(x, axis=1), *each)
        facts = self.world.table, self._transfers
        found = self._in_blocks(lambda *args: truths_for(*facts, *args), (self.taped, told, rates))
        for a, asked in enumerate(many):
            self._solved_for[asked] = jax.tree.map(lambda x, a=a: x[:, a], found)

    def achieved(self, metrics: EpisodeMetrics) -> np.ndarray:
        """[S] what schedulers are measured by: progress, or under an objective the return (limits
        apart) that progress counts in from 0 on."""
        if self.params.objective is None:
            return metrics.progress
        return self.horizon * (metrics.reward + self.weights[0])

    def _in_blocks(self, function: Callable, args: Any, count: int | None = None) -> Any:
        """`function` of all scenarios (or `count` others), BLOCK of them at once and blocks side by
        side, as a program of many small steps keeps one core busy; the last block is filled up with
        scenarios from the start."""
        count = len(self) if count is None else count
        size = min(len(self), BLOCK)

        def block(start: int) -> Any:
            index = np.arange(start, start + size) % count
            return jax.tree.map(np.asarray, function(*take_at_once(args, index)))

        work = [functools.partial(block, start) for start in range(0, count, size)]
        parts = side_by_side(work)
        return jax.tree.map(lambda *xs: np.concatenate(xs)[:count], *parts)

    @property
    def headroom_pct(self) -> np.ndarray:
        """[S] what clairvoyant gains over the best static plan (it can always play that one);
        infinite where that one never runs, NaN where nothing can."""
        with np.errstate(divide="ignore", invalid="ignore"):
            # A weighted return may be negative: then anything is infinitely better.
            static = np.maximum(self.achieved(self.static[0]), 0.0)
            ratio = self.achieved(self.clairvoyant[0]) / static
        return np.maximum(100.0 * (ratio - 1.0), 0.0)

    def bound(self) -> np.ndarray:
        """[S] training steps of the best plan of the whole family in every interval, moves free.

        A family of more than EVERY_PAIR plans with lower choices is represented by its CONTENDERS:
        those that come nearest to the best in any of SAMPLED intervals of these scenarios. Under an
        objective no bound is known.
        """
        if self.params.objective is not None:
            return np.full(len(self), np.nan)
        row, choice = np.divmod(self._contenders(), self.world.problem.choices.size)
        plans = take(self.world.family, row)
        choice = jnp.asarray(choice, jnp.int32)

        def of(scenario: int) -> float:
            params, truth = take((self.taped, self.truth), scenario)
            return float(bound_of_family(params, plans, choice, truth))

        return np.array(side_by_side([functools.partial(of, i) for i in range(len(self))]))

    @property
    def n_bounding(self) -> int:
        """Plans of the family, with lower choices, that the bound is over."""
        return len(self._pairs()) if len(self._pairs()) <= EVERY_PAIR else CONTENDERS

    def _pairs(self) -> range:
        """Plans of the family with each lower choice: row x V + choice."""
        return range(self.world.family.group.shape[0] * self.world.problem.choices.size)

    def _contenders(self) -> np.ndarray:
        """[M] of `_pairs`, those that the bound is over."""
        n_plans, n_pairs = self.world.family.group.shape[0], len(self._pairs())
        if n_pairs <= EVERY_PAIR:
            return np.arange(n_pairs)
        scenario, t = np.divmod(
            np.arange(SAMPLED) * len(self) * self.horizon // SAMPLED, self.horizon
        )
        views = take(self.truth.views, (scenario, t + 1))
        params = take(self.taped, 0)
        nearest = []
        for start in range(0, n_plans, BLOCK_OF_PLANS):
            rows = np.minimum(np.arange(start, start + BLOCK_OF_PLANS), n_plans - 1)
            plans = take(self.world.family, rows)
            nearest.append(np.asarray(plan_rates(params, plans, views))[:, : n_plans - start])
        rates = np.concatenate(nearest, axis=1).reshape(SAMPLED, n_pairs)
        best = np.maximum(rates.max(axis=1, keepdims=True), 1e-30)
        return np.sort(np.argsort(-(rates / best).max(axis=0), kind="stable")[:CONTENDERS])

    def play(
        self,
        scheduler: Scheduler,
        asked: Preference | None = None,
        intervals: int | None = None,
    ) -> tuple[EpisodeMetrics, Episode]:
        """Play all scenarios, for what is `asked` in place of their own weights, or `intervals` of them
        from the start; NumPy leaves [S, ...]. One compilation per class of schedulers."""
        make_room_for_programs()
        params, scored, truth, rates = self.taped, self.scored, self.truth, self.rates
        if asked is not None:
            params, scored, truth, rates = self.weighed(asked, scheduler.oracle)
        rates = truth.rates if scheduler.oracle else rates
        decision_keys = jax.random.split(jax.random.key(20), len(self))

        def block(*scenes):
            length = self.horizon if intervals is None else intervals
            return play_block(scheduler, length, self.world.table, Scenes(*scenes))

        return self._in_blocks(block, (params, scored, truth, rates, self.keys, decision_keys))

    def regret_pct(self, scheduler: Scheduler) -> np.ndarray:
        """[S] regret to clairvoyant, NaN where nothing can run."""
        return self.behind_pct(self.play(scheduler)[0])

    def behind_pct(self, metrics: EpisodeMetrics) -> np.ndarray:
        """[S] regret to clairvoyant of what was played."""
        return lost_pct(self.achieved(metrics), self.achieved(self.clairvoyant[0]))

    def decision_ms(self, scheduler: Scheduler, calls: int = 200) -> np.ndarray:
        """[calls] time of one decision of both levels at batch 1 [ms]: from an observation on the
        host to a plan on the host. What the scheduler computes once lies ready on the device. The
        table is scored by a program that all share, which is timed with the decision."""
        setup, params, key = self._first
        truth = jax.device_put(take_at_once(self.truth, 0))
        score = functools.partial(rates_now, setup) if scheduler.scores_table else None
        return decision_times_ms(scheduler, setup, truth, params, key, calls, score)

    @functools.cached_property
    def _first(self) -> tuple[Setup, EnvParams, jax.Array]:
        """The first scenario, on the device, but for its truth."""
        one = take_at_once((self.taped, self.scored, self.keys), 0)
        params, scored, key = jax.device_put(one)
        return make_setup(params, self.world.table).replace(scored=scored), params, key


def tune(evaluators: Sequence[Evaluator], names: Sequence[str]) -> Settings:
    """Tune the rivals that can be tuned, on the evaluators' (training) scenarios, all together; returns
    the settings of all.

    Tuned values are leaves, so each rival compiles once for its whole grid. Of several values of one
    rival, one is tuned after another, twice around.
    """
    work = [functools.partial(_tuned, evaluators, name) for name in names]
    settings = default_settings()
    for found in side_by_side(work):
        settings |= found
    return settings


def _tuned(evaluators: Sequence[Evaluator], name: str) -> Settings:
    """The settings of one rival, tuned."""
    tunables = [tunable for tunable in find(name).tunables if tunable.grid]
    default = default_settings()
    settings: Settings = {tunable.key: default[tunable.key] for tunable in tunables}
    tried: dict[tuple[float, ...], np.ndarray] = {}

    def regrets(key: str, value: float) -> np.ndarray:
        one: Settings = {**settings, key: value}
        if (at := tuple(one.values())) not in tried:
            played = (e.regret_pct(named(name, e.world, one)) for e in evaluators)
            tried[at] = np.concatenate(list(played))
        return tried[at]

    for tunable in tunables * min(len(tunables), 2):
        found = np.stack([regrets(tunable.key, value) for value in tunable.grid])
        found = found[:, np.isfinite(found).all(axis=0)]
        if found.size:  # else nothing can run, and the default is as good as any value
            settings[tunable.key] = tunable.grid[int(np.argmin(found.mean(axis=1)))]
    return settings
