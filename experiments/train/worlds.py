"""The worlds that a policy is trained on: their plans, and their training scenarios."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.common import (
    LAYOUT_LIMIT,
    load_regions,
    load_world,
    parse_weights,
    prices_of_rows,
    progress,
    read_traces,
)
from experiments.evaluate import EvaluateConfig, is_suite_file, load_suite, scene_configs
from experiments.runs import tell_dry
from experiments.train.config import FAST, TrainConfig, name_and_allowed, recorded
from experiments.train.preferences import drawn_preferences, objectives_of
from experiments.train.start import starting_policy
from jaxsim.cluster import ClusterSpec
from jaxsim.env import EnvParams
from jaxsim.files import InputError, shown
from jaxsim.learning import read_efficiency
from jaxsim.planning import SAMPLED, Objective, TableInfo
from jaxsim.scenario import (
    Draw,
    ScenarioSettings,
    World,
    other_draws,
    outlook_of,
    scenario_bank,
)
from jaxsim.trees import take
from jaxsim.workload import load_model
from jaxsim.worlds import named_world


class TrainingWorld(NamedTuple):
    """One of the worlds of a training run; `traces` and `held_out` are those of `scenario_bank`."""

    name: str
    spec: ClusterSpec
    world: World
    info: TableInfo
    scenario: ScenarioSettings
    traces: dict[str, np.ndarray | None]
    held_out: dict[str, np.ndarray | None]

    def bank(self, config: TrainConfig) -> tuple[EnvParams, jax.Array]:
        """Its training scenarios [S] and their keys. Raises InputError where no plan runs in one."""
        seeds = range(config.scenarios)
        scenarios = self.scenario, seeds, "train", config.weights
        asked = {"objective": asked_of(config), **self.traces}
        params, keys = scenario_bank(self.world, *scenarios, **asked)
        draws = [Draw(self.scenario, seed, config.weights) for seed in seeds]
        others = other_draws(self.world, draws, "train", **self.traces)
        params = params.replace(outlook=outlook_of(others, params, self.scenario.horizon))
        if config.preferences == "drawn":
            prices = prices_of_rows(take(params, 0).problem.job(0), self.world.table)
            ends = float(prices.min()), float(prices[np.argmax(self.world.table.base_rate)])
            objective = objectives_of(drawn_preferences(seeds, ends, not params.gpus_vary))
            params = params.replace(objective=objective, weights=objective.weights)
        stuck = int(np.sum(np.asarray(params.progress_ref) <= 0))
        if stuck:
            raise InputError(
                f"train: no plan runs at mean load in {stuck} of {config.scenarios} scenarios: "
                "scenario.load_share must leave GPUs for one"
            )
        return params, keys


def asked_of(config: TrainConfig) -> Objective | None:
    """What all scenarios ask for; None = progress. By PPO weights are those of the rewards alone."""
    return Objective.of(config.weights) if config.train.algorithm == "exact" else None


class AskedWorld(NamedTuple):
    """What one of the worlds of a training run is to be built from."""

    name: str  # "" = that of its cluster
    cluster: str | None
    model: str
    global_batch: int
    seq: int
    scenario: ScenarioSettings
    allow: str
    efficiency: str
    table_size: int
    layout_limit: int = LAYOUT_LIMIT
    domains: int | None = None
    trace: str | None = None
    load: str | None = None

    @classmethod
    def of(cls, source: Any, **own: Any) -> AskedWorld:
        """From the fields of these names of a named world or of a configuration, but for its `own`."""
        alike = (name for name in cls._fields if name not in own and hasattr(source, name))
        return cls(**own, **{name: getattr(source, name) for name in alike})


def asked_worlds(config: TrainConfig) -> list[AskedWorld]:
    """What `worlds` names, or the one world of `cluster`, `model` and `scenario`. Raises InputError
    that names what is unknown, there twice, or not for training."""
    if not config.names:
        return [AskedWorld.of(config, name="")]
    found = [one for given in config.names for one in _named(given, config)]
    names = [one.name for one in found]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise InputError(f"train: worlds: {shown(twice[0])} is there twice; expected other names")
    if config.train.algorithm == "ppo" and len(found) > 1:
        raise InputError(
            "train: worlds: ppo learns from one world; train.algorithm exact from many"
        )
    return found


def _named(given: str, config: TrainConfig) -> list[AskedWorld]:
    """A named world, or the scenes of a suite's file."""
    if is_suite_file(given):
        return _scenes(given, config)
    name, allow = name_and_allowed(given, config.allow)
    told = {"efficiency": config.efficiency, "table_size": config.table_size}
    return [AskedWorld.of(named_world(name), name=given, allow=allow, **told)]


def _scenes(given: str, config: TrainConfig) -> list[AskedWorld]:
    """A world for each scene of a suite's file: that which `evaluate --suite` plays."""
    told = {key: getattr(config, key) for key in ("allow", "efficiency", "table_size")}
    suite, found = load_suite(given), []
    for name, scene in scene_configs(suite, EvaluateConfig(**told), list(told)).items():
        where = f"{given}: {name}"
        if scene.jobs is not None:
            raise InputError(f"{where}: jobs: expected one job to train for, got {scene.jobs}")
        asked = parse_weights(scene.weights), scene.budget
        if asked != (FAST, None):
            raise InputError(
                f"{where}: weights, budget: not allowed in a training's scene; expected "
                "train --weights or --preferences drawn"
            )
        found.append(AskedWorld.of(scene, name=name, scenario=scene.world_settings))
    return found


def training_worlds(config: TrainConfig) -> tuple[TrainingWorld, ...]:
    """Build what `asked_worlds` finds. Raises InputError that names what cannot be used."""
    asked = asked_worlds(config)
    for one in asked:
        one.scenario.links()  # refuse a bad jitter file before anything is computed
    built, alone = [], len(asked) == 1
    with progress(total=len(asked), desc="worlds", unit="world", disable=alone) as bar:
        for one in asked:
            built.append(_built(config, one))
            bar.update()
    return tuple(built)


def check_worlds(config: TrainConfig) -> list[ClusterSpec]:
    """Read what a training run names, and build nothing; the clusters. Raises InputError."""
    starting_policy(config.start, config.train.networks, 1)
    clusters = []
    for one in asked_worlds(config):
        read_efficiency(one.efficiency)
        one.scenario.links()
        load_model(one.model)
        clusters.append(load_regions(one.cluster, one.domains))
        read_traces(one.trace, one.load, clusters[-1], one.scenario.interval_s)
    return clusters


def dry_run(config: TrainConfig) -> None:
    """Check the files, say how much there is to do and how long runs like it took. Raises
    InputError."""
    clusters = check_worlds(config)
    work = {
        "worlds": len(clusters),
        "domains": max(spec.n_domains for spec in clusters),
        "policy seeds": len(config.seeds),
        "epochs": config.epochs,
        "training scenarios": config.scenarios * len(clusters),
        "held-out scenarios": config.eval_scenarios * len(clusters),
        "evaluations": 1 + -(-config.epochs // config.eval_every),
    }
    tell_dry("train", {**recorded(config), "out": config.out}, work)


def _built(config: TrainConfig, one: AskedWorld) -> TrainingWorld:
    # A bad file is refused before anything is computed.
    regions = load_regions(one.cluster, one.domains)
    files = read_traces(one.trace, one.load, regions, one.scenario.interval_s)
    spec, world, info = load_world(
        *(one.cluster, one.model, one.global_batch, one.seq, one.table_size),
        loaded=one.scenario.load_share > 0 or one.load is not None,
        efficiency=one.efficiency,
        allow=one.allow,
        preferences=SAMPLED if config.preferences == "drawn" or any(config.weights[1:]) else (),
        note=False,  # there may be more to refuse, in one line
        layout_limit=one.layout_limit,
        domains=one.domains,
    )
    traces, held_out = {}, {}
    for key, rows in files.items():
        traces[key], held_out[key] = (None, None) if rows is None else divided(rows)
    return TrainingWorld(one.name or spec.name, spec, world, info, one.scenario, traces, held_out)


def divided(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first three quarters of a trace, rounded up, and the rest; a trace of one row is both."""
    cut = -(-3 * len(rows) // 4)
    return rows[:cut], rows[cut:] if cut < len(rows) else rows
