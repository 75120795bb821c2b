"""Compare schedulers on the same scenarios: `python -m experiments.evaluate --schedulers a,b,CKPT`."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd
from tqdm import tqdm

from agents.hi_ppo.checkpoint import Checkpoint, load_checkpoint, load_shipped, policies
from agents.metrics import EpisodeMetrics
from agents.registry import LEARNED, LOW_COMMUNICATION, RULES, SCHEDULERS, SchedulerSettings
from agents.rollout import Episode
from analysis.records import RunWriter
from analysis.summary import evaluation_summary
from experiments import low_communication
from experiments.errors import run_command
from experiments.evaluation import Evaluator, Maker, learned_maker, lost_pct, named_maker, tune
from experiments.files import check_output, put_result
from experiments.options import are_weights, parse
from experiments.setup import load_world, use_compile_cache
from experiments.tables import scheduler_table
from jaxsim.cluster import ClusterSpec
from jaxsim.errors import InputError
from jaxsim.load import read_load_trace
from jaxsim.plan import describe
from jaxsim.scenario import ScenarioSettings
from jaxsim.trace import read_network_trace


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
        jitter: uniform, ou, regime, heavy, outage, none or a fitted FILE.yaml; overrides
            scenario.jitter; with a trace the default is none
        schedulers: names and checkpoint paths, separated by commas; all = every one
        checkpoint: what the name hi_ppo means; the checkpoint that ships if none is given
        seeds: scenarios to play
        steps: decision intervals per episode, overrides scenario.horizon
        scenario: how worlds are drawn
        tuning_scenarios: training scenarios on which tunable rivals are tuned, 0 = defaults
        threshold_pct: headroom that a scenario must offer to enter the comparison
        table_size: plans in the table at most
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
    jitter: str | None = None
    schedulers: str = "all"
    checkpoint: str | None = None
    seeds: int = 32
    steps: int | None = None
    scenario: ScenarioSettings = dataclasses.field(default_factory=ScenarioSettings)
    tuning_scenarios: int = 32
    threshold_pct: float = 0.0
    table_size: int = 48
    json: str | None = None
    out: str | None = None

    def __post_init__(self):
        for name, low in (("seeds", 1), ("tuning_scenarios", 0)):
            if getattr(self, name) < low:
                raise ValueError(f"{name}: expected an integer >= {low}, got {getattr(self, name)}")
        if self.steps is not None and self.steps < 1:
            raise ValueError(f"steps: expected an integer >= 1, got {self.steps}")
        _ = self.world_settings  # so that a bad override is refused before anything is loaded

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


class Contestant(NamedTuple):
    """One scheduler, or one policy seed of a learned one."""

    name: str
    policy_seed: int | None
    maker: Maker
    policy: Any


def parse_weights(text: str) -> tuple[float, float, float, float]:
    """'w1,w2,w3,w4' -> numbers >= 0; InputError otherwise."""
    try:
        values = tuple(float(x) for x in text.split(","))
    except ValueError:
        values = ()
    if not are_weights(values):
        raise InputError(f"weights: expected four numbers >= 0 as w1,w2,w3,w4, got {text!r}")
    return values


def requested(config: EvaluateConfig) -> tuple[list[str], dict[str, Checkpoint]]:
    """Names to play, and the checkpoints among them; refuses what is neither.

    Raises InputError that lists the known names.
    """
    names = [n.strip() for n in config.schedulers.split(",") if n.strip()]
    if names == ["all"]:
        names = [*SCHEDULERS, LEARNED, *LOW_COMMUNICATION]
    checkpoints = {}
    for name in names:
        if name == LEARNED:
            path = config.checkpoint
            checkpoints[name] = load_shipped() if path is None else load_checkpoint(path)
        elif name not in (*SCHEDULERS, *LOW_COMMUNICATION):
            if not Path(name).exists():
                known = ", ".join((*SCHEDULERS, LEARNED, *LOW_COMMUNICATION))
                raise InputError(
                    f"schedulers: {name!r} is neither a checkpoint nor one of: {known}"
                )
            checkpoints[name] = load_checkpoint(name)
    if not set(names) - set(LOW_COMMUNICATION):
        apart = " and ".join(LOW_COMMUNICATION)
        raise InputError(f"schedulers: expected at least one name beside {apart}")
    return list(dict.fromkeys(names)), checkpoints


def contestants(
    names: list[str], checkpoints: dict[str, Checkpoint], settings: SchedulerSettings
) -> list[Contestant]:
    """One entry per scheduler and policy seed."""
    out = []
    for name in names:
        if name not in checkpoints:
            out.append(Contestant(name, None, named_maker(name, settings), ()))
            continue
        checkpoint = checkpoints[name]
        maker = learned_maker(checkpoint.meta["hidden"], checkpoint.meta["every"])
        for seed, policy in zip(checkpoint.meta["seeds"], policies(checkpoint), strict=True):
            out.append(Contestant(name, seed, maker, policy))
    return out


def scenario_rows(
    contestant: Contestant, metrics: EpisodeMetrics, evaluator: Evaluator, bound: np.ndarray
) -> pd.DataFrame:
    """scenarios.csv of one contestant; what is not defined, such as a regret where nothing can run
    or the step time of a job that never ran, is missing."""
    frame = pd.DataFrame(dataclasses.asdict(metrics))
    # Rewards are measured in what the best static plan does: undefined where that is nothing.
    frame = frame.replace([np.inf, -np.inf], np.nan)
    regret_pct = lost_pct(metrics.progress, evaluator.clairvoyant[0].progress)
    head = {
        "scheduler": contestant.name,
        "policy_seed": contestant.policy_seed,
        "scenario": np.arange(len(frame)),
        "headroom_pct": evaluator.headroom_pct,
        "progress": frame.pop("progress"),
        "progress_rel": 1.0 - regret_pct / 100.0,
        "regret_pct": regret_pct,
        "bound_pct": lost_pct(metrics.progress, bound),
    }
    return pd.concat([pd.DataFrame(head), frame], axis=1)


def timeline_rows(
    name: str, episode: Episode, which: int, spec: ClusterSpec, interval_s: float
) -> list[dict]:
    """timeline.csv of one scheduler: scenario `which`, interval by interval."""
    record = jax.tree.map(lambda x: x[which], episode.record)
    plan = jax.tree.map(lambda x: x[which], episode.plan)
    rows = []
    for t in range(record.progress.shape[0]):
        ran = record.train_s[t, 0] > 0
        rows.append(
            {
                "scheduler": name,
                "t_s": t * interval_s,
                "step_s": float(record.cost.step_s[t, 0]) if ran else None,
                "progress_rate": float(record.progress[t, 0]) / interval_s,
                "in_transition": bool(episode.moving[which, t, 0] or record.switched[t, 0]),
                "switched": bool(record.switched[t, 0]),
                "plan": describe(jax.tree.map(lambda x, t=t: x[t, 0], plan), spec.domains),
            }
        )
    return rows


def link_rows(episode: Episode, which: int, spec: ClusterSpec, interval_s: float) -> list[dict]:
    """links.csv: the bandwidth of every link in scenario `which`."""
    gbps = 8.0 * episode.bandwidth_gb_per_s[which]
    pairs = [(i, j) for i in range(spec.n_domains) for j in range(spec.n_domains) if i != j]
    return [
        {
            "t_s": t * interval_s,
            "src": spec.domains[i],
            "dst": spec.domains[j],
            "bandwidth_gbps": float(gbps[t, i, j]),
        }
        for t in range(gbps.shape[0])
        for i, j in pairs
    ]


def traffic_rows(name: str, episode: Episode, spec: ClusterSpec) -> list[dict]:
    """traffic.csv of one scheduler: mean GB per training step over each link, moves included."""
    record = episode.record
    total = (record.wan_gb + record.migration_gb).sum(axis=1)  # [S, K, K]
    steps = (record.progress / record.cost.efficiency).sum(axis=(1, 2))
    mean = (total / np.maximum(steps, 1e-9)[:, None, None]).mean(axis=0)
    return [
        {"scheduler": name, "src": a, "dst": b, "wan_gb_per_step": float(mean[i, j])}
        for i, a in enumerate(spec.domains)
        for j, b in enumerate(spec.domains)
        if i != j
    ]


class Evaluation:
    """One evaluation from checked inputs to records."""

    def __init__(self, config: EvaluateConfig):
        self.config = config
        self.weights = parse_weights(config.weights)
        names, self.checkpoints = requested(config)
        self.names = [n for n in names if n not in LOW_COMMUNICATION]
        self.apart = [n for n in names if n in LOW_COMMUNICATION]
        self.settings = config.world_settings
        self.settings.links()  # refuse a bad jitter file before anything is computed
        self.spec, self.world, self.info = load_world(
            *(config.cluster, config.model, config.global_batch, config.seq, config.table_size),
            RULES,
        )
        interval_s = self.settings.interval_s
        self.traces: dict[str, np.ndarray | None] = {"network_trace": None, "load_trace": None}
        if config.trace is not None:
            self.traces["network_trace"] = read_network_trace(config.trace, self.spec, interval_s)
        if config.load is not None:
            gpus = np.asarray(self.spec.gpus)
            self.traces["load_trace"] = read_load_trace(
                config.load, self.spec.domains, gpus, interval_s
            )

    def evaluator(self, count: int, split: str) -> Evaluator:
        return Evaluator(
            self.world, self.settings, range(count), split, self.weights, **self.traces
        )

    def run(self, writer: RunWriter) -> dict:
        """Play everybody, write the tables, return the summary."""
        tuned = SchedulerSettings()
        with tqdm(total=3 + len(self.names), desc="evaluate", unit="part") as bar:
            if self.config.tuning_scenarios:
                bar.set_postfix_str("tuning the rivals")
                tuned = tune(self.evaluator(self.config.tuning_scenarios, "train"), self.names)
            bar.update()
            bar.set_postfix_str("solving the scenarios")
            evaluator = self.evaluator(self.config.seeds, "test")
            bar.update()
            bound = evaluator.bound()
            bar.update()
            frames, decisions = self._play(writer, evaluator, bound, tuned, bar)
        writer.write_table("scenarios", frames)
        writer.write_table("decisions", decisions)
        threshold_pct = self.config.threshold_pct
        if not np.any(evaluator.headroom_pct >= threshold_pct):
            # Not on standard output, which may be for the JSON alone.
            remark = f"no scenario has {threshold_pct:g} % headroom: all are compared"
            if np.isnan(evaluator.headroom_pct).all():
                remark = "no plan can run in any scenario: there is nothing to compare"
            tqdm.write(remark, file=sys.stderr)
            threshold_pct = 0.0
        summary = evaluation_summary(
            frames, decisions, threshold_pct, learned=tuple(self.checkpoints)
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
            "table": dataclasses.asdict(self.info),
        }
        if self.apart:
            args = (self.config, self.settings, self.weights, self.traces)
            summary["low_communication"] = low_communication.compare(self.apart, *args)
        return summary

    def _play(self, writer, evaluator: Evaluator, bound, tuned: SchedulerSettings, bar):
        frames, decisions, seen = [], [], set()
        which = liveliest(evaluator, self.config.threshold_pct)
        for one in contestants(self.names, self.checkpoints, tuned):
            bar.set_postfix_str(one.name)
            metrics, episode = evaluator.play(one.maker, one.policy)
            frames.append(scenario_rows(one, metrics, evaluator, bound))
            if one.name in seen:
                continue
            seen.add(one.name)
            interval_s = self.settings.interval_s
            writer.append(
                "timeline", timeline_rows(one.name, episode, which, self.spec, interval_s)
            )
            writer.append("traffic", traffic_rows(one.name, episode, self.spec))
            if len(seen) == 1:
                writer.append("links", link_rows(episode, which, self.spec, interval_s))
            p50, p99 = evaluator.decision_ms(one.maker, one.policy)
            decisions.append(
                {"scheduler": one.name, "decision_ms_p50": p50, "decision_ms_p99": p99}
            )
            bar.update()
        return pd.concat(frames, ignore_index=True), pd.DataFrame(decisions)


def liveliest(evaluator: Evaluator, threshold_pct: float) -> int:
    """The scenario for the timeline: of those that enter the comparison (or of all, if none does)
    the one in which clairvoyant re-plans most, where a reader sees decisions."""
    enters = evaluator.headroom_pct >= threshold_pct
    replans = evaluator.clairvoyant[0].replans
    return int(np.argmax(np.where(enters, replans, -1.0) if enters.any() else replans))


def evaluate(config: EvaluateConfig) -> Path:
    """Evaluate and return the run folder. Raises InputError, RecordError."""
    if config.json not in (None, "-"):
        check_output(config.json, "--json")
    RunWriter.check("evaluate", config.out)
    evaluation = Evaluation(config)
    body = dataclasses.asdict(config)
    with RunWriter.create("evaluate", body, config.seeds, config.out) as writer:
        summary = evaluation.run(writer)
        writer.finish(summary)
    if put_result(summary, config.json):
        print(scheduler_table(summary))
        if "low_communication" in summary:
            print(low_communication.tables(summary["low_communication"]))
        print(f"run folder: {writer.dir}")
    return writer.dir


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit status."""

    def command() -> None:
        use_compile_cache()
        evaluate(parse(EvaluateConfig, sys.argv[1:] if argv is None else argv, "evaluate"))

    return run_command(command)


if __name__ == "__main__":
    sys.exit(main())
