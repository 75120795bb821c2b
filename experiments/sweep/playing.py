"""A batch from start to rows: courses of the worlds, the table's rates, then every scheduler.

The world of a group is known once: the job, the GPUs, the calibration and the plans of the table are
the same in all of its scenarios. They are kept apart from what differs (`Split`), so that a compiled
program computes the times of the plans' stages once for all scenarios, and the table is scored once for
all schedulers.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import tree_map_with_path

from agents.episodes import EpisodeMetrics, episode_metrics, play
from agents.oracles import Truth, solve_truth
from agents.protocol import Scheduler, make_setup, table_rates
from agents.registry import plan_rules
from experiments.common import load_world
from experiments.evaluate import (
    contestants,
    on_tape,
    requested,
    synchronous,
    true_setup,
)
from experiments.sweep.batches import Batch, Group, identified, padded
from experiments.sweep.config import SweepConfig
from experiments.sweep.design import Point
from jaxsim.env import EnvParams
from jaxsim.planning import SAMPLED, Objective, PlanTable
from jaxsim.pytree import Pytree
from jaxsim.scenario import (
    Draw,
    World,
    drawn_bank,
    other_draws,
    outlook_of,
    tapes,
)
from jaxsim.trees import stack

SPLIT = "sweep"  # of the seeds: scenarios that neither training nor evaluation has
BLOCK = 32  # scenarios that a core keeps in its cache
FEW_SAMPLES = 32  # of an outlook: where every scenario moves by settings of its own, each is drawn


class Split(Pytree):
    """Params of scenarios: what all share, and what differs [S, ...]; None where it is the other."""

    shared: EnvParams
    own: EnvParams

    @staticmethod
    def of(params: EnvParams) -> Split:
        """Part the params [S, ...] of one group's scenarios, on tapes."""

        def differs(path) -> bool:
            names = tuple(getattr(entry, "name", "") for entry in path)
            if names[-1] == "gpus_available":
                return params.gpus_vary
            if names[:2] == ("problem", "cluster"):
                return names[-1] == "bandwidth_gb_per_s"
            whole = ("tape", "outlook", "objective", "weights", "progress_ref")
            if params.gpus_vary:
                whole = (*whole, "load")
            return names[0] in whole or names[-1] == "deviate"

        shared = tree_map_with_path(lambda path, x: None if differs(path) else x[0], params)
        own = tree_map_with_path(lambda path, x: x if differs(path) else None, params)
        return Split(shared, own)


def joined(shared: EnvParams, own: EnvParams) -> EnvParams:
    """The params of one scenario."""
    none = functools.partial(jax.tree.map, is_leaf=lambda x: x is None)
    return none(lambda x, y: x if y is None else y, shared, own)


def _each(function: Any, own: Any) -> Any:
    """`function` of every scenario, BLOCK of them at once."""
    count = jax.tree.leaves(own)[0].shape[0]
    if count <= BLOCK:
        return jax.vmap(function)(own)
    return jax.lax.map(function, own, batch_size=BLOCK)


@functools.partial(jax.jit, static_argnames=("known",))
def _rates(table: PlanTable, params: Split, known: bool) -> jax.Array:
    """[S, T, P, V] the table's rates along the course of each scenario, for those to whom it is `known`
    what a token is worth or for all others."""
    setup = true_setup if known else make_setup

    def one(own):
        params_ = joined(params.shared, own)
        return table_rates(setup(params_, table), params_.tape)

    return _each(one, params.own)


@jax.jit
def _truths(table: PlanTable, params: Split, rates: jax.Array) -> Truth:
    """What the future of each scenario holds, [S, ...]."""

    def one(args):
        own, rates = args
        params_ = joined(params.shared, own)
        return solve_truth(true_setup(params_, table), params_.tape, rates)

    return _each(one, (params.own, rates))


@functools.partial(jax.jit, static_argnames=("horizon",))
def _metrics(
    scheduler: Scheduler,
    horizon: int,
    table: PlanTable,
    params: Split,
    rates: jax.Array,
    truth: Truth | None,
    keys: jax.Array,
    decision_keys: jax.Array,
) -> EpisodeMetrics:
    """What one scheduler comes to in each scenario, [S]; `rates` are what is measured."""

    def one(args):
        own, rates, truth, key, decision_key = args
        params_ = joined(params.shared, own)
        setup = make_setup(params_, table)
        episode = play(scheduler, params_, setup, truth, key, decision_key, horizon, rates)
        return episode_metrics(episode, params_)

    return _each(one, (params.own, rates, truth, keys, decision_keys))


class Player:
    """Plays the batches of a sweep; threads may share one."""

    def __init__(self, config: SweepConfig, points: list[Point]):
        """Raises InputError for schedulers that are not known."""
        self.config, self.points = config, points
        self.names, self.checkpoints = requested(",".join(config.names))
        self._lock = threading.Lock()
        self._worlds: dict[Group, tuple[World, list[Scheduler]]] = {}

    def world(self, group: Group) -> tuple[World, list[Scheduler]]:
        """The world of a group and its schedulers, made once. Raises InputError where no plan fits."""
        with self._lock:
            if group not in self._worlds:
                self._worlds[group] = self._made(group)
            return self._worlds[group]

    def _made(self, group: Group) -> tuple[World, list[Scheduler]]:
        c = self.config
        rules = plan_rules([name for name in self.names if name not in self.checkpoints])
        _, world, _ = load_world(
            *(group.cluster, group.model, c.global_batch, c.seq, c.table_size),
            rules,
            domains=group.domains,
            layout_limit=c.layout_limit,
            loaded=group.loaded,
            preferences=SAMPLED if group.weighted else (),
            efficiency=c.efficiency,
            allow=c.allow,
        )
        args = (self.checkpoints, {}, world)
        return world, [contestants(name, *args)[0].scheduler for name in self.names]

    def scenarios(self, batch: Batch) -> tuple[EnvParams, jax.Array]:
        """Params [S, ...] and keys [S] of a batch on tapes, filled up to its size."""
        world, _ = self.world(batch.group)
        numbers, seeds = padded(batch)
        points = [self.points[number] for number in numbers]
        weights = [tuple(float(w) for w in point.weights.split(",")) for point in points]
        settings = [self.config.settings(p.jitter, p.strength, p.load) for p in points]
        drawn = list(zip(settings, (int(s) for s in seeds), weights, strict=True))
        length = self.config.steps + 1
        draws = [Draw(*one) for one in drawn]
        params, keys = drawn_bank(world, draws, SPLIT)
        others = other_draws(world, draws, SPLIT, count=FEW_SAMPLES)
        taped = on_tape(params, tapes(params, keys, length))
        taped = taped.replace(outlook=outlook_of(others, params, 1))
        if batch.group.weighted:
            taped = taped.replace(objective=stack([_objective(w) for w in weights]))
        return taped, keys

    def columns(self, batch: Batch) -> dict[str, Any]:
        """The rows of a batch by column, each scheduler's [S] after another's."""
        world, schedulers = self.world(batch.group)
        params, keys = self.scenarios(batch)
        params_, table = Split.of(params), world.table
        rates, truth = _rates(table, params_, known=False), None
        if any(scheduler.oracle for scheduler in schedulers):
            # Of synchronous plans a token is worth 1, whoever knows what.
            plain = synchronous(table.plans)
            true = rates if plain else _rates(table, params_, known=True)
            truth = _truths(table, params_, true)
        numbers = jnp.asarray(padded(batch)[1], jnp.uint32)
        decision_keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(20), numbers)
        args = (table, params_, rates, truth, keys, decision_keys)
        parts = [_metrics(s, self.config.steps, *args) for s in schedulers]
        whole = [jax.tree.map(lambda x: np.asarray(x)[: batch.count], part) for part in parts]
        return self._told(batch, whole)

    def _told(self, batch: Batch, metrics: list[EpisodeMetrics]) -> dict[str, Any]:
        points = [self.points[number] for number in batch.points]
        fields = EpisodeMetrics.__dataclass_fields__
        each = {name: [getattr(part, name) for part in metrics] for name in fields}
        first = np.array([float(point.weights.split(",")[0]) for point in points], np.float32)
        reward = [self.config.steps * (part.reward + first) for part in metrics]
        return {
            **identified(batch, self.points, self.names),
            "achieved": np.concatenate(reward if batch.group.weighted else each["progress"]),
            **{name: np.concatenate(values) for name, values in each.items()},
        }


def _objective(weights: tuple[float, ...]) -> Objective:
    """What a scenario of a weighted group maximises; such a group's weights are not progress alone."""
    objective = Objective.of(weights)
    assert objective is not None
    return objective
