"""Rollout: sample futures from a fitted model, solve the programme over them, decide anew each time.

The strongest rival that reads no future. In every interval it draws W futures of H intervals from
what was measured so far (`futures`), scores the rows that may matter along each of them, and finds
by dynamic programme (`programme`, clairvoyant's own) the policy over time and row that does most
work in their mean, moves paid. It carries out the first decision and starts again in the next
interval. Micro-batches are shared out for the bandwidths it expects, not for the last measured ones.

Left out: rows beyond those that are best for some horizon on the last or the averaged rates; every
row keeps the lower choice that is best as measured.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array
from jaxtyping import Bool, Float, Int, Key

from agents.foresight.outlook import Outlook
from agents.foresight.programme import first_deployment, migration_table, values_of_rows
from agents.paying import amortised_gain
from agents.protocol import (
    EvaluatedTable,
    TableScheduler,
    carry_out,
    evaluate_table,
    score_rows,
)
from agents.staying import lost_by_resizing_s
from jaxsim.env import Observation
from jaxsim.plan import Plan
from jaxsim.planning import Worth
from jaxsim.pytree import Pytree
from jaxsim.step_time import NetworkView
from jaxsim.trees import take

SHORTLIST_HORIZONS = (2.0, 6.0, 20.0, 60.0)  # intervals
AVERAGE = 0.2  # weight of the last measurement in a row's average


class RolloutMemory(Pytree):
    """What was learned so far."""

    outlook: Outlook
    average: Float[Array, "*batch P"]  # of the rows' rates
    started: Bool[Array, "*batch"]


class Rollout(TableScheduler):
    """Plan over sampled futures, decide anew in every interval.

    Attributes:
        futures: W, sampled futures
        horizon: H, intervals of each
        shortlist: rows of the table that the programme is over, at most
    """

    futures: int = struct.field(pytree_node=False, default=8)
    horizon: int = struct.field(pytree_node=False, default=24)
    shortlist: int = struct.field(pytree_node=False, default=12)

    def init(self, key: Key[Array, ""]) -> RolloutMemory:
        del key
        nothing = jnp.zeros((self.setup.table.size,), jnp.float32)
        return RolloutMemory(Outlook.of(self.setup), nothing, jnp.array(False))

    def decide(
        self, key: Key[Array, ""], observation: Observation, memory: RolloutMemory, *truth: Any
    ) -> tuple[Plan, RolloutMemory]:
        del truth
        seen = evaluate_table(self.setup, observation, candidates=self.candidates)
        memory = self.learned(seen, memory)
        row = jnp.where(seen.may_switch, self._best_row(key, seen, memory), seen.row)
        view = memory.outlook.coming(self.setup, seen.view)
        return carry_out(self.setup, row, seen.now.choice[row], view), memory

    def learned(self, seen: EvaluatedTable, memory: RolloutMemory) -> RolloutMemory:
        """The memory with one more measurement."""
        average = AVERAGE * seen.now.rate + (1.0 - AVERAGE) * memory.average
        return RolloutMemory(
            memory.outlook.measured(self.setup, seen.view),
            jnp.where(memory.started, average, seen.now.rate),
            jnp.array(True),
        )

    def _best_row(
        self, key: Key[Array, ""], seen: EvaluatedTable, memory: RolloutMemory
    ) -> Int[Array, ""]:
        rows = self._shortlisted(seen, memory)
        return self.best_of(rows, seen, self.imagined(key, seen.view, memory))

    def imagined(
        self, key: Key[Array, ""], view: NetworkView, memory: RolloutMemory
    ) -> NetworkView:
        """Views of the coming intervals, leaves [W, H, ...]."""
        size = int(self.futures), int(self.horizon)
        return memory.outlook.imagined(key, self.setup, view, *size)

    def _shortlisted(self, seen: EvaluatedTable, memory: RolloutMemory) -> Int[Array, " R"]:
        """[R] rows worth a closer look, the one in force first."""
        score = jnp.zeros_like(seen.now.rate)
        for rate in (seen.now.rate, memory.average):
            for horizon in SHORTLIST_HORIZONS:
                gain = amortised_gain(seen, rate, self.setup.interval_s, jnp.float32(horizon))
                score = jnp.maximum(score, gain / jnp.maximum(gain.max(), 1e-30))
        in_force = (jnp.arange(score.shape[0]) == seen.row) & ~seen.idle
        score = jnp.where(in_force, 2.0, jnp.where(self.rows, score, -1.0))
        return jax.lax.top_k(score, min(int(self.shortlist), score.shape[0]))[1].astype(jnp.int32)

    def best_of(
        self, rows: Int[Array, " R"], seen: EvaluatedTable, futures: NetworkView
    ) -> Int[Array, ""]:
        """[] int32 the row to be in, of `rows` (the one in force first, unless idle), for futures
        with leaves [W, H, ...]: the first decision of the best policy over time and row."""
        given = self._given(rows, seen, futures)
        found = values_of_rows(**given)
        start, _ = first_deployment(
            given["rate"], found.value, self.setup, t=0, worth=given["worth"]
        )
        return rows[jnp.where(seen.idle, start, found.best[0, 0])]

    def gains_of(
        self, rows: Int[Array, " R"], seen: EvaluatedTable, futures: NetworkView
    ) -> Float[Array, " R"]:
        """[R] training steps (or reward) that a move now from the first of `rows`, which is in force,
        to each of them gains over staying, in the mean over futures as those of `best_of`."""
        options = values_of_rows(**self._given(rows, seen, futures)).options[0, 0]
        return options - options[0]

    def _given(
        self, rows: Int[Array, " R"], seen: EvaluatedTable, futures: NetworkView
    ) -> dict[str, Any]:
        """What the programme is over: futures as those of `best_of`."""
        setup = self.setup
        plans = take(setup.table.plans, rows)
        size = futures.gpus_available.shape[:2]
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), futures)
        scored = score_rows(setup, plans, seen.now.choice[rows], flat)
        rate, worth = jax.tree.map(lambda x: x.reshape(*size, -1), scored)
        return {
            "rate": rate,
            "bandwidth_gb_per_s": futures.bandwidth_gb_per_s,
            "moves": migration_table(plans, setup.problem),
            "mask": self.rows[rows],
            "setup": setup,
            "worth": worth,
            "staying": self._staying(plans, seen, futures, rate, worth),
        }

    def _staying(
        self,
        plans: Plan,
        seen: EvaluatedTable,
        futures: NetworkView,
        rate: Float[Array, "W H R"],
        worth: Worth | None,
    ) -> Float[Array, "W H R"] | None:
        """What plans [R, ...] bring that stay in force: GPUs change from what was measured last on."""
        if not self.setup.gpus_vary:
            return None

        def one(view, rate, worth):
            every = jax.tree.map(lambda x, y: jnp.concatenate([x[None], y]), seen.view, view)
            lost_s = jax.vmap(lambda p: lost_by_resizing_s(self.setup, p, every)[1:], out_axes=1)
            trained = rate if worth is None else worth.trained
            return rate - trained * lost_s(plans) / self.setup.interval_s

        return jax.vmap(one)(futures, rate, worth)
