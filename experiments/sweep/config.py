"""What a sweep is asked for: the design and how it is carried out."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

from analysis.records import load
from experiments.common import (
    BASE_SPREAD,
    GLOBAL_BATCH,
    LAYOUT_LIMIT,
    MOST_JOBS,
    MOST_LAYOUTS,
    MOST_OF_A_WORLD,
    MOST_SCENARIOS,
    from_mapping,
    parse_weights,
    refuse_changes,
)
from jaxsim.files import check_counts
from jaxsim.scenario import MOST_INTERVALS, ScenarioSettings

DESIGNS = ("grid", "random", "latin_hypercube")
EXECUTORS = ("local", "ray")
ALLOW = ("synchronous", "any")
CATEGORIES = (
    "cluster",
    "domains",
    "model",
    "weights",
    "jitter",
    "jobs",
)  # factors that are drawn from lists
RANGES = ("strength", "load")  # factors that other designs than a grid draw between the ends
FACTORS = (*CATEGORIES, *RANGES)
STRENGTH_OF = {"uniform": "uniform", "ou": "ou_sigma"}  # the setting that `strength` is, by jitter
MOST_POINTS, MOST_BATCH, MOST_WORKERS = 100_000, 4096, 256
# Keys that say how a sweep is carried out, not what comes out.
MEANS = ("executor", "workers", "address", "dry_run", "resume", "json", "out")


@dataclasses.dataclass(frozen=True)
class SweepConfig:
    """A sweep: every scheduler plays the same scenarios at every point of a design.

    Factors are lists. A grid takes every combination of their values; the other designs draw `points`
    points, names and whole numbers from the lists, strength and load anywhere between the least and
    the largest value.

    Attributes:
        design: grid, random or latin_hypercube
        points: points of a design that is drawn
        seed: from which points are drawn
        scenarios: scenarios of each point; those of one number have the same seed at every point
        cluster: cluster files or names
        domains: repeat the cluster's regions to these numbers K; as the file has them if none is given
        model: presets or model files
        weights: each w1,w2,w3,w4 of progress, utilisation, cost and fairness, in quotation marks
        jitter: how links move, as --jitter of evaluate
        strength: amplitude of uniform jitter, standard deviation of the drift of ou; as these are by
            default if none is given
        load: mean share of the GPUs that local jobs hold, moving by 20 % of itself
        jobs: numbers J of jobs of the point's model, which arrive at random in the first half of the
            episode and bring half as much again as all GPUs could do in it; one job that stays to the
            end if none is given
        schedulers: names and checkpoint paths, separated by commas; tunable ones play at their
            defaults, of a checkpoint the first policy seed
        reference: whom the others are compared with, one of the schedulers; the first if none is given
        steps: decision intervals per episode
        global_batch: sequences per training step
        seq: tokens per sequence
        efficiency: what a token is worth where replicas talk seldom: published, none, a number up to
            1, or a CSV file of parameters; in each scenario it is drawn from its band
        allow: plans of the table: synchronous, or any (local SGD, fewer bits, streaming as well)
        base_spread: standard deviation of the log of each link's base around the cluster file's
        table_size: plans in the table at most
        layout_limit: layouts of domains that are searched at most for the table
        batch: scenarios that are played side by side
        executor: local = threads of this process, ray = a Ray cluster
        workers: batches at a time; 0 = one a core, and one more of threads
        address: of a Ray cluster that runs; a local one is started if none is given
        dry_run: check the files, play one batch, say how long the sweep would take, keep nothing
        resume: run folder of a sweep that was interrupted
        json: file for the result, - = standard output and nothing else there
        out: run folder; outputs/sweep-<time> if none is given
    """

    design: str = "grid"
    points: int = 64
    seed: int = 0
    scenarios: int = 64
    cluster: list[str] = dataclasses.field(default_factory=lambda: ["four-aws-regions"])
    domains: list[int] = dataclasses.field(default_factory=list)
    model: list[str] = dataclasses.field(default_factory=lambda: ["llama-7b"])
    weights: list[str] = dataclasses.field(default_factory=lambda: ["1,0,0,0"])
    jitter: list[str] = dataclasses.field(default_factory=lambda: ["ou"])
    strength: list[float] = dataclasses.field(default_factory=list)
    load: list[float] = dataclasses.field(default_factory=lambda: [0.0])
    jobs: list[int] = dataclasses.field(default_factory=list)
    schedulers: str = "best_static,hysteresis,hi_ppo"
    reference: str | None = None
    steps: int = 200
    global_batch: int = GLOBAL_BATCH
    seq: int = 4096
    efficiency: str = "published"
    allow: str = "synchronous"
    base_spread: float = BASE_SPREAD
    table_size: int = 48
    layout_limit: int = LAYOUT_LIMIT
    batch: int = 256
    executor: str = "local"
    workers: int = 0
    address: str | None = None
    dry_run: bool = False
    resume: str | None = None
    json: str | None = None
    out: str | None = None

    def __post_init__(self):
        _check_choice("design", self.design, DESIGNS)
        _check_choice("executor", self.executor, EXECUTORS)
        _check_choice("allow", self.allow, ALLOW)
        check_counts(self, {"points": MOST_POINTS, "scenarios": MOST_SCENARIOS})
        check_counts(self, {"steps": MOST_INTERVALS, "batch": MOST_BATCH, **MOST_OF_A_WORLD})
        check_counts(self, {"layout_limit": MOST_LAYOUTS})
        check_counts(self, {"workers": MOST_WORKERS, "seed": 2**53}, least=0)
        for name in ("cluster", "model", "weights", "jitter", "load"):
            if not getattr(self, name):
                raise ValueError(f"{name}: expected at least one value, got none")
        for name in FACTORS:
            values = getattr(self, name)
            if len(set(values)) < len(values):
                raise ValueError(f"{name}: expected every value once, got {values}")
        if not all(2 <= k <= 1024 for k in self.domains):
            raise ValueError(f"domains: expected integers from 2 to 1024, got {self.domains}")
        if not all(math.isfinite(x) and 0.0 <= x <= 1.0 for x in self.load):
            raise ValueError(f"load: expected numbers from 0 to 1, got {self.load}")
        if not all(1 <= j <= MOST_JOBS for j in self.jobs):
            raise ValueError(f"jobs: expected integers from 1 to {MOST_JOBS}, got {self.jobs}")
        for text in self.weights:
            parse_weights(text)
        if self.jobs and self.weights != ["1,0,0,0"]:
            raise ValueError(f"weights: expected 1,0,0,0 alone beside jobs, got {self.weights}")
        if self.strength and (without := [j for j in self.jitter if j not in STRENGTH_OF]):
            raise ValueError(
                f"strength: {without[0]!r} has none; expected jitter of {', '.join(STRENGTH_OF)}"
            )
        for jitter, strength in itertools.product(self.jitter, self.strength or [None]):
            self.settings(jitter, strength, max(self.load))

    @property
    def names(self) -> list[str]:
        """The schedulers in order, each once."""
        return list(dict.fromkeys(n.strip() for n in self.schedulers.split(",") if n.strip()))

    def settings(self, jitter: str, strength: float | None, load: float) -> ScenarioSettings:
        """How the scenarios of a point are drawn. Raises ValueError for what cannot be."""
        changes: dict[str, Any] = {}
        if strength is not None:
            name = STRENGTH_OF[jitter]
            changes[name] = strength if name == "uniform" else (strength, strength)
        return ScenarioSettings(
            jitter=jitter,
            base_spread=self.base_spread,
            load_share=load,
            load_swing=0.2 if load > 0 else 0.0,
            horizon=self.steps,
            **changes,
        )


def _check_choice(key: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{key}: expected one of {', '.join(allowed)}, got {value!r}")


def recorded(config: SweepConfig) -> dict:
    """The settings that determine a sweep's rows, as its run folder records them."""
    body = dataclasses.asdict(config)
    return {key: value for key, value in body.items() if key not in MEANS}


def resumed_config(config: SweepConfig, given: list[str]) -> SweepConfig:
    """The configuration of the sweep that is to go on, carried out as the command line says.

    Raises InputError for `given` keys that would change its rows.
    """
    body = load(str(config.resume)).run["config"]
    own = dataclasses.asdict(config)
    changed = [k for k in given if k == "out" or (k not in MEANS and body.get(k) != own[k])]
    allowed = ", ".join(key for key in MEANS if key not in ("out", "resume"))
    refuse_changes("sweep", str(config.resume), changed, allowed, keeps="design")
    means = {key: own[key] for key in MEANS if key != "out" and own[key] is not None}
    return from_mapping(SweepConfig, {**body, **means}, str(config.resume))
