"""Playing schedulers on one bank of scenarios: common random numbers, the truth solved once."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agents.hi_ppo.scheduler import make_hi_ppo
from agents.metrics import EpisodeMetrics, episode_metrics
from agents.oracle import family_bound, make_truth
from agents.protocol import Scheduler, Setup, make_setup
from agents.registry import TUNING_GRID, SchedulerSettings, make_by_name
from agents.rollout import Episode, play
from jaxsim.env import reset
from jaxsim.scenario import ScenarioSettings, World, scenario_bank

Maker = Callable[[Setup, Any], Scheduler]  # (setup, policy or tuned value) -> scheduler


@functools.cache
def learned_maker(hidden: int, every: int) -> Maker:
    """Hi-PPO as a function of its parameters, so that all policy seeds share one compilation."""
    return lambda setup, policy: make_hi_ppo(setup, policy, hidden, every)


@functools.cache
def named_maker(name: str, settings: SchedulerSettings) -> Maker:
    """A scheduler that is not learned; the policy argument is ignored."""
    return lambda setup, _: make_by_name(name, settings)(setup)


def lost_pct(progress: np.ndarray, best: np.ndarray) -> np.ndarray:
    """What `progress` lacks of `best` [%]; NaN where nothing can run."""
    best = np.where(best > 0, best, np.nan)
    return 100.0 * (1.0 - progress / best)


class Evaluator:
    """A bank of scenarios with everything that schedulers are compared against."""

    def __init__(
        self,
        world: World,
        settings: ScenarioSettings,
        seeds: range,
        split: str,
        weights: tuple[float, float, float, float],
        network_trace: np.ndarray | None = None,
        load_trace: np.ndarray | None = None,
    ):
        self.world, self.horizon = world, settings.horizon
        self.params, self.keys = scenario_bank(
            world, settings, seeds, split, weights, network_trace, load_trace
        )
        self.truth = jax.jit(jax.vmap(self._truth))(self.params, self.keys)
        self._compiled: dict[Maker, Callable] = {}
        self.clairvoyant = self.play(named_maker("clairvoyant", SchedulerSettings()))
        self.static = self.play(named_maker("best_static", SchedulerSettings()))

    def _truth(self, params, key):
        setup = make_setup(params, self.world.table)
        return make_truth(params, setup, key, self.horizon)

    @property
    def headroom_pct(self) -> np.ndarray:
        """[S] what clairvoyant gains over the best static plan (it can always play that one);
        infinite where that one never runs, NaN where nothing can."""
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = self.clairvoyant[0].progress / self.static[0].progress
        return np.maximum(100.0 * (ratio - 1.0), 0.0)

    def bound(self) -> np.ndarray:
        """[S] training steps of the best plan of the whole family in every interval, moves free."""

        @jax.jit
        def one(params, views):
            return family_bound(params, self.world.family, views)

        index = range(self.keys.shape[0])
        pick = [jax.tree.map(lambda x, i=i: x[i], (self.params, self.truth.views)) for i in index]
        return np.array([float(one(p, v)) for p, v in pick])

    def play(self, maker: Maker, policy: Any = ()) -> tuple[EpisodeMetrics, Episode]:
        """Play all scenarios; NumPy leaves [S, ...]. One compilation per maker."""
        if maker not in self._compiled:
            self._compiled[maker] = jax.jit(
                jax.vmap(functools.partial(self._play, maker), in_axes=(None, 0, 0, 0, 0))
            )
        decision_keys = jax.random.split(jax.random.key(20), self.keys.shape[0])
        out = self._compiled[maker](policy, self.params, self.truth, self.keys, decision_keys)
        return jax.tree.map(np.asarray, out)

    def _play(self, maker: Maker, policy, params, truth, key, decision_key):
        setup = make_setup(params, self.world.table)

        def make(s):
            return maker(s, policy)

        episode = play(make, params, setup, truth, key, decision_key, self.horizon)
        return episode_metrics(episode, params), episode

    def regret_pct(self, maker: Maker, policy: Any = ()) -> np.ndarray:
        """[S] regret to clairvoyant, NaN where nothing can run."""
        return lost_pct(self.play(maker, policy)[0].progress, self.clairvoyant[0].progress)

    def decision_ms(self, maker: Maker, policy: Any = (), calls: int = 200) -> tuple[float, float]:
        """Median and 99th percentile of one decision at batch 1, plan on the host included."""
        params, key, truth = jax.tree.map(lambda x: x[0], (self.params, self.keys, self.truth))
        setup = make_setup(params, self.world.table)
        state, timestep = jax.jit(reset)(key, params)
        del state

        @jax.jit
        def decide(setup, policy, observation, memory):
            scheduler = maker(setup, policy)
            extra = (truth,) if scheduler.oracle else ()
            return scheduler.decide(jax.random.key(1), observation, memory, *extra)

        memory = maker(setup, policy).init(jax.random.key(0))
        taken = []
        for call in range(calls + 3):
            start = time.perf_counter()
            plan, memory = decide(setup, policy, timestep.observation, memory)
            jax.tree.map(np.asarray, plan)
            if call >= 3:  # the first calls compile
                taken.append(1e3 * (time.perf_counter() - start))
        return float(np.percentile(taken, 50)), float(np.percentile(taken, 99))


def tune(evaluator: Evaluator, names: list[str]) -> SchedulerSettings:
    """Tune the rivals that can be tuned, on the evaluator's (training) scenarios.

    Tuned values are traced, so each rival compiles once for its whole grid.
    """
    best: dict[str, float] = {}
    for name in names:
        if name not in TUNING_GRID:
            continue
        field, grid = TUNING_GRID[name]

        def maker(setup, value, name=name, field=field):
            settings = SchedulerSettings(**{field: value})
            return make_by_name(name, settings)(setup)

        regrets = np.stack([evaluator.regret_pct(maker, jnp.float32(v)) for v in grid])
        regrets = regrets[:, np.isfinite(regrets).all(axis=0)]
        if regrets.size:  # else nothing can run, and the default is as good as any value
            best[field] = grid[int(np.argmin(regrets.mean(axis=1)))]
    return SchedulerSettings(**best)
