"""Policy-guided search: what a trained policy would choose from is tried on imagined futures.

The policy is quick and has learned how links behave; `agents.foresight.Rollout` looks ahead, over
futures that it samples from a simpler model. Here the policy proposes, and what a move gains by the
dynamic programme over the futures is added to its logits. The lower level is the policy's.
"""

from __future__ import annotations

from typing import Any, Self

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array
from jaxtyping import Float, Int, Key

from agents.foresight import Rollout, RolloutMemory
from agents.hi_ppo.features import PRIOR_SHARPNESS
from agents.hi_ppo.scheduler import HiPPO, Memory
from agents.protocol import Scheduler, Setup, evaluate_table
from jaxsim.env import Observation
from jaxsim.plan import Plan
from jaxsim.pytree import Pytree


class SearchMemory(Pytree):
    """What both carry from interval to interval."""

    policy: Memory
    planner: RolloutMemory


class GuidedSearch(Pytree, Scheduler):
    """A policy whose best `rows` rows are tried on imagined futures before it acts.

    With one row it is the bare policy, decided in every interval; so it is before the first deployment.

    Attributes:
        policy: who proposes, and sets the lower level
        planner: who looks ahead; its shortlist is not used
        weight: [] of what it finds: logits per unit of relative gain, in those of the policy's prior
        rows: proposals per decision, the row in force apart
    """

    policy: HiPPO
    planner: Rollout
    weight: Float[Array, "*batch"] | float = 0.5
    rows: int = struct.field(pytree_node=False, default=12)

    def bind(self, setup: Setup) -> Self:
        return self.replace(policy=self.policy.bind(setup), planner=self.planner.bind(setup))

    def init(self, key: Key[Array, ""]) -> SearchMemory:
        return SearchMemory(self.policy.init(key), self.planner.init(key))

    def decide(
        self, key: Key[Array, ""], observation: Observation, memory: SearchMemory, *truth: Any
    ) -> tuple[Plan, SearchMemory]:
        del truth
        policy, setup = self.policy, self.policy.setup
        looked, known = policy.look(observation, memory.policy)
        seen = evaluate_table(setup, observation)
        planner = self.planner.learned(seen, memory.planner)
        wanted = jnp.argmax(looked.logits).astype(jnp.int32)
        if self.rows > 1:
            rows = _proposed(looked.logits, looked.measured.row, self.rows)
            futures = self.planner.imagined(key, seen.view, planner)
            span = policy.reference.scale * setup.interval_s * self.planner.horizon
            gain = PRIOR_SHARPNESS * self.planner.gains_of(rows, seen, futures) / span
            score = looked.logits[rows] + jnp.float32(self.weight) * gain
            wanted = jnp.where(seen.idle, wanted, rows[jnp.argmax(score)])
        row = jnp.where(seen.may_switch, wanted, looked.measured.row)
        return policy.carried_out(observation, looked, known, row), SearchMemory(known, planner)


def _proposed(logits: Float[Array, " P"], row: Int[Array, ""], count: int) -> Int[Array, " N"]:
    """[N] the row in force, and behind it the best others."""
    first = jnp.where(jnp.arange(logits.size) == row, jnp.inf, logits)
    return jax.lax.top_k(first, min(count + 1, logits.size))[1].astype(jnp.int32)
