"""What a training run is asked for."""

from __future__ import annotations

import dataclasses

from agents.hi_ppo import TrainSettings
from analysis.records import load
from experiments.common import (
    GLOBAL_BATCH,
    MOST_OF_A_WORLD,
    MOST_SCENARIOS,
    are_weights,
    default_scenario,
    from_mapping,
    refuse_changes,
    smaller,
)
from jaxsim.files import check_counts, check_fields, listed
from jaxsim.scenario import ScenarioSettings

FAST = (1.0, 0.0, 0.0, 0.0)
PREFERENCES = ("fixed", "drawn")
MOST_POLICIES = 64  # trained side by side
MOST_PROCESSES = 1024
NOT_RECORDED = ("out", "resume", "processes", "dry_run")  # what is trained does not depend on it
QUICK = {
    **{"seeds": (0,), "epochs": 4, "eval_every": 2, "checkpoint_every": 2, "scenarios": 8},
    **{"eval_scenarios": 4, "scenario.horizon": 16},
}
OF_ONE_WORLD = ("cluster", "model", "global_batch", "seq", "trace", "load", "scenario")


@dataclasses.dataclass(frozen=True)
class Processes:
    """Who trains beside this process; each sums the gradient over its share of every batch.

    Attributes:
        coordinator: HOST:PORT at which process 0 listens and all others find it
        count: processes that train one policy together
        index: which of them this one is, from 0; process 0 keeps the records
    """

    coordinator: str | None = None
    count: int = 1
    index: int = 0

    def __post_init__(self):
        check_counts(self, {"count": MOST_PROCESSES})
        check_counts(self, {"index": self.count - 1}, least=0)
        host, _, port = (self.coordinator or "").rpartition(":")
        if self.count > 1 and not (host and port.isdecimal() and 0 < int(port) < 2**16):
            raise ValueError(
                f"coordinator: expected HOST:PORT beside count {self.count}, got {self.coordinator!r}"
            )

    @property
    def first(self) -> bool:
        """Whether this process keeps the records."""
        return self.index == 0


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """A training run.

    Attributes:
        cluster: cluster file; the embedded four-region cluster if none is given
        model: preset or YAML file
        global_batch: sequences per training step
        seq: tokens per sequence
        weights: w1 to w4 of the reward: progress, utilisation, cost, fairness
        preferences: fixed: every scenario asks for `weights`; drawn: each asks for something else,
            progress alone, weights of progress, utilisation and cost, or progress within a budget,
            so that one policy serves them all
        efficiency: what a token is worth where replicas talk seldom: published, none, a number up to
            1, or a CSV file of parameters
        allow: plans of the table: synchronous, or any (local SGD, fewer bits, streaming as well)
        trace: trace CSV of the links: its first three quarters train, the rest is held out; each
            scenario starts it elsewhere
        load: load CSV of local jobs, divided likewise
        scenario: how training and held-out worlds are drawn; with a trace jitter is none and
            base_spread 0 unless they are given
        worlds: named worlds, separated by commas, in place of cluster, model, global_batch, seq,
            trace, load and scenario: one policy learns from all of them, and each draws its own
            scenarios; NAME:any and NAME:synchronous are worlds whose plans are not those of `allow`.
            FILE.yaml or FILE.yaml:SUITE are the scenes of a suite of yours, which hippo evaluate
            --suite plays: clusters, jobs and traces of your own, many in one training
        train: Hi-PPO and its optimisation
        start: a checkpoint whose first policy training goes on from, hi_ppo = the one that ships; the
            networks must be as they are there
        seeds: policy seeds, trained side by side
        epochs: batches of episodes
        scenarios: training scenarios in the bank, of each world
        eval_scenarios: held-out scenarios of the learning curve, of each world
        eval_every: epochs between two evaluations
        checkpoint_every: epochs between two checkpoints
        table_size: plans in the table at most
        tuning_scenarios: training scenarios of each world on which rivals are tuned, to play beside the
            policy; 0 = none
        processes: those that train one policy together, each started with the same other options; the
            exact gradient only
        quick: small sizes where none are given, to go through all of it once; little is learned
        dry_run: check the files, say how much there is to do and how long runs like it took
        out: run folder; outputs/train-<time> if none is given
        resume: run folder to go on with; its own configuration holds, but for a new `epochs`, over
            which the learning rate then decays
    """

    cluster: str | None = None
    model: str = "llama-7b"
    global_batch: int = GLOBAL_BATCH
    seq: int = 4096
    weights: tuple[float, float, float, float] = FAST
    preferences: str = "fixed"
    efficiency: str = "published"
    allow: str = "synchronous"
    trace: str | None = None
    load: str | None = None
    scenario: ScenarioSettings = dataclasses.field(default_factory=default_scenario)
    worlds: str | None = None
    train: TrainSettings = dataclasses.field(default_factory=TrainSettings)
    start: str | None = None
    seeds: tuple[int, ...] = (0, 1, 2)
    epochs: int = 60
    scenarios: int = 192
    eval_scenarios: int = 48
    eval_every: int = 20
    checkpoint_every: int = 10
    table_size: int = 48
    tuning_scenarios: int = 0
    processes: Processes = dataclasses.field(default_factory=Processes)
    quick: bool = False
    dry_run: bool = False
    out: str | None = None
    resume: str | None = None

    def __post_init__(self):
        epochs = dict.fromkeys(("epochs", "eval_every", "checkpoint_every"), 10_000_000)
        banks = dict.fromkeys(("scenarios", "eval_scenarios"), MOST_SCENARIOS)
        check_counts(self, {**epochs, **banks, **MOST_OF_A_WORLD})
        check_counts(self, {"tuning_scenarios": MOST_SCENARIOS}, least=0)
        check_fields(self, ("weights",), "four numbers >= 0, not all 0", are_weights)
        check_fields(self, ("preferences",), listed(PREFERENCES), PREFERENCES.__contains__)
        allowed = f"1 to {MOST_POLICIES} different integers >= 0 and < {2**32:,}"
        check_fields(self, ("seeds",), allowed, _are_seeds)
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        defaults["scenario"] = default_scenario()
        own = [key for key in OF_ONE_WORLD if getattr(self, key) != defaults[key]]
        if self.worlds and own:
            raise ValueError(f"{own[0]}: not allowed beside worlds, whose names say it")
        if self.train.algorithm == "ppo" and len(self.names) > 1:
            raise ValueError("worlds: ppo learns from one; train.algorithm exact learns from many")
        if self.train.algorithm == "ppo" and self.processes.count > 1:
            raise ValueError("processes: ppo trains in one; train.algorithm exact in many")
        if self.preferences == "drawn":
            if self.train.algorithm == "ppo":
                raise ValueError(
                    "preferences: ppo learns fixed ones; train.algorithm exact drawn ones"
                )
            if self.weights != FAST:
                raise ValueError("weights: not allowed beside preferences drawn, which draws them")

    def with_dependent_defaults(self, given: list[str]) -> TrainConfig:
        """With a trace, links are what the file says: nothing is drawn on top that is not `given`.
        Sizes of a quick run are small unless they are `given`."""
        own = ("scenario.horizon", *given) if self.worlds else given  # named worlds say how long
        sized = smaller(self, QUICK, own) if self.quick else self
        if self.trace is None:
            return sized
        quiet = {"jitter": "none", "base_spread": 0.0}
        changes = {k: v for k, v in quiet.items() if f"scenario.{k}" not in given}
        return dataclasses.replace(sized, scenario=dataclasses.replace(sized.scenario, **changes))

    @property
    def names(self) -> tuple[str, ...]:
        """What `worlds` names, each once, as it is given: NAME, NAME:ALLOWED or a suite's file."""
        named = (self.worlds or "").split(",")
        return tuple(dict.fromkeys(name.strip() for name in named if name.strip()))


def name_and_allowed(given: str, allow: str) -> tuple[str, str]:
    """The two parts of a name in `worlds`, NAME or NAME:ALLOWED; `allow` where it says nothing."""
    name, _, own = given.partition(":")
    return name, own or allow


def _are_seeds(seeds: tuple[int, ...]) -> bool:
    few = 1 <= len(seeds) <= MOST_POLICIES
    return few and len(set(seeds)) == len(seeds) and 0 <= min(seeds) <= max(seeds) < 2**32


def recorded(config: TrainConfig) -> dict:
    """The settings that determine a training run's results, as its run folder records them."""
    body = dataclasses.asdict(config)
    return {k: v for k, v in body.items() if k not in NOT_RECORDED}


def resumed_config(config: TrainConfig, given: list[str]) -> TrainConfig:
    """The configuration of the run that is to go on, with `epochs` from the command line if it is
    among the `given` keys.

    Raises InputError for any other key: a run's results are those of one configuration.
    """
    others = [
        key for key in given if key not in ("resume", "epochs") and not key.startswith("processes")
    ]
    refuse_changes("train", config.resume, others, "epochs, processes.*")
    own = {**load(config.resume).run["config"], "resume": config.resume}
    changed = {"epochs": config.epochs} if "epochs" in given else {}
    kept = from_mapping(TrainConfig, {**own, **changed}, config.resume)
    return dataclasses.replace(kept, processes=config.processes)
