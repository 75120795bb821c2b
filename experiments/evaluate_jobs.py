"""Compare schedulers on many jobs: `python -m experiments.evaluate --jobs FILE --schedulers a,b`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
import pandas as pd
from tqdm import tqdm

from agents.hi_ppo.checkpoint import load_checkpoint, load_shipped, policies
from agents.hi_ppo.scheduler import make_hi_ppo
from agents.jobs import JobsSetup, lifted, make_jobs_setup
from agents.jobs_metrics import JobMetrics, completion_alone_s, job_metrics
from agents.jobs_registry import JOBS_SCHEDULERS, ONE_JOB_ONLY, make_jobs_by_name
from agents.protocol import Scheduler
from agents.registry import LEARNED, SchedulerSettings
from agents.rollout import play
from analysis.records import RunWriter, load
from analysis.statistics import bootstrap_interval
from experiments.setup import load_regions, make_room_for_programs, read_traces
from jaxsim.env import EnvParams, world_tape
from jaxsim.errors import InputError
from jaxsim.jobs_file import SubmittedJob, read_jobs
from jaxsim.jobs_world import JobsWorld, build_jobs_world, jobs_bank
from jaxsim.scenario import ScenarioSettings
from jaxsim.step_time import NetworkView

if TYPE_CHECKING:
    from experiments.evaluate import EvaluateConfig

JobsMaker = Callable[[JobsSetup, Any], Scheduler]  # (setup, policy) -> scheduler
# What a single job is measured by, and what several jobs leave unmeasured.
UNMEASURED = dict.fromkeys(
    (
        *("headroom_pct", "regret_pct", "regret_ci95_pct", "bound_pct", "step_s", "step_s_std"),
        *("tokens_per_s", "memory_utilisation", "bandwidth_utilisation", "comm_to_compute"),
        *("overlap", "wan_gb_per_step", "usd_per_mtoken", "decision_ms_p50", "decision_ms_p99"),
    )
)
# Keys of an evaluation that many jobs make no use of.
WITHOUT_JOBS = ("weights", "tuning_scenarios", "threshold_pct")


class JobsContestant(NamedTuple):
    """One scheduler, or one policy seed of a learned one."""

    name: str
    policy_seed: int | None
    maker: JobsMaker
    policy: Any


def requested(schedulers: str, checkpoint: str | None) -> list[JobsContestant]:
    """Who is to play. Raises InputError that lists the known names."""
    names = [n.strip() for n in schedulers.split(",") if n.strip()]
    known = (*JOBS_SCHEDULERS, LEARNED)
    if names == ["all"]:
        names = list(known)
    if not names:
        raise InputError("schedulers: expected at least one name")
    out = []
    for name in dict.fromkeys(names):
        if name in ONE_JOB_ONLY:
            raise InputError(f"schedulers: {name!r} is for one job; known: {', '.join(known)}")
        if name not in known and not Path(name).exists():
            raise InputError(
                f"schedulers: {name!r} is neither a checkpoint nor one of: {', '.join(known)}"
            )
        out += [_named(name)] if name in JOBS_SCHEDULERS else list(_learned(name, checkpoint))
    return out


def _named(name: str) -> JobsContestant:
    make = make_jobs_by_name(name, SchedulerSettings())
    return JobsContestant(name, None, lambda setup, _: make(setup), ())


def _learned(name: str, checkpoint: str | None) -> Iterator[JobsContestant]:
    path = checkpoint if name == LEARNED else name
    found = load_shipped() if path is None else load_checkpoint(path)
    hidden, every = found.meta["hidden"], found.meta["every"]

    def maker(setup, policy):
        return lifted(lambda one: make_hi_ppo(one, policy, hidden, every), setup, settled=False)

    for seed, policy in zip(found.meta["seeds"], policies(found), strict=True):
        yield JobsContestant(name, seed, maker, policy)


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


class JobsEvaluation:
    """One evaluation from checked inputs to records."""

    def __init__(self, config: EvaluateConfig):
        self.config, self.settings = config, config.world_settings
        self.contestants = requested(config.schedulers, config.checkpoint)
        self.settings.links()  # refuse a bad jitter file before anything is computed
        self.submitted = read_jobs(config.jobs)
        self.n_counted = arriving(self.submitted, self.settings, config.jobs)
        self.spec = load_regions(config.cluster, config.domains)
        traces = read_traces(config.trace, config.load, self.spec, self.settings.interval_s)
        rows = max(1, config.table_size // 3)  # for each part of the GPUs
        self.world = build_jobs_world(self.spec, self.submitted, rows, config.layout_limit)
        bank = jobs_bank(
            self.world, self.settings, range(config.seeds), "test", config.sharing, **traces
        )
        self.scenarios = []
        for seed in range(config.seeds):
            params, key = jax.tree.map(lambda x, seed=seed: x[seed], bank)
            truth = _truth(params, self.world, key, self.settings.horizon)
            self.scenarios.append((params, key, truth))

    def run(self, writer: RunWriter) -> dict:
        """Play everybody whom the run folder does not know yet, return the summary."""
        record = load(writer.dir)
        frames = [record.table("jobs")] if "jobs" in record.tables() else []
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
                frames.append(self._rows(one, played))
                writer.write_table("jobs", pd.concat(frames, ignore_index=True))
        table = pd.concat(frames, ignore_index=True)
        schedulers = {name: summary_of(rows) for name, rows in table.groupby("scheduler")}
        order = dict.fromkeys(one.name for one in self.contestants)
        return {
            "scenario": {
                "cluster": self.spec.name,
                "domains": list(self.spec.domains),
                "jobs": self.config.jobs,
                "n_jobs": len(self.submitted),
                "n_counted": self.n_counted,
                "sharing": self.config.sharing,
                "trace": self.config.trace,
                "load": self.config.load,
                "seeds": self.config.seeds,
                "settings": dataclasses.asdict(self.settings),
                "tuned": dataclasses.asdict(SchedulerSettings()),
            },
            "schedulers": {name: schedulers[name] for name in order},
        }

    def play(self, one: JobsContestant) -> Iterator[JobMetrics]:
        """One scenario after another: a job that is not there is skipped, which a batch cannot."""
        make_room_for_programs()
        played = _compiled(one.maker, self.settings.horizon)
        for params, key, truth in self.scenarios:
            yield jax.tree.map(np.asarray, played(one.policy, self.world, params, key, *truth))

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


@functools.cache
def _compiled(maker: JobsMaker, horizon: int) -> Callable[..., JobMetrics]:
    """One compilation for all scenarios and policy seeds."""
    return jax.jit(functools.partial(_episode, maker, horizon))


def _episode(
    maker: JobsMaker,
    horizon: int,
    policy: Any,
    world: JobsWorld,
    params: EnvParams,
    key: jax.Array,
    views: NetworkView,
    alone_s: jax.Array,
) -> JobMetrics:
    setup = make_jobs_setup(params, world)

    def make(setup):
        return maker(setup, policy)

    episode = play(make, params, setup, views, key, jax.random.key(20), horizon)
    return job_metrics(episode, params, alone_s, views.gpus_available[1:])


@functools.partial(jax.jit, static_argnames="horizon")
def _truth(
    params: EnvParams, world: JobsWorld, key: jax.Array, horizon: int
) -> tuple[NetworkView, jax.Array]:
    """A scenario's views, and what each job would need alone."""
    views = world_tape(params, key, horizon + 1)
    return views, completion_alone_s(params, world, views)


def summary_of(rows: pd.DataFrame) -> dict:
    """One scheduler's figures: means over jobs, then over scenarios; None = not measured.

    The makespan is that of the scenarios in which every job was finished.
    """
    rows = rows.dropna(subset="jct_s")
    runs = rows.groupby(["policy_seed", "scenario"], dropna=False)
    each = runs[["jct_s", "jct_normalised", "queueing_s", "moves"]].mean()
    whole = runs[["makespan_s", "utilisation", "fairness"]].first()
    unfinished = runs["finished"].agg(lambda x: float((x == 0).sum()))
    by_scenario = each["jct_normalised"].groupby("scenario").mean()
    interval = bootstrap_interval(by_scenario.to_numpy())
    makespan_s = whole["makespan_s"].mean()
    return {
        **UNMEASURED,
        "utilisation": float(whole["utilisation"].mean()),
        "replans": float(each["moves"].mean()),
        "jobs": {
            "jct_mean_s": float(each["jct_s"].mean()),
            "queueing_mean_s": float(each["queueing_s"].mean()),
            "makespan_s": None if np.isnan(makespan_s) else float(makespan_s),
            "unfinished": float(unfinished.mean()),
            "jct_normalised_mean": float(each["jct_normalised"].mean()),
            "jct_normalised_ci95": [interval["lo"], interval["hi"]],
            "fairness": float(whole["fairness"].mean()),
        },
    }
