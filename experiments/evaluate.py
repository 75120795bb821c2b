"""Compare schedulers on the same scenarios: `python -m experiments.evaluate --schedulers a,b,CKPT`."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from tqdm import tqdm

from agents.registry import LOW_COMMUNICATION, RULES, SchedulerSettings
from analysis.records import RunWriter, load
from analysis.summary import evaluation_summary
from experiments import evaluate_jobs, low_communication
from experiments.contestants import contestants, requested
from experiments.errors import run_command
from experiments.evaluate_jobs import WITHOUT_JOBS, JobsEvaluation
from experiments.evaluation import Evaluator, tune
from experiments.evaluation_tables import (
    Results,
    bound_rows,
    link_rows,
    scenario_rows,
    timeline_rows,
    traffic_rows,
)
from experiments.files import check_output, put_result
from experiments.options import from_mapping, given_keys, parse, parse_weights
from experiments.setup import compile_for_evaluation, load_regions, load_world, read_traces
from experiments.suites import run_suite
from experiments.tables import jobs_table, scheduler_table, suite_table
from jaxsim.errors import InputError
from jaxsim.jobs import SHARING
from jaxsim.jobs_file import read_jobs
from jaxsim.scenario import ScenarioSettings
from jaxsim.workload import load_model


@dataclasses.dataclass(frozen=True)
class EvaluateConfig:
    """An evaluation.

    Attributes:
        cluster: cluster file; the embedded four-region cluster if none is given
        model: preset or YAML file
        global_batch: sequences per training step
        seq: tokens per sequence
        weights: w1 to w4 of the reward, as w1,w2,w3,w4
        trace: trace CSV of the links; each seed starts it elsewhere
        load: load CSV of local jobs
        jobs: jobs CSV of many jobs, which replaces model, global_batch and seq; the tunable rivals
            play at their defaults, and weights, tuning_scenarios and threshold_pct are refused
        sharing: how links are shared between jobs: fair or crux
        jitter: uniform, ou, regime, heavy, outage, none or a fitted FILE.yaml; overrides
            scenario.jitter; with a trace the default is none
        schedulers: names and checkpoint paths, separated by commas; all = every one. Rivals that
            plan by rules of their own put their plans into the table that all of them choose from,
            so that everybody's figures are of the company they were measured in
        checkpoint: what the name hi_ppo means; the checkpoint that ships if none is given
        seeds: scenarios to play
        steps: decision intervals per episode, overrides scenario.horizon
        scenario: how worlds are drawn
        tuning_scenarios: training scenarios on which tunable rivals are tuned, 0 = defaults
        threshold_pct: headroom that a scenario must offer to enter the comparison
        table_size: plans in the table at most
        layout_limit: layouts of domains that are searched at most for the table
        domains: repeat the cluster's regions to this number; as the file has them if none is given
        suite: a list of scenes to evaluate one after another: a name, or FILE.yaml or
            FILE.yaml:NAME with scenes of your own
        resume: run folder of an evaluation or a suite that was interrupted; only json goes with it
        json: file for the result, - = standard output and nothing else there
        out: run folder; outputs/evaluate-<time> if none is given
    """

    cluster: str | None = None
    model: str = "llama-7b"
    global_batch: int = 512
    seq: int = 4096
    weights: str = "1,0,0,0"
    trace: str | None = None
    load: str | None = None
    jobs: str | None = None
    sharing: str = "fair"
    jitter: str | None = None
    schedulers: str = "all"
    checkpoint: str | None = None
    seeds: int = 32
    steps: int | None = None
    scenario: ScenarioSettings = dataclasses.field(default_factory=ScenarioSettings)
    tuning_scenarios: int = 32
    threshold_pct: float = 0.0
    table_size: int = 48
    layout_limit: int = 4000
    domains: int | None = None
    suite: str | None = None
    resume: str | None = None
    json: str | None = None
    out: str | None = None

    def __post_init__(self):
        for name, low in (("seeds", 1), ("tuning_scenarios", 0)):
            if getattr(self, name) < low:
                raise ValueError(f"{name}: expected an integer >= {low}, got {getattr(self, name)}")
        for name in ("steps", "domains"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}: expected an integer >= 1, got {value}")
        if self.sharing not in SHARING:
            raise ValueError(f"sharing: expected {' or '.join(SHARING)}, got {self.sharing!r}")
        _ = self.world_settings  # so that a bad override is refused before anything is loaded

    @property
    def loaded(self) -> bool:
        """Do local jobs hold GPUs?"""
        return self.load is not None or self.world_settings.load_share > 0

    @property
    def world_settings(self) -> ScenarioSettings:
        """The scenario settings with the command line's overrides."""
        changes: dict[str, Any] = {}
        if self.jitter is not None:
            changes["jitter"] = self.jitter
        elif self.trace is not None:
            changes["jitter"] = "none"
        if self.steps is not None:
            changes["horizon"] = self.steps
        return dataclasses.replace(self.scenario, **changes)


def check_inputs(config: EvaluateConfig) -> None:
    """Read what an evaluation names, and build nothing: a suite is refused before its first scene.

    Raises InputError.
    """
    settings = config.world_settings
    settings.links()
    parse_weights(config.weights)
    if config.jobs is None:
        requested(config.schedulers, config.checkpoint)
        load_model(config.model)
    else:
        evaluate_jobs.requested(config.schedulers, config.checkpoint)
        evaluate_jobs.arriving(read_jobs(config.jobs), settings, config.jobs)
    spec = load_regions(config.cluster, config.domains)
    read_traces(config.trace, config.load, spec, settings.interval_s)


class Evaluation:
    """One evaluation from checked inputs to records."""

    def __init__(self, config: EvaluateConfig):
        self.config = config
        self.weights = parse_weights(config.weights)
        names, self.checkpoints = requested(config.schedulers, config.checkpoint)
        self.names = [n for n in names if n not in LOW_COMMUNICATION]
        self.apart = [n for n in names if n in LOW_COMMUNICATION]
        self.settings = config.world_settings
        self.settings.links()  # refuse a bad jitter file before anything is computed
        # Plans of those who do not play would cost everybody time.
        self.nominating = [name for name in self.names if name in RULES]
        self.spec, self.world, self.info = load_world(
            *(config.cluster, config.model, config.global_batch, config.seq, config.table_size),
            {name: RULES[name] for name in self.nominating},
            domains=config.domains,
            layout_limit=config.layout_limit,
            loaded=config.loaded,
        )
        self.traces = read_traces(config.trace, config.load, self.spec, self.settings.interval_s)

    def evaluator(self, count: int, split: str) -> Evaluator:
        return Evaluator(
            self.world, self.settings, range(count), split, self.weights, **self.traces
        )

    def run(self, writer: RunWriter) -> dict:
        """Play everybody whom the run folder does not know yet, return the summary."""
        results = Results(writer)
        with tqdm(total=3 + len(self.names), desc="evaluate", unit="part", leave=None) as bar:
            bar.set_postfix_str("tuning the rivals")
            tuned = SchedulerSettings(**results.once("tuned", self._tuned).to_dict("records")[0])
            bar.update()
            bar.set_postfix_str("solving the scenarios")
            evaluator = self.evaluator(self.config.seeds, "test")
            bar.update()
            bound = results.once("bounds", lambda: bound_rows(evaluator))["bound_steps"].to_numpy()
            bar.update()
            which = liveliest(evaluator, self.config.threshold_pct)
            interval_s = self.settings.interval_s
            results.once("links", lambda: link_rows(evaluator, which, self.spec, interval_s))
            for name in self.names:
                bar.set_postfix_str(name)
                if name not in results.done:
                    results.add(self._play(name, evaluator, bound, tuned, which))
                bar.update()
        return self._summary(results, evaluator, tuned)

    def _tuned(self) -> pd.DataFrame:
        """One row: what the rivals are tuned in, on training scenarios."""
        tuned = SchedulerSettings()
        if self.config.tuning_scenarios:
            tuned = tune(self.evaluator(self.config.tuning_scenarios, "train"), self.names)
        return pd.DataFrame([dataclasses.asdict(tuned)])

    def _play(self, name: str, evaluator: Evaluator, bound, tuned, which: int) -> dict[str, Any]:
        """All tables' rows of one scheduler: the first policy seed's timeline stands for all."""
        everyone = contestants(name, self.checkpoints, tuned, self.world.table)
        played = [evaluator.play(one.maker, one.policy) for one in everyone]
        scenarios = [
            scenario_rows(name, one.policy_seed, metrics, evaluator, bound)
            for one, (metrics, _) in zip(everyone, played, strict=True)
        ]
        episode, interval_s = played[0][1], self.settings.interval_s
        taken = evaluator.decision_ms(everyone[0].maker, everyone[0].policy)
        p50, p99 = np.percentile(taken, (50, 99))
        return {
            "timeline": timeline_rows(name, episode, which, self.spec, interval_s),
            "traffic": traffic_rows(name, episode, self.spec),
            "scenarios": pd.concat(scenarios),
            "decisions": [{"scheduler": name, "decision_ms_p50": p50, "decision_ms_p99": p99}],
        }

    def _summary(self, results: Results, evaluator: Evaluator, tuned: SchedulerSettings) -> dict:
        threshold_pct = self.config.threshold_pct
        if not np.any(evaluator.headroom_pct >= threshold_pct):
            # Not on standard output, which may be for the JSON alone.
            remark = f"no scenario has {threshold_pct:g} % headroom: all are compared"
            if np.isnan(evaluator.headroom_pct).all():
                remark = "no plan can run in any scenario: there is nothing to compare"
            tqdm.write(remark, file=sys.stderr)
            threshold_pct = 0.0
        summary = evaluation_summary(
            results["scenarios"],
            results["decisions"],
            threshold_pct,
            learned=tuple(self.checkpoints),
        )
        summary["scenario"] = {
            "cluster": self.spec.name,
            "domains": list(self.spec.domains),
            "model": self.config.model,
            "weights": list(self.weights),
            "trace": self.config.trace,
            "load": self.config.load,
            "seeds": self.config.seeds,
            "settings": dataclasses.asdict(self.settings),
            "tuned": dataclasses.asdict(tuned),
            "nominated": self.nominating,
            "table": {**dataclasses.asdict(self.info), "bound_over": evaluator.n_bounding},
        }
        if self.apart:
            args = (self.apart, self.config, self.settings, self.weights, self.traces)
            rows = results.once("low_communication", lambda: low_communication.played(*args))
            summary["low_communication"] = low_communication.summaries(rows)
        return summary


def liveliest(evaluator: Evaluator, threshold_pct: float) -> int:
    """The scenario for the timeline: of those that enter the comparison (or of all, if none does)
    the one in which clairvoyant re-plans most, where a reader sees decisions."""
    enters = evaluator.headroom_pct >= threshold_pct
    replans = evaluator.clairvoyant[0].replans
    return int(np.argmax(np.where(enters, replans, -1.0) if enters.any() else replans))


def run_evaluation(config: EvaluateConfig) -> tuple[dict, Path]:
    """Evaluate, or go on where `config.resume` stopped; returns the summary and the run folder.

    Raises InputError, RecordError, KeyboardInterrupt.
    """
    one_job = config.jobs is None
    kind, make = ("evaluate", Evaluation) if one_job else ("evaluate_jobs", JobsEvaluation)
    folder = config.resume or config.out
    resume = config.resume is not None
    RunWriter.check(kind, folder, resume)
    evaluation = make(config)
    with RunWriter.create(kind, kept(config), config.seeds, folder, resume) as writer:
        try:
            summary = evaluation.run(writer)
        except KeyboardInterrupt:
            tqdm.write(f"interrupted; go on with --resume {writer.dir}", file=sys.stderr)
            raise
        writer.finish(summary)
    return summary, writer.dir


def kept(config: EvaluateConfig) -> dict:
    """What determines an evaluation's numbers, for its run folder."""
    body = dataclasses.asdict(config)
    return {key: value for key, value in body.items() if key not in ("out", "resume", "json")}


def resumed_config(config: EvaluateConfig, given: list[str]) -> EvaluateConfig:
    """The configuration of the run that is to go on.

    Raises InputError for `given` keys beside resume and json: a run's numbers are those of one
    configuration.
    """
    others = [key for key in given if key not in ("resume", "json")]
    if others:
        raise InputError(
            f"evaluate: {others[0]}: cannot be changed with --resume, {config.resume} keeps its "
            "own configuration; allowed beside it: json"
        )
    body = {**load(config.resume).run["config"], "resume": config.resume, "json": config.json}
    body.pop("given", None)  # a suite's
    return from_mapping(EvaluateConfig, body, config.resume)


def evaluate(config: EvaluateConfig, given: list[str]) -> None:
    """Evaluate one scene or a suite of them and say where the records are; `given` are the keys
    that the command line set. Raises InputError, RecordError, KeyboardInterrupt."""
    if config.json not in (None, "-"):
        check_output(config.json, "--json")
    if config.resume is not None:
        config = resumed_config(config, given)
    elif config.jobs is not None and (unused := [key for key in given if key in WITHOUT_JOBS]):
        raise InputError(f"evaluate: {unused[0]}: cannot be set with --jobs, where nothing uses it")
    if config.suite is not None:
        summary, folder = run_suite(config, given, run_evaluation, check_inputs)
        text = suite_table(summary)
    elif config.jobs is not None:
        summary, folder = run_evaluation(config)
        text = jobs_table(summary)
    else:
        summary, folder = run_evaluation(config)
        text = scheduler_table(summary)
        if "low_communication" in summary:
            text += low_communication.tables(summary["low_communication"])
    if put_result(summary, config.json):
        print(text)
        print(f"run folder: {folder}")


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit status."""

    def command() -> None:
        arguments = sys.argv[1:] if argv is None else argv
        config = parse(EvaluateConfig, arguments, "evaluate")
        compile_for_evaluation()
        evaluate(config, given_keys(EvaluateConfig, arguments))

    return run_command(command)


if __name__ == "__main__":
    sys.exit(main())
