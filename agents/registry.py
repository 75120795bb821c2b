"""Schedulers by name: one entry each.

Commands refuse unknown names before they load anything, so `experiments/common/known.py` lists the
names once more; a test holds the two together.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from agents.baselines import (
    BacePipe,
    Hysteresis,
    Mast,
    Random,
    Ray,
    Replanning,
    SelfTuningHysteresis,
    SmoothedHysteresis,
    StaticPlan,
    even_splits,
    every_row,
    inside_one_domain,
    with_any_choice,
)
from agents.foresight import Rollout
from agents.hi_ppo import load_shipped, schedulers
from agents.many_jobs import JobsBacePipe, JobsMast, JobsScheduler, PerJobScheduler
from agents.oracles import Clairvoyant, ReplanOracle
from agents.planners import alpa, crosspipe, diloco, dt_fm, halos, hyperion, megatron, sailor, zero
from agents.protocol import Scheduler, Setup, make_setup
from jaxsim.env import EnvParams
from jaxsim.files import InputError
from jaxsim.planning import PlanRules, PlanTable
from jaxsim.scenario import JobsWorld, World
from jaxsim.trees import take

Settings = Mapping[str, float]  # {key of a Tunable: value}


@dataclasses.dataclass(frozen=True)
class Tunable:
    """The leaf of a scheduler that may be set.

    Attributes:
        leaf: name of the scheduler's field
        default: its value where nothing was tuned
        grid: values that tuning tries on training scenarios; empty = it is not tuned
        key: its name among the settings of all schedulers, in records
    """

    leaf: str
    default: float
    grid: tuple[float, ...]
    key: str


@dataclasses.dataclass(frozen=True)
class Entry:
    """All that is known of a scheduler by its name.

    Attributes:
        name: what it is asked for by
        kind: its class, or a function that takes the class's fields; None for a learned one
        rows: [P] bool, the rows of a table that it may play, with every lower choice; None = all
        rules: plans of its own, which join the table and are all that it may play; None = it has none
        tunables: the leaves that may be set
        oracle: it reads the future
        weighs: it maximises what an objective weighs, not progress alone
        learned: its numbers come from a checkpoint
        low_communication: its plans change what a training step learns, so it plays on a table of
            its own
        one_job_only: it cannot be asked job by job
        jobs_kind: the class that stands for it where there are many jobs; None = it is asked job by
            job
    """

    name: str
    kind: Callable[..., Scheduler] | None
    rows: Callable[[PlanTable], Array] | None = None
    rules: PlanRules | None = None
    tunables: tuple[Tunable, ...] = ()
    oracle: bool = False
    weighs: bool = False
    learned: bool = False
    low_communication: bool = False
    one_job_only: bool = False
    jobs_kind: Callable[..., JobsScheduler] | None = None

    def make(self, table: PlanTable, n_choices: int, **values: Any) -> Scheduler:
        """The scheduler for a table with `n_choices` lower choices, not bound to a setup.

        `values` are leaves of its class. Raises ValueError for a value that it does not take, and
        where its plans were not added to the table.
        """
        taken = tuple(t.leaf for t in self.tunables)
        for given in values:
            if given not in taken:
                raise ValueError(unknown(f"{self.name}: no setting", given, taken))
        if self.learned:
            return schedulers(load_shipped())[0]
        values = {**{t.leaf: t.default for t in self.tunables}, **values}
        if (candidates := self.candidates(table, n_choices)) is not None:
            values["candidates"] = candidates
        assert self.kind is not None  # of a learned one alone
        return jax.tree.map(_array, self.kind(**values))

    def candidates(self, table: PlanTable, n_choices: int) -> Array | None:
        """[P, V] bool, the rows and lower choices that it may play; None = all.

        Raises ValueError where its plans were not added to the table.
        """
        if self.rules is not None:
            if self.name not in table.candidates_of:
                raise ValueError(
                    f"{self.name}: its plans were not added when the table was made: "
                    f"build the world with rules=plan_rules([{self.name!r}])"
                )
            return table.candidates_of[self.name]
        return None if self.rows is None else with_any_choice(self.rows(table), n_choices)

    def values(self, settings: Settings) -> dict[str, float]:
        """What of the settings of all schedulers is this one's, {leaf: value}."""
        return {t.leaf: settings[t.key] for t in self.tunables if t.key in settings}


def _array(leaf: Any) -> Array:
    """A leaf as an array of its own type, traced ones as they are. A Python number has a weak type,
    which would cost a compilation of its own."""
    if isinstance(leaf, Array):
        return leaf
    return jnp.asarray(leaf, jax.dtypes.canonicalize_dtype(np.asarray(leaf).dtype))


HORIZONS = (1.0, 2.0, 3.0, 5.0, 8.0, 12.0, 20.0, 40.0)  # intervals
ALPHAS = (0.05, 0.1, 0.2, 0.4, 0.7, 1.0)  # of the last measurement in an average


def _hyperion(candidates: Array) -> Replanning:
    """Split again only when a tier comes or goes, whatever moving costs."""
    return Replanning(1e6, 1, candidates=candidates)


def _shrinkage_hysteresis(horizon: float, alpha: float, **values: Any) -> SmoothedHysteresis:
    """Averages, believed as far as they have foretold rates on this network."""
    return SmoothedHysteresis(horizon, alpha, expected_weight=None, **values)


ENTRIES = (
    Entry("random", Random, tunables=(Tunable("mean_stay", 20.0, (), "random_mean_stay"),)),
    Entry("static_even_split", StaticPlan, rows=even_splits, weighs=True),
    Entry("single_domain", StaticPlan, rows=inside_one_domain, weighs=True),
    Entry("best_static", StaticPlan, rows=every_row, weighs=True),
    Entry("megatron", StaticPlan, rules=megatron.RULES),
    Entry("zero", StaticPlan, rules=zero.RULES),
    Entry("alpa", StaticPlan, rules=alpa.RULES),
    Entry("crosspipe", StaticPlan, rules=crosspipe.RULES),
    Entry("dt_fm", StaticPlan, rules=dt_fm.RULES),
    Entry("mast", Mast, jobs_kind=JobsMast),
    Entry("ray", Ray),
    Entry("bace_pipe", BacePipe, jobs_kind=JobsBacePipe),
    Entry(
        "sailor",
        Replanning,
        rules=sailor.RULES,
        tunables=(
            Tunable("horizon", 10.0, (2.0, 5.0, 10.0, 20.0, 40.0), "sailor_horizon"),
            Tunable("expected_weight", 1.0, (0.0, 0.5, 1.0), "sailor_expected_weight"),
        ),
    ),
    Entry("hyperion", _hyperion, rules=hyperion.RULES),
    Entry(
        "hysteresis",
        Hysteresis,
        weighs=True,
        tunables=(Tunable("horizon", 10.0, HORIZONS, "hysteresis_horizon"),),
    ),
    Entry(
        "smoothed_hysteresis",
        SmoothedHysteresis,
        weighs=True,
        tunables=(
            Tunable("horizon", 20.0, HORIZONS, "smoothed_horizon"),
            Tunable("alpha", 0.2, ALPHAS, "smoothed_alpha"),
            Tunable("expected_weight", 0.0, (0.0, 0.15, 0.3, 0.5), "smoothed_expected_weight"),
        ),
    ),
    Entry(
        "shrinkage_hysteresis",
        _shrinkage_hysteresis,
        weighs=True,
        tunables=(
            Tunable("horizon", 20.0, HORIZONS, "shrinkage_horizon"),
            Tunable("alpha", 0.2, ALPHAS, "shrinkage_alpha"),
        ),
    ),
    Entry(
        "self_tuning_hysteresis",
        SelfTuningHysteresis,
        weighs=True,
        tunables=(Tunable("decay", 0.99, (0.9, 0.97, 0.99, 0.997), "self_tuning_decay"),),
    ),
    Entry(
        "rollout",
        Rollout,
        weighs=True,
        tunables=(
            Tunable("futures", 8, (), "rollout_futures"),
            Tunable("horizon", 24, (), "rollout_horizon"),
        ),
    ),
    Entry(
        "replan_oracle",
        ReplanOracle,
        weighs=True,
        tunables=(Tunable("horizon", 10.0, HORIZONS, "replan_oracle_horizon"),),
        oracle=True,
    ),
    # No optimum over all intervals is known for many jobs: each job alone on the cluster is the bound.
    Entry("clairvoyant", Clairvoyant, oracle=True, weighs=True, one_job_only=True),
    Entry("hi_ppo", None, learned=True),
    Entry("diloco", StaticPlan, rules=diloco.RULES, low_communication=True),
    Entry("streaming_diloco", StaticPlan, rules=diloco.STREAMING_RULES, low_communication=True),
    Entry("halos", StaticPlan, rules=halos.RULES, low_communication=True),
)
BY_NAME = {entry.name: entry for entry in ENTRIES}


def names(**flags: bool) -> tuple[str, ...]:
    """The names of all schedulers, or of those whose entries have the flags, such as oracle=False."""
    return tuple(e.name for e in ENTRIES if all(getattr(e, k) == v for k, v in flags.items()))


def find(name: str) -> Entry:
    """The entry of a name. Raises InputError that lists the names, and says which may be meant."""
    if name not in BY_NAME:
        raise InputError(unknown("no scheduler", name, BY_NAME))
    return BY_NAME[name]


def unknown(what: str, given: str, known: Iterable[str]) -> str:
    """`what` is named `given`: the known names, and the one that may be meant."""
    known = list(known)
    close = difflib.get_close_matches(given, known, 1)
    meant = f" (did you mean {close[0]!r}?)" if close else ""
    return f"{what} {given!r}{meant}; known: {', '.join(known) or 'none'}"


def plan_rules(chosen: Sequence[str]) -> dict[str, PlanRules]:
    """{name: rules} of those among the chosen that bring plans of their own."""
    rules = {name: find(name).rules for name in chosen}
    return {name: own for name, own in rules.items() if own is not None}


def rivals_with_rules() -> tuple[str, ...]:
    """Names of those whose plans join the table that everybody plays."""
    return tuple(e.name for e in ENTRIES if e.rules is not None and not e.low_communication)


def jobs_names() -> tuple[str, ...]:
    """Names that can be asked for where there are many jobs.

    Rivals with plans of their own cannot: they plan for one job on all GPUs, not for what others
    leave.
    """
    return tuple(e.name for e in ENTRIES if not (e.one_job_only or e.rules))


def default_settings() -> dict[str, float]:
    """{key: value} of every leaf that may be set."""
    return {t.key: t.default for e in ENTRIES for t in e.tunables}


def make(
    name: str, where: World | Setup, params: EnvParams | None = None, **values: float
) -> Scheduler:
    """A scheduler by name: `make("hysteresis", world, params, horizon=5.0)`.

    With a world and the params of one of its scenarios the scheduler can decide at once; so it can
    with a setup alone. With a world alone it still has to be bound to a setup.

    Raises InputError for an unknown name, ValueError for an unknown setting and where the scheduler's
    plans were not added to the table.
    """
    scheduler = find(name).make(where.table, where.problem.choices.size, **values)
    if params is not None:
        where = make_setup(params, where.table)
    return _bind(scheduler, where) if isinstance(where, Setup) else scheduler


@jax.jit
def _bind(scheduler: Scheduler, setup: Setup) -> Scheduler:
    return scheduler.bind(setup)


def make_for_jobs(entry: Entry, world: JobsWorld) -> JobsScheduler:
    """The scheduler of an entry for many jobs, every job's made for the job's own table.

    Raises ValueError for one that plans for one job alone.
    """
    if entry.name not in jobs_names():
        raise ValueError(f"{entry.name!r} is for one job")
    if entry.jobs_kind is not None:
        return entry.jobs_kind()
    n_choices = world.problem.choices.size
    tables = [take(world.tables, u) for u in range(world.tables.mask.shape[0])]
    by_table = [entry.make(table, n_choices) for table in tables]
    return PerJobScheduler.of([by_table[u] for u in np.asarray(world.kind)])
