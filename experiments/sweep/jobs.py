"""A batch of scenarios of many jobs: who submits what is drawn, everything else is as in an evaluation.

All jobs of a point train one model, so that its world is built once; when they arrive and how much they
have to do is drawn for each scenario. Scenarios are played one after another, because a job that is not
there is skipped, which a batch cannot.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
import pandas as pd

from agents.many_jobs import JobMetrics
from experiments.common import load_jobs_world, load_regions, made_once
from experiments.evaluate import (
    JobsContestant,
    JobsScenario,
    check_allocation,
    jobs_scenarios,
    play_jobs,
    requested_for_jobs,
)
from experiments.sweep.batches import Batch, Group, identified
from experiments.sweep.config import SweepConfig
from experiments.sweep.design import Point
from experiments.sweep.playing import SPLIT
from jaxsim.load import JobMix, SubmittedJob, busy_tflop, random_jobs
from jaxsim.scenario import JobsWorld, ScenarioSettings, jobs_bank

ARRIVE_WITHIN = 0.5  # of the episode


class JobsPlayer:
    """Plays the batches of a sweep over numbers of jobs; threads may share one."""

    def __init__(self, config: SweepConfig, points: list[Point]):
        """Raises InputError for schedulers that are not known."""
        self.config, self.points = config, points
        first: dict[str, JobsContestant] = {}  # of a checkpoint the first policy seed
        for one in requested_for_jobs(config.schedulers, None):
            first.setdefault(one.name, one)
        self.contestants = list(first.values())
        self.world = made_once(self._world)

    def _world(self, group: Group) -> JobsWorld:
        """The world of a group. Raises InputError where no plan fits."""
        c = self.config
        return load_jobs_world(
            load_regions(group.cluster, group.domains),
            self.submitted(group, 0),
            c.table_size,
            c.layout_limit,
            efficiency=c.efficiency,
            allow=c.allow,
        )

    def submitted(self, group: Group, seed: int) -> tuple[SubmittedJob, ...]:
        """The jobs of a scenario: the same number, the same list at every point of a group."""
        assert group.jobs is not None
        c, interval_s = self.config, ScenarioSettings().interval_s
        mix = JobMix((group.model,), c.global_batch, c.seq, ARRIVE_WITHIN * c.steps * interval_s)
        spec = load_regions(group.cluster, group.domains)
        work = busy_tflop(spec.peak_tflops, mix.span_s, group.jobs)
        return random_jobs(group.jobs, mix, work, 1.0, np.random.default_rng([c.seed, seed]))

    def scenario(self, group: Group, point: Point, seed: int) -> JobsScenario:
        """One scenario of a point, with what its future holds."""
        world, settings = self.world(group), self._settings(point)
        jobs = [job.spec for job in self.submitted(group, seed)]
        params, keys = jobs_bank(world, settings, range(seed, seed + 1), SPLIT)
        work = params.problem.work.replace(
            arrival_s=jnp.array([[job.arrival_s for job in jobs]], jnp.float32),
            step_budget=jnp.array([[job.step_budget for job in jobs]], jnp.float32),
        )
        params = params.replace(problem=params.problem.of(work))
        return jobs_scenarios(world, params, keys, settings.horizon)[0]

    def _settings(self, point: Point) -> ScenarioSettings:
        return self.config.settings(point.jitter, point.strength, point.load)

    def columns(self, batch: Batch) -> dict[str, Any]:
        """The rows of a batch by column, each scheduler's [S] after another's."""
        group, world = batch.group, self.world(batch.group)
        scenarios = [
            self.scenario(group, self.points[number], seed)
            for number, seed in zip(batch.points, batch.seeds, strict=True)
        ]
        rows = [
            figures(metrics)
            for one in self.contestants
            for metrics in play_jobs(one, world, scenarios)
        ]
        names = [one.name for one in self.contestants]
        check_allocation(
            pd.DataFrame(
                {
                    "scheduler": np.repeat(names, len(scenarios)),
                    "scenario": np.tile(batch.seeds, len(names)),
                    "overcommitted": [row["overcommitted"] for row in rows],
                }
            )
        )
        return {
            **identified(batch, self.points, names),
            **{name: np.array([row[name] for row in rows], np.float32) for name in rows[0]},
        }


def figures(metrics: JobMetrics) -> dict[str, float]:
    """A scenario's row: the mean over its jobs of what is each job's, and the cluster's figures.
    `achieved` is the speed of the mean job, 1 where all are as fast as they would be alone."""
    values = dataclasses.asdict(metrics)
    row = {name: _mean(np.atleast_1d(value)) for name, value in values.items()}
    row["replans"] = row.pop("moves")
    return {"achieved": 1.0 / row["jct_normalised"], **row}


def _mean(values: np.ndarray) -> float:
    """Of those that are known; NaN if none is."""
    known = values[~np.isnan(values)].astype(np.float64)
    return float(known.mean()) if known.size else float("nan")
