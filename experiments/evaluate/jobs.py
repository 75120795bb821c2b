"""Compare schedulers on many jobs: `python -m experiments.evaluate --jobs FILE --schedulers a,b`."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from tqdm import tqdm

from agents.hi_ppo import Checkpoint, schedulers
from agents.many_jobs import (
    JobMetrics,
    JobsScheduler,
    PerJobScheduler,
    completion_alone_s,
    job_metrics,
    make_jobs_setup,
    utilisation_alone,
)
from agents.protocol import Scheduler
from agents.registry import default_settings, find, jobs_names, make_for_jobs, names
from analysis.records import RunWriter, load
from analysis.statistics import jobs_summary
from experiments.common import (
    SEARCH,
    CheckError,
    load_jobs_world,
    load_regions,
    make_room_for_programs,
    note_efficiency,
    read_traces,
)
from experiments.evaluate.contestants import checkpoint_of
from experiments.evaluate.playing import JobsScenes, play_in_turn
from experiments.evaluate.programs import decision_times_ms, wide
from jaxsim.env import EnvParams
from jaxsim.files import InputError
from jaxsim.load import SubmittedJob, read_jobs
from jaxsim.planning import gpus_once
from jaxsim.scenario import JobsWorld, ScenarioSettings, jobs_bank, padded_world, tapes
from jaxsim.short_axes import ShortAxes, threadsafe
from jaxsim.step_time import NetworkView
from jaxsim.trees import stack, take

if TYPE_CHECKING:
    from experiments.evaluate.config import EvaluateConfig

DECISIONS = 50  # that are timed
AT_ONCE = 16  # scenarios


class JobsContestant(NamedTuple):
    """One scheduler, or one policy seed of a learned one."""

    name: str
    policy_seed: int | None
    scheduler: Scheduler | None  # of one job; None = the name's own for many jobs

    def of(self, world: JobsWorld) -> JobsScheduler:
        """The scheduler for all jobs of a world."""
        if self.scheduler is None:
            return make_for_jobs(find(self.name), world)
        return PerJobScheduler.of([self.scheduler] * world.kind.shape[0])


def requested_for_jobs(schedulers: str, checkpoint: str | None) -> list[JobsContestant]:
    """Who is to play. Raises InputError that lists the known names."""
    asked = [n.strip() for n in schedulers.split(",") if n.strip()]
    known = jobs_names()
    if asked == ["all"]:
        asked = list(known)
    if not asked:
        raise InputError("schedulers: expected at least one name")
    out = []
    for name in dict.fromkeys(asked):
        if name.endswith(SEARCH):
            raise InputError(
                f"schedulers: {name!r} searches for one job; expected it without {SEARCH}"
            )
        if name in names() and name not in known:
            raise InputError(f"schedulers: {name!r} is for one job; known: {', '.join(known)}")
        found = checkpoint_of(name, known, checkpoint)
        out += [JobsContestant(name, None, None)] if found is None else _learned(name, found)
    return out


def _learned(name: str, found: Checkpoint) -> list[JobsContestant]:
    seeds = zip(found.meta["seeds"], schedulers(found), strict=True)
    return [JobsContestant(name, seed, scheduler) for seed, scheduler in seeds]


def arriving(
    submitted: Sequence[SubmittedJob], settings: ScenarioSettings, path: str | None
) -> int:
    """How many jobs arrive within an episode. Raises InputError where none does."""
    span_s = settings.horizon * settings.interval_s
    count = sum(job.spec.arrival_s < span_s for job in submitted)
    if not count:
        first_s = submitted[0].spec.arrival_s
        raise InputError(
            f"{path}: arrival_s: the first job arrives at {first_s:g} s, the episode of "
            f"{settings.horizon} intervals ends at {span_s:g} s; allow for more steps"
        )
    return count


class JobsScenario(NamedTuple):
    """One scenario, and what its future holds."""

    params: EnvParams
    key: jax.Array
    views: NetworkView  # [T + 1, ...]
    alone_s: jax.Array  # [J] what every job would need alone


def jobs_scenarios(
    world: JobsWorld, params: EnvParams, keys: jax.Array, horizon: int
) -> list[JobsScenario]:
    """The scenarios of a bank, leaves [S, ...], one by one."""
    views, out = tapes(params, keys, horizon + 1), []
    for seed in range(len(keys)):
        own, key, course = take((params, keys, views), seed)
        out.append(JobsScenario(own, key, course, alone(own, world, gpus_once(course))))
    return out


def play_jobs(
    one: JobsContestant, world: JobsWorld, scenarios: Sequence[JobsScenario]
) -> Iterator[JobMetrics]:
    """What each scenario comes to, NumPy leaves; up to AT_ONCE of them are played together."""
    make_room_for_programs()
    scheduler = one.of(world)
    # Whether GPUs come and go is compiled in.
    for _, alike in itertools.groupby(scenarios, jax.tree.structure):
        waiting = list(alike)
        for start in range(0, len(waiting), AT_ONCE):
            yield from _played_together(scheduler, world, waiting[start : start + AT_ONCE])


def _played_together(
    scheduler: JobsScheduler, world: JobsWorld, scenarios: list[JobsScenario]
) -> Iterator[JobMetrics]:
    # Filled up to a power of two: other numbers of scenarios share programs.
    size = 1 << (len(scenarios) - 1).bit_length()
    filled = [*scenarios, *[scenarios[0]] * (size - len(scenarios))]
    params, keys, views, alone_s = stack(filled)
    available = views.gpus_available[:, 1:]
    scenes = JobsScenes(params, keys, views)
    played = play_in_turn(scheduler, available.shape[1], world, scenes)
    metrics = jax.tree.map(np.asarray, measured_jobs(played, params, alone_s, available))
    yield from (take(metrics, i) for i in range(len(scenarios)))


class JobsEvaluation:
    """One evaluation from checked inputs to records."""

    def __init__(self, config: EvaluateConfig, n_domains: int | None = None):
        """With masked domains up to `n_domains`: clusters of several sizes share compiled programs."""
        self.config, self.settings = config, config.world_settings
        self.contestants = requested_for_jobs(config.schedulers, config.checkpoint)
        self.settings.links()  # refuse a bad jitter file before anything is computed
        self.submitted = read_jobs(config.jobs)
        self.n_counted = arriving(self.submitted, self.settings, config.jobs)
        self.spec = load_regions(config.cluster, config.domains)
        traces = read_traces(config.trace, config.load, self.spec, self.settings.interval_s)
        self.world = load_jobs_world(
            self.spec,
            self.submitted,
            config.table_size,
            config.layout_limit,
            efficiency=config.efficiency,
            allow=config.allow,
        )
        if n_domains is not None:
            self.world = padded_world(self.world, self.spec, n_domains)
        note_efficiency(self.spec)
        bank = jobs_bank(
            self.world, self.settings, range(config.seeds), "test", config.sharing, **traces
        )
        self.scenarios = jobs_scenarios(self.world, *bank, self.settings.horizon)

    def run(self, writer: RunWriter) -> dict:
        """Play everybody whom the run folder does not know yet, return the summary."""
        record = load(writer.dir)
        frames = [record.table("jobs")] if "jobs" in record.tables() else []
        known = record.table("decisions") if "decisions" in record.tables() else pd.DataFrame()
        decisions = known.to_dict("records")
        seeds = self.config.seeds
        with tqdm(total=len(self.contestants) * seeds, desc="evaluate jobs", unit="episode") as bar:
            for one in self.contestants:
                bar.set_postfix_str(one.name)
                if frames and _is_in(one, frames[0]):
                    bar.update(seeds)
                    continue
                played = []
                for metrics in self.play(one):
                    played.append(metrics)
                    bar.update()
                if one.name not in [row["scheduler"] for row in decisions]:
                    decisions.append(self._timed(one))
                    writer.write_table("decisions", pd.DataFrame(decisions))
                frames.append(self._rows(one, played))
                writer.write_table("jobs", pd.concat(frames, ignore_index=True))
        table = pd.concat(frames, ignore_index=True)
        summary = jobs_summary(table, pd.DataFrame(decisions))
        check_allocation(table)
        order = dict.fromkeys(one.name for one in self.contestants)
        return {
            "scenario": {
                "cluster": self.spec.name,
                "efficiency": note_efficiency(self.spec),
                "domains": list(self.spec.domains),
                "jobs": self.config.jobs,
                "n_jobs": len(self.submitted),
                "n_counted": self.n_counted,
                "sharing": self.config.sharing,
                "allow": self.config.allow,
                "trace": self.config.trace,
                "load": self.config.load,
                "seeds": self.config.seeds,
                "settings": dataclasses.asdict(self.settings),
                "tuned": default_settings(),
            },
            "best": summary["best"],
            "schedulers": {name: summary["schedulers"][name] for name in order},
        }

    def play(self, one: JobsContestant) -> Iterator[JobMetrics]:
        """What one contestant comes to in each scenario."""
        return play_jobs(one, self.world, self.scenarios)

    def utilisation_alone(self) -> np.ndarray:
        """[S] of the cluster, if every job had it to itself: no scheduler's is higher."""
        bounds = [
            utilisation_alone(params, alone_s, views.gpus_available[1:])
            for params, _, views, alone_s in self.scenarios
        ]
        return np.array(bounds, float)

    def decision_ms(self, one: JobsContestant) -> np.ndarray:
        """[DECISIONS] time in which all jobs have decided [ms], the longest that it can be: every job
        is there, and none is deployed."""
        params, key, views, _ = self.scenarios[0]
        at_once = params.problem.work.replace(
            arrival_s=jnp.zeros_like(params.problem.work.arrival_s)
        )
        params = params.replace(problem=params.problem.of(at_once))
        setup = make_jobs_setup(params, self.world)
        return decision_times_ms(one.of(self.world), setup, views, params, key, DECISIONS)

    def _timed(self, one: JobsContestant) -> dict:
        """A row of the decisions table; the first policy seed stands for all."""
        p50, p99 = np.percentile(self.decision_ms(one), (50, 99))
        return {"scheduler": one.name, "decision_ms_p50": p50, "decision_ms_p99": p99}

    def _rows(self, one: JobsContestant, played: list[JobMetrics]) -> pd.DataFrame:
        """jobs.csv of one contestant: a row per scenario and job, the cluster's figures repeated."""
        rows = []
        for seed, metrics in enumerate(played):
            values = dataclasses.asdict(metrics)
            for j, job in enumerate(self.submitted):
                head = {"scheduler": one.name, "policy_seed": _number(one), "scenario": seed}
                head |= {"job": j, "model": job.model, "arrival_s": job.spec.arrival_s}
                rows.append(head | {k: float(v[j] if v.ndim else v) for k, v in values.items()})
        return pd.DataFrame(rows)


def _number(one: JobsContestant) -> float:
    return np.nan if one.policy_seed is None else float(one.policy_seed)


def _is_in(one: JobsContestant, table: pd.DataFrame) -> bool:
    """Does jobs.csv, which is whole after every contestant, hold this one?"""
    seeds = table.loc[table["scheduler"] == one.name, "policy_seed"]
    return bool((seeds.isna() if one.policy_seed is None else seeds == one.policy_seed).any())


def check_allocation(table: pd.DataFrame) -> None:
    """Raise CheckError where jobs.csv says that GPUs were given away which were not there."""
    over = table["overcommitted"]
    if (over > 0).any():
        row = table.loc[over.idxmax()]
        raise CheckError(
            f"jobs: under {row['scheduler']} jobs held {row['overcommitted']:g} GPUs more in a domain "
            f"than it had (scenario {row['scenario']})"
        )


measured_jobs = threadsafe(jax.vmap(job_metrics))
alone = ShortAxes(completion_alone_s, where=lambda _, world, __: wide(world.tables.plans))
