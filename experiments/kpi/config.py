"""What a measurement of the key figures is asked for."""

from __future__ import annotations

import dataclasses
from typing import Any

from analysis.records import RunWriter, load
from experiments.common import (
    GLOBAL_BATCH,
    LAYOUT_LIMIT,
    LEARNED,
    MOST_LAYOUTS,
    MOST_OF_A_WORLD,
    MOST_SCENARIOS,
    default_scenario,
    from_mapping,
    refuse_changes,
    smaller,
)
from jaxsim.files import check_counts
from jaxsim.scenario import ScenarioSettings

SETTINGS = ("synchronous", "any")  # plans that are allowed
COVERAGE = "coverage"
MEANS = ("out", "resume", "json", "dry_run")  # no figure depends on them
MOST_ASKED = 1000
QUICK = {
    **{"seeds": 2, "jobs_seeds": 2, "tuning_scenarios": 2, "scenario.horizon": 8},
    **{"layout_limit": 100, "decisions": 100, "measurements": 100},
}


@dataclasses.dataclass(frozen=True)
class KpiConfig:
    """The scoreboard of a policy and of the best scheduler that is not learned.

    Attributes:
        policy: a checkpoint, or hi_ppo for the one that ships
        candidates: names of which the best on training scenarios is the one that is not learned; all
            = every one that trains synchronously and reads no truth
        cluster: cluster files, separated by commas; the embedded four regions and eight of AWS if
            none
        model: preset or YAML file
        global_batch: sequences per training step
        seq: tokens per sequence
        seeds: scenarios of each cluster, none trained on
        jobs_seeds: scenarios of each cluster in which many jobs share it
        tuning_scenarios: training scenarios on which the rivals are tuned and chosen
        scenario: how worlds are drawn; the KPIs set jitter and load
        jobs: jobs file for the utilisation of many jobs; eight jobs within 2.4 hours if none
        efficiency: what a token is worth where replicas talk seldom: published, none, a number up to
            1, or a CSV file of parameters
        allow: plans of the table: synchronous, any (local SGD, fewer bits, streaming as well), or both,
            one after the other
        only: all key figures, or coverage: that of the Pareto front alone
        asked: questions of the Pareto front's row, four of seven of them weights, the others budgets;
            nobody reaches more plans of a front than he is asked for
        decisions: decisions that are timed
        measurements: measurements that the responding process answers
        table_size: plans in the table at most
        layout_limit: layouts of domains that are searched at most for the table
        quick: small sizes where none are given, to go through all of it once; its figures mean little
        dry_run: check the files, say how much there is to measure and how long runs like it took
        json: file for the result, - = standard output and nothing else there
        out: run folder; outputs/kpi-<time> if none is given
        resume: run folder of a measurement that ended early: what is allowed is measured where it is
            not finished; only json goes with it
    """

    policy: str = LEARNED
    candidates: str = "all"
    cluster: str | None = None
    model: str = "llama-7b"
    global_batch: int = GLOBAL_BATCH
    seq: int = 4096
    seeds: int = 16
    jobs_seeds: int = 8
    tuning_scenarios: int = 16
    scenario: ScenarioSettings = dataclasses.field(default_factory=default_scenario)
    jobs: str | None = None
    efficiency: str = "published"
    allow: str = "both"
    only: str = "all"
    asked: int = 7
    decisions: int = 1000
    measurements: int = 200
    table_size: int = 48
    layout_limit: int = LAYOUT_LIMIT
    quick: bool = False
    dry_run: bool = False
    json: str | None = None
    out: str | None = None
    resume: str | None = None

    def __post_init__(self):
        most = {"seeds": MOST_SCENARIOS, "jobs_seeds": MOST_SCENARIOS, "asked": MOST_ASKED}
        check_counts(self, most, least=2)
        check_counts(self, {"decisions": 1_000_000, "measurements": 1_000_000}, least=100)
        check_counts(self, {"tuning_scenarios": MOST_SCENARIOS, "layout_limit": MOST_LAYOUTS})
        check_counts(self, MOST_OF_A_WORLD)
        if self.allow not in ("both", *SETTINGS):
            known = " or ".join(("both", *SETTINGS))
            raise ValueError(f"allow: expected {known}, got {self.allow!r}")

        if self.only not in ("all", COVERAGE):
            raise ValueError(f"only: expected all or {COVERAGE}, got {self.only!r}")

    def with_dependent_defaults(self, given: list[str]) -> KpiConfig:
        """Sizes of a quick run are small unless they are `given`."""
        return smaller(self, QUICK, given) if self.quick else self

    @property
    def settings(self) -> tuple[str, ...]:
        """What is measured one after the other: plans that are allowed."""
        return SETTINGS if self.allow == "both" else (self.allow,)


def recorded(config: KpiConfig) -> dict[str, Any]:
    """The settings that determine the figures, as the run folder keeps them."""
    body = dataclasses.asdict(config)
    return {key: value for key, value in body.items() if key not in MEANS}


def resumed_config(config: KpiConfig, given: list[str]) -> KpiConfig:
    """The configuration of the run that is to go on.

    Raises InputError for `given` keys beside resume and json, and RecordError for a folder that holds
    no run of this kind.
    """
    others = [key for key in given if key not in ("resume", "json")]
    refuse_changes("kpi", config.resume, others, "json")
    RunWriter.check("kpi", config.resume, resume=True)
    told = load(config.resume).run["config"]
    once = {"jobs_seeds": told["seeds"]} if "seeds" in told else {}  # one number was both
    body = {**once, **told, "resume": config.resume, "json": config.json}
    return from_mapping(KpiConfig, body, config.resume)
