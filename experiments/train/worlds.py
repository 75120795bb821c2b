"""The worlds that a policy is trained on: their plans, and their training scenarios."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import numpy as np

from experiments.common import (
    LAYOUT_LIMIT,
    load_regions,
    load_world,
    prices_of_rows,
    progress,
    read_traces,
)
from experiments.runs import tell_dry
from experiments.train.config import TrainConfig, name_and_allowed, recorded
from experiments.train.preferences import drawn_preferences, objectives_of
from experiments.train.start import starting_policy
from jaxsim.cluster import ClusterSpec
from jaxsim.env import EnvParams
from jaxsim.files import InputError
from jaxsim.learning import read_efficiency
from jaxsim.planning import SAMPLED, Objective, TableInfo
from jaxsim.scenario import ScenarioSettings, World, scenario_bank
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


def training_worlds(config: TrainConfig) -> tuple[TrainingWorld, ...]:
    """Build what `worlds` names, or the one world of `cluster`, `model` and `scenario`.

    Raises InputError that names what cannot be used.
    """
    if not config.names:
        config.scenario.links()  # refuse a bad jitter file before anything is computed
        about = config.cluster, config.model, config.global_batch, config.seq
        return (_built(config, "", about, config.scenario),)
    parts = [name_and_allowed(given, config.allow) for given in config.names]
    named = [(named_world(name), allow) for name, allow in parts]
    built = []
    with progress(total=len(named), desc="worlds", unit="world") as bar:
        for given, (of, allow) in zip(config.names, named, strict=True):
            about = of.cluster, of.model, of.global_batch, of.seq
            sizes = of.layout_limit, of.domains
            own = dataclasses.replace(config, allow=allow)
            built.append(_built(own, given, about, of.scenario, *sizes))
            bar.update()
    return tuple(built)


def check_worlds(config: TrainConfig) -> list[ClusterSpec]:
    """Read what a training run names, and build nothing; the clusters. Raises InputError."""
    read_efficiency(config.efficiency)
    starting_policy(config.start, config.train.networks, 1)
    if config.names:
        named = [named_world(name_and_allowed(name, config.allow)[0]) for name in config.names]
        of = [(one.cluster, one.domains, one.model, one.scenario) for one in named]
    else:
        of = [(config.cluster, None, config.model, config.scenario)]
    clusters = []
    for cluster, domains, model, scenario in of:
        scenario.links()
        load_model(model)
        clusters.append(load_regions(cluster, domains))
        read_traces(config.trace, config.load, clusters[-1], scenario.interval_s)
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


def _built(
    config: TrainConfig,
    name: str,
    about: tuple[str | None, str, int, int],
    scenario: ScenarioSettings,
    layout_limit: int = LAYOUT_LIMIT,
    domains: int | None = None,
) -> TrainingWorld:
    # A bad file is refused before anything is computed.
    regions = load_regions(about[0], domains)
    files = read_traces(config.trace, config.load, regions, scenario.interval_s)
    spec, world, info = load_world(
        *(*about, config.table_size),
        loaded=scenario.load_share > 0 or config.load is not None,
        efficiency=config.efficiency,
        allow=config.allow,
        preferences=SAMPLED if config.preferences == "drawn" or any(config.weights[1:]) else (),
        note=False,  # there may be more to refuse, in one line
        layout_limit=layout_limit,
        domains=domains,
    )
    traces, held_out = {}, {}
    for key, rows in files.items():
        traces[key], held_out[key] = (None, None) if rows is None else divided(rows)
    return TrainingWorld(name or spec.name, spec, world, info, scenario, traces, held_out)


def divided(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first three quarters of a trace, rounded up, and the rest; a trace of one row is both."""
    cut = -(-3 * len(rows) // 4)
    return rows[:cut], rows[cut:] if cut < len(rows) else rows
