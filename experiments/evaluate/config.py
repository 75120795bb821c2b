"""What an evaluation is asked for, and the checks of it."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from analysis.records import load
from experiments.common import (
    GLOBAL_BATCH,
    LAYOUT_LIMIT,
    MOST_LAYOUTS,
    MOST_OF_A_WORLD,
    MOST_SCENARIOS,
    SHARING,
    default_scenario,
    from_mapping,
    parse_weights,
    refuse_changes,
    smaller,
)
from jaxsim.files import InputError, check_counts, check_fields, is_non_negative
from jaxsim.scenario import MOST_INTERVALS, ScenarioSettings

# Keys of an evaluation that many jobs make no use of.
WITHOUT_JOBS = ("weights", "budget", "tuning_scenarios", "threshold_pct", "plan")
QUICK = {"seeds": 4, "scenario.horizon": 16, "tuning_scenarios": 2, "layout_limit": 200}
MEANS = ("out", "resume", "json", "dry_run")  # no figure depends on them


@dataclasses.dataclass(frozen=True)
class EvaluateConfig:
    """An evaluation.

    Attributes:
        cluster: cluster file; the embedded four-region cluster if none is given
        model: preset or YAML file
        global_batch: sequences per training step
        seq: tokens per sequence
        weights: w1 to w4 of progress, utilisation, cost and fairness, as w1,w2,w3,w4: of the reward,
            and of what schedulers maximise and are measured by
        budget: USD per hour, GPUs and egress, beyond which plans lose; no limit if none is given
        trace: trace CSV of the links; each seed starts it elsewhere
        load: load CSV of local jobs
        jobs: jobs CSV of many jobs, which replaces model, global_batch and seq; the tunable rivals
            play at their defaults; weights, budget, tuning_scenarios, threshold_pct and plan are
            refused
        allow: plans that the table may hold: synchronous = every step in 16 bits, any = local SGD,
            fewer bits and streaming as well. The best plan of either is told whatever is played
        efficiency: what a token is worth where replicas talk seldom: published (a model with its
            band), none (as much as any), a number up to 1, or a CSV file of parameters
        sharing: how links are shared between jobs: fair or crux
        jitter: uniform, ou, regime, heavy, outage, none or a fitted FILE.yaml; overrides
            scenario.jitter; with a trace the default is none
        schedulers: names and checkpoint paths, separated by commas; all = every one. Rivals that
            plan by rules of their own put their plans into the table that all of them choose from.
            Results therefore depend on which schedulers run together
        plan: file with a plan that plays beside them as it is and never moves, under the name plan:
            as hippo plan --json, respond or watch tells it
        checkpoint: what the name hi_ppo means; the checkpoint that ships if none is given
        seeds: scenarios to play
        steps: decision intervals per episode, overrides scenario.horizon
        scenario: how worlds are drawn; with a trace base_spread is 0 unless it is given
        tuning_scenarios: training scenarios on which tunable rivals are tuned, 0 = defaults
        threshold_pct: headroom that a scenario must offer to enter the comparison
        table_size: plans in the table at most
        layout_limit: layouts of domains that are searched at most for the table
        domains: repeat the cluster's regions to this number; as the file has them if none is given
        suite: a list of scenes to evaluate one after another: a name, or FILE.yaml or
            FILE.yaml:NAME with scenes of your own
        quick: small sizes where none are given, to go through all of it once; its figures mean little
        dry_run: check the files, say how much there is to play and how long runs like it took
        resume: run folder of an evaluation or a suite that was interrupted; only json goes with it
        json: file for the result, - = standard output and nothing else there
        out: run folder; outputs/evaluate-<time> if none is given
    """

    cluster: str | None = None
    model: str = "llama-7b"
    global_batch: int = GLOBAL_BATCH
    seq: int = 4096
    weights: str = "1,0,0,0"
    budget: float | None = None
    trace: str | None = None
    load: str | None = None
    jobs: str | None = None
    allow: str = "synchronous"
    efficiency: str = "published"
    sharing: str = "fair"
    jitter: str | None = None
    schedulers: str = "all"
    plan: str | None = None
    checkpoint: str | None = None
    seeds: int = 32
    steps: int | None = None
    scenario: ScenarioSettings = dataclasses.field(default_factory=default_scenario)
    tuning_scenarios: int = 32
    threshold_pct: float = 0.0
    table_size: int = 48
    layout_limit: int = LAYOUT_LIMIT
    domains: int | None = None
    suite: str | None = None
    quick: bool = False
    dry_run: bool = False
    resume: str | None = None
    json: str | None = None
    out: str | None = None

    def __post_init__(self):
        check_counts(self, {"seeds": MOST_SCENARIOS, "steps": MOST_INTERVALS, "domains": 1024})
        check_counts(self, {**MOST_OF_A_WORLD, "layout_limit": MOST_LAYOUTS})
        check_counts(self, {"tuning_scenarios": MOST_SCENARIOS}, least=0)
        check_fields(self, ("threshold_pct",), "a number >= 0", is_non_negative)
        if self.budget is not None:
            check_fields(self, ("budget",), "a number > 0", lambda x: 0 < x < math.inf)
        if self.sharing not in SHARING:
            raise ValueError(f"sharing: expected {' or '.join(SHARING)}, got {self.sharing!r}")
        if self.jobs is None:
            parse_weights(self.weights)
        _ = self.world_settings  # so that a bad override is refused before anything is loaded

    def with_dependent_defaults(self, given: list[str]) -> EvaluateConfig:
        """With a trace, links start as the file states: the spread is 0 unless it is `given`. Sizes
        of a quick run are small unless they are `given`."""
        sized = smaller(self, QUICK, given) if self.quick else self
        if self.trace is None or "scenario.base_spread" in given:
            return sized
        scenario = dataclasses.replace(sized.scenario, base_spread=0.0)
        return dataclasses.replace(sized, scenario=scenario)

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


def recorded(config: EvaluateConfig) -> dict:
    """The settings that determine an evaluation's numbers, as its run folder records them."""
    body = dataclasses.asdict(config)
    return {key: value for key, value in body.items() if key not in MEANS}


def resumed_config(config: EvaluateConfig, given: list[str]) -> EvaluateConfig:
    """The configuration of the run that is to go on.

    Raises InputError for `given` keys beside resume and json: a run's numbers are those of one
    configuration.
    """
    others = [key for key in given if key not in ("resume", "json")]
    refuse_changes("evaluate", config.resume, others, "json")
    body = {**load(config.resume).run["config"], "resume": config.resume, "json": config.json}
    body.pop("given", None)  # a suite's
    return from_mapping(EvaluateConfig, body, config.resume)


def check_together(config: EvaluateConfig, given: list[str]) -> None:
    """Raise InputError for a key that cannot be `given` beside another."""
    if config.jobs is not None and (unused := [key for key in given if key in WITHOUT_JOBS]):
        raise InputError(f"evaluate: {unused[0]}: cannot be set with --jobs, where nothing uses it")
