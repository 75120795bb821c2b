"""Policy-guided search: the rows that a trained policy would choose from are tried on imagined futures.

The policy is quick and sees the present; `agents.foresight.Rollout` looks ahead, at a price for every
row. Here the policy proposes and the planner decides: of the best rows and the one in force, the one
that the dynamic programme over sampled futures says to be in. The lower level is the policy's.
"""

from __future__ import annotations

from typing import Any, Self

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array
from jaxtyping import Float, Int, Key

from agents.foresight import Rollout, RolloutMemory
from agents.hi_ppo.features import update_statistics
from agents.hi_ppo.filter import update_filter
from agents.hi_ppo.scheduler import HiPPO, Memory, decide_lower, measure, score_upper
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

    With one row it is the bare policy, decided in every interval.

    Attributes:
        policy: who proposes, and sets the lower level
        planner: who decides; its shortlist is not used
        rows: proposals per decision, the row in force apart
    """

    policy: HiPPO
    planner: Rollout
    rows: int = struct.field(pytree_node=False, default=12)

    def bind(self, setup: Setup) -> Self:
        return self.replace(policy=self.policy.bind(setup), planner=self.planner.bind(setup))

    def init(self, key: Key[Array, ""]) -> SearchMemory:
        return SearchMemory(self.policy.init(key), self.planner.init(key))

    def decide(
        self, key: Key[Array, ""], observation: Observation, memory: SearchMemory, *truth: Any
    ) -> tuple[Plan, SearchMemory]:
        del truth
        policy, setup, known = self.policy, self.policy.setup, memory.policy
        known_of = setup, policy.policy, policy.networks, observation
        measured, layouts = measure(setup, observation, policy.reference, known.layouts)
        stats = update_statistics(known.stats, measured.rates.max(axis=-1), measured.lost)
        filtered = update_filter(known.filtered, observation.view)
        logits = score_upper(*known_of, stats, known.stats.last, policy.reference, measured)
        seen = evaluate_table(setup, observation)
        planner = self.planner.learned(seen, memory.planner)
        proposed = _proposed(logits, measured.row, self.rows)
        if self.rows == 1:
            wanted = proposed[0]
        else:
            futures = self.planner.imagined(key, seen.view, planner)
            wanted = self.planner.best_of(proposed, seen, futures)
        row = jnp.where(seen.may_switch, wanted, measured.row)
        plan = decide_lower(*known_of, measured, filtered, row)
        after = known.replace(stats=stats, filtered=filtered, layouts=layouts)
        return plan, SearchMemory(after, planner)


def _proposed(logits: Float[Array, " P"], row: Int[Array, ""], count: int) -> Int[Array, " N"]:
    """[N] the best rows, behind the one in force where there are several: it is always allowed."""
    if count == 1:
        return jax.lax.top_k(logits, 1)[1].astype(jnp.int32)
    first = jnp.where(jnp.arange(logits.size) == row, jnp.inf, logits)
    return jax.lax.top_k(first, min(count + 1, logits.size))[1].astype(jnp.int32)
