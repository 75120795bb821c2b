"""A scheduler that listens: a measurement comes in, both levels decide, the new plan goes out.

    python -m experiments.respond --cluster FILE --scheduler hi_ppo

One JSON object per line on standard input: what was measured, of a link or of a domain:

    {"src": "ohio", "dst": "oregon", "bandwidth_gbps": 2.1, "rtt_ms": 50}
    {"domain": "ohio", "gpus_available": 4}

One JSON object per line on standard output: first `ready` with the plan to start from, then one
answer to every measurement: the plan, whether it stops the job to be put into force (`switch`), and
the time the decision took. A line that cannot be used is answered by `error`; nothing else changes.
A plan counts as carried out when the next measurement comes. The end of the input ends the process.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
import time
from typing import Any, TextIO

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from agents.protocol import Scheduler, make_setup
from agents.registry import plan_rules, rivals_with_rules
from experiments.common import compile_for_evaluation, load_world, parse, run_command
from experiments.evaluate import contestants, requested_without_truth
from jaxsim.cluster import GBIT_PER_GBYTE, ClusterSpec
from jaxsim.env import EnvParams, State, observe
from jaxsim.files import InputError
from jaxsim.network import init_network
from jaxsim.plan import Plan, describe, needs_reconfiguration
from jaxsim.scenario import ScenarioSettings, World, scenario_bank
from jaxsim.step_time import NetworkView, Transition

LINK_KEYS = ("src", "dst", "bandwidth_gbps", "rtt_ms")
DOMAIN_KEYS = ("domain", "gpus_available")


@dataclasses.dataclass(frozen=True)
class RespondConfig:
    """A process that answers measurements with plans.

    Attributes:
        scheduler: a name or a checkpoint; hi_ppo = the one that ships. Its upper level decides at
            every measurement
        cluster: cluster file; the embedded four-region cluster if none is given
        model: preset or YAML file
        global_batch: sequences per training step
        seq: tokens per sequence
        table_size: plans in the table at most
        layout_limit: layouts of domains that are searched at most for the table
        interval_s: seconds that pass between two measurements, as the scheduler takes it
    """

    scheduler: str = "hi_ppo"
    cluster: str | None = None
    model: str = "llama-7b"
    global_batch: int = 512
    seq: int = 4096
    table_size: int = 48
    layout_limit: int = 4000
    interval_s: float = 60.0


@struct.dataclass
class Desk:
    """What the process keeps between two measurements."""

    plan: Plan  # [J] carried out
    memory: Any  # the scheduler's
    since_switch: jax.Array  # [J] int32 measurements
    t: jax.Array  # [] int32


@jax.jit
def respond(
    scheduler: Scheduler, params: EnvParams, table: Any, desk: Desk, view: NetworkView
) -> tuple[Desk, jax.Array]:
    """Decide on both levels under a measured view; returns the desk with the new plan [J] and [J]
    bool whether putting it into force stops the job."""
    setup = make_setup(params, table)
    n_jobs, n_domains = desk.plan.group.shape
    zeros = jnp.zeros((n_jobs,), jnp.float32)
    nothing_gb = jnp.zeros((n_jobs, n_domains, n_domains), jnp.float32)
    key = jax.random.key(0)
    state = State(
        key=key,
        t=desk.t,
        network=init_network(params.network, key),
        view=view,
        plan=desk.plan,
        target=desk.plan,
        moving=jnp.zeros((n_jobs,), bool),
        transition=Transition(zeros, nothing_gb),
        owed_gb=nothing_gb,
        steps_done=zeros,
        since_sync=zeros,
        since_switch=desk.since_switch,
    )
    observation = observe(state, params)
    key = jax.random.fold_in(jax.random.key(1), desk.t)
    plan, memory = scheduler.bind(setup).decide(key, observation, desk.memory)
    switch = jax.vmap(needs_reconfiguration)(desk.plan, plan)
    since = jnp.where(switch, 0, desk.since_switch + 1)
    return Desk(plan, memory, since, desk.t + 1), switch


class Responder:
    """A scheduler at its desk: the network as last measured, the plan as last decided."""

    def __init__(self, world: World, spec: ClusterSpec, scheduler: Scheduler, interval_s: float):
        """Deploy the first plan on the network that the cluster file states."""
        settings = ScenarioSettings(jitter="none", interval_s=interval_s)
        bank, _ = scenario_bank(world, settings, range(1), "respond")
        params = jax.tree.map(lambda x: x[0], bank)
        cluster = params.problem.cluster
        self.spec = spec
        self._args = (scheduler, params, world.table)
        # The host's own copies, one measurement at a time is written into them.
        self._bandwidth = np.array(cluster.bandwidth_gb_per_s)
        self._rtt, self._free = np.array(cluster.rtt_s), np.array(cluster.gpus)
        n_jobs = params.initial_plan.group.shape[0]
        memory = scheduler.bind(make_setup(params, world.table)).init(jax.random.key(0))
        self._desk = Desk(
            params.initial_plan, memory, jnp.full((n_jobs,), 1000, jnp.int32), jnp.int32(1)
        )
        self.first = self.decide()

    def decide(self) -> dict[str, Any]:
        """The answer to the network as it is now known."""
        start = time.perf_counter()
        view = NetworkView(self._bandwidth, self._rtt, self._free)
        self._desk, switch = respond(*self._args, self._desk, view)
        plan = jax.tree.map(lambda x: np.asarray(x)[0], self._desk.plan)
        return {
            "plan": describe(plan, self.spec.domains),
            "switch": bool(switch[0]),
            "decision_ms": 1e3 * (time.perf_counter() - start),
            "fields": {name: np.asarray(getattr(plan, name)).tolist() for name in vars(plan)},
        }

    def answer(self, line: str) -> dict[str, Any]:
        """The new plan after one measurement, or {"error": why} for a line that is none."""
        try:
            self.measure(json.loads(line))
        # Broken JSON or InputError; JSON nested too deep; a number too large for a float.
        except (ValueError, RecursionError, OverflowError) as error:
            return {"error": " ".join(str(error).split())}
        return self.decide()

    def measure(self, body: Any) -> None:
        """Write one measurement into the view. Raises InputError that names the key."""
        keys = set(body) if isinstance(body, dict) else set()
        if keys == set(DOMAIN_KEYS):
            k = self._domain(body, "domain")
            most = self.spec.gpus[k]
            self._free[k] = int(_number(body, "gpus_available", 0, most, whole=True))
        elif keys <= set(LINK_KEYS) and keys >= {"src", "dst"} and len(keys) > 2:
            i, j = self._domain(body, "src"), self._domain(body, "dst")
            if i == j:
                raise InputError(f"src, dst: both are {body['src']!r}; no link leads there")
            new = {key: _number(body, key, 1e-6, 1e6) for key in keys - {"src", "dst"}}
            if "bandwidth_gbps" in new:
                self._bandwidth[i, j] = new["bandwidth_gbps"] / GBIT_PER_GBYTE
            if "rtt_ms" in new:
                self._rtt[i, j] = new["rtt_ms"] * 1e-3
        else:
            raise InputError(
                "expected one JSON object with the keys src, dst and bandwidth_gbps or rtt_ms (or "
                f"both), or with {' and '.join(DOMAIN_KEYS)}; got {sorted(keys) or body!r}"
            )

    def _domain(self, body: dict, key: str) -> int:
        if body[key] not in self.spec.domains:
            known = ", ".join(self.spec.domains)
            raise InputError(f"{key}: {body[key]!r} is no domain; known: {known}")
        return self.spec.domains.index(body[key])


def _number(body: dict, key: str, low: float, high: float, whole: bool = False) -> float:
    value = body[key]
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not good or not low <= value <= high or (whole and value != int(value)):
        kind = "a whole number" if whole else "a number"
        raise InputError(f"{key}: expected {kind} from {low:g} to {high:g}, got {value!r}")
    return value


def make_responder(config: RespondConfig) -> Responder:
    """Load the world and the scheduler; the first decision is compiled when this returns.

    Raises InputError, for the oracles too: a process that listens does not know the future.
    """
    name, checkpoints = requested_without_truth(config.scheduler, "scheduler")
    if not 0 < config.interval_s <= 1e9:
        raise InputError(f"interval_s: expected a number > 0, got {config.interval_s:g}")
    spec, world, _ = load_world(
        config.cluster,
        config.model,
        config.global_batch,
        config.seq,
        config.table_size,
        plan_rules(rivals_with_rules()),
        layout_limit=config.layout_limit,
        loaded=True,
    )
    scheduler = contestants(name, checkpoints, {}, world)[0].scheduler
    if name in checkpoints:
        scheduler = scheduler.replace(every=jnp.int32(1))
    return Responder(world, spec, scheduler, config.interval_s)


def serve(responder: Responder, lines: TextIO, out: TextIO) -> None:
    """Answer every line until the input ends."""
    _put({"ready": True, "domains": responder.spec.domains, **responder.first}, out)
    for line in lines:
        if line.strip():
            _put(responder.answer(line), out)


def _put(answer: dict, out: TextIO) -> None:
    out.write(json.dumps(answer) + "\n")
    out.flush()


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit status."""

    def command() -> None:
        config = parse(RespondConfig, sys.argv[1:] if argv is None else argv, "respond")
        compile_for_evaluation()
        serve(make_responder(config), sys.stdin, sys.stdout)

    return run_command(command)


if __name__ == "__main__":
    sys.exit(main())
