"""Named worlds: a cluster, the job that is trained on it, and how its links and GPUs move.

    params = jaxsim.make("four-aws-regions", seed=0)
    state, timestep = jaxsim.reset(jax.random.key(0), params)

A seed names one scenario of a world; the same seed is the same scenario for every scheduler.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools

import jax
import jax.numpy as jnp

from jaxsim.cluster import load_cluster, repeat_regions
from jaxsim.env import EnvParams
from jaxsim.files import InputError
from jaxsim.plan import Plan
from jaxsim.planning import complete, one_view, score_plans
from jaxsim.scenario import ScenarioSettings, World, build_world, mean_view, scenario_bank
from jaxsim.trees import take
from jaxsim.workload import JobSpec, load_model

SPREAD = 0.25  # of the links' base bandwidth between scenarios, as in training
LOADED = {"load_share": 0.5, "load_swing": 0.2}


@dataclasses.dataclass(frozen=True)
class NamedWorld:
    """What a name stands for.

    Attributes:
        cluster: an embedded cluster or a cluster file
        scenario: how the scenario of a seed is drawn
        model: preset of the model
        global_batch: sequences per training step
        seq: tokens per sequence
        layout_limit: layouts of domains that are searched at most for the plan table
        domains: the cluster's regions are repeated to this number; None = as the file has them
    """

    cluster: str = "four-aws-regions"
    scenario: ScenarioSettings = dataclasses.field(
        default_factory=lambda: ScenarioSettings(base_spread=SPREAD)
    )
    model: str = "llama-7b"
    global_batch: int = 1024
    seq: int = 4096
    layout_limit: int = 4000
    domains: int | None = None

    @property
    def job(self) -> JobSpec:
        return JobSpec(load_model(self.model), self.global_batch, self.seq)


def _moved(jitter: str, **settings) -> NamedWorld:
    scenario = ScenarioSettings(jitter=jitter, base_spread=SPREAD, **settings)
    return NamedWorld(scenario=scenario)


# The scenes of the suites carry the same names; `four-aws-regions` is what `make run` trains on.
WORLDS: dict[str, NamedWorld] = {
    "four-aws-regions": _moved("ou"),
    "eight-aws-regions": NamedWorld(cluster="eight-aws-regions", layout_limit=500),
    # Worlds worth deciding in, by model and regions. No small region holds a replica of 70B, none at
    # all one of 405B.
    "70b-eight-regions": NamedWorld(
        cluster="mixed-aws-regions", model="llama-70b", global_batch=512, layout_limit=300
    ),
    "70b-sixteen-regions": NamedWorld(
        cluster="mixed-aws-regions",
        model="llama-70b",
        global_batch=512,
        layout_limit=300,
        domains=16,
    ),
    "405b-eight-regions": NamedWorld(
        cluster="large-aws-regions", model="llama-405b", global_batch=1024, layout_limit=300
    ),
    "steady": _moved("none"),
    "jitter": _moved("uniform"),
    "drift": _moved("ou"),
    "load": _moved("uniform", **LOADED),
    "swinging-load": _moved("uniform", load_share=0.5, load_swing=0.8),
    "bursty-load": _moved("uniform", load_share=0.5, load_job_share=0.25, load_stay=20.0),
    "heavy-tail": _moved("heavy"),
    "regime": _moved("regime"),
    "outage": _moved("outage"),
}


def list_worlds() -> tuple[str, ...]:
    """Names that `make` and `make_world` take."""
    return tuple(WORLDS)


def named_world(name: str) -> NamedWorld:
    """What a name stands for. Raises InputError that lists the known names."""
    if name not in WORLDS:
        close = difflib.get_close_matches(name, WORLDS, n=1)
        hint = f" Did you mean {close[0]}?" if close else ""
        raise InputError(f"world: {name!r} is unknown.{hint} Known: {', '.join(WORLDS)}")
    return WORLDS[name]


@functools.lru_cache(maxsize=8)
def make_world(name: str, table_size: int = 48) -> World:
    """The cluster, the job and the table of plans of a named world; seconds to minutes, cached.

    Raises InputError for an unknown name.
    """
    named = named_world(name)
    spec = load_cluster(named.cluster)
    spec = spec if named.domains is None else repeat_regions(spec, named.domains)
    loaded = named.scenario.load_share > 0
    calibration = spec.calibration
    args = (spec, named.job, table_size, named.layout_limit)
    return build_world(*args, calibration=calibration, loaded=loaded)[0]


def make(name: str = "four-aws-regions", seed: int = 0, split: str = "play") -> EnvParams:
    """One scenario of a named world, ready for `reset`.

    The fastest plan at base bandwidth and mean load is in force at the start (`initial_plan`), and
    rewards compare with it: `progress_ref` is its progress per interval there, so a reward of 0.1
    is 10 % more training than that. `split` separates sets of scenarios: the same seed in two splits
    is two worlds.

    Raises InputError for an unknown name.
    """
    world = make_world(name)
    bank, _ = scenario_bank(world, named_world(name).scenario, range(seed, seed + 1), split)
    params = take(bank, 0)
    return params.replace(initial_plan=_best_static_plan(params, world))


@jax.jit
def _best_static_plan(params: EnvParams, world: World) -> Plan:
    """[1, ...] the fastest row of the table at base bandwidth and mean load, completed."""
    view, problem = mean_view(params), params.problem.job(0)
    rates, choices = score_plans(world.table.plans, one_view(view), problem)
    row = jnp.argmax(jnp.where(world.table.mask, rates[0], -1.0))
    plan = take(world.table.plans, row)
    done, _ = complete(plan, choices[0, row], problem, view)
    return jax.tree.map(lambda x: x[None], done)
