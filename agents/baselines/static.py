"""Static schedulers: a rule picks a row at the start, the lower level adapts; or a plan as it is."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array
from jaxtyping import Bool, Float, Int, Key

from agents.protocol import (
    EvaluatedTable,
    Scheduler,
    Setup,
    TableScheduler,
    carry_out,
    find_row,
    nothing,
    table_rates,
)
from agents.staying import expected_rates
from jaxsim.env import Observation
from jaxsim.plan import Plan
from jaxsim.planning import PlanTable
from jaxsim.pytree import Pytree
from jaxsim.trees import take


class StaticPlan(TableScheduler):
    """Deploy the best of the candidates and never move: the one that brings most in the mean over the
    states of links and load that are to be expected (`Setup.outlook`; at base where none is known).

    Best is fastest in the simulator, also for a planner with an objective of its own that brought
    several rows. Only the row is fixed: the lower choice is the best candidate of every interval.

    Attributes:
        worth: [P] factor on the rows' rates when the row is picked; None = 1
        row: [] int32, set by `bind`
    """

    fixed: ClassVar[bool] = True

    worth: Float[Array, "*batch P"] | None = None
    row: Int[Array, "*batch"] = struct.field(default=None)

    def bind(self, setup: Setup) -> Self:
        bound = self.replace(setup=setup)
        rate = expected_rates(setup, self.candidates)
        rate = rate if self.worth is None else rate * self.worth
        # Where no candidate fits, the job waits on the first: an honest zero, not another plan.
        row = jnp.argmax(jnp.where(bound.rows, rate, -jnp.inf)).astype(jnp.int32)
        return bound.replace(row=row)

    def choose(
        self, key: Key[Array, ""], seen: EvaluatedTable, memory: Any
    ) -> tuple[Int[Array, ""], Any]:
        del key, seen
        return self.row, memory

    def stays(self, setup: Setup, observation: Observation) -> Plan | None:
        """The row in force with the lower choice that suits it now: that row alone is scored."""
        table, view = setup.table, observation.view
        row, _ = find_row(table, take(observation.target, 0))
        n_choices = setup.problem.choices.size
        alone = table.replace(candidates_of={}, pairs=None)
        alone = setup.replace(table=jax.tree.map(lambda x: x[row][None], alone))
        rates = table_rates(alone, jax.tree.map(lambda x: x[None], view))[0, 0]
        allowed = jnp.ones_like(rates, bool)
        if table.pairs is not None:
            weighed = jnp.zeros((table.size * n_choices,), bool).at[table.pairs].set(True)
            allowed = allowed & weighed.reshape(table.size, n_choices)[row]
        if self.candidates is not None:
            allowed = allowed & self.candidates[row]
        choice = jnp.argmax(jnp.where(allowed, rates, nothing(setup))).astype(jnp.int32)
        return self.replace(setup=setup).unless_empty(carry_out(setup, row, choice, view))


class FixedPlan(Pytree, Scheduler):
    """Deploy one plan as it is and never move: nothing of it is chosen anew, its batch shares and its
    lower choice included.

    Attributes:
        plan: leaves without a job axis
    """

    fixed: ClassVar[bool] = True
    scores_table: ClassVar[bool] = False

    plan: Plan

    def bind(self, setup: Setup) -> Self:
        del setup
        return self

    def stays(self, setup: Setup, observation: Observation) -> Plan:
        """The plan."""
        del setup, observation
        return jax.tree.map(lambda x: x[None], self.plan)

    def init(self, key: Key[Array, ""]) -> Any:
        del key
        return ()

    def decide(
        self, key: Key[Array, ""], observation: Observation, memory: Any, *truth: Any
    ) -> tuple[Plan, Any]:
        del key, observation, truth
        return jax.tree.map(lambda x: x[None], self.plan), memory


def with_any_choice(rows: Bool[Array, " P"], n_choices: int) -> Bool[Array, "P V"]:
    """[P, V] bool: `rows` [P] bool, each with every lower choice."""
    return jnp.broadcast_to(rows[:, None], (rows.shape[0], n_choices))


def every_row(table: PlanTable) -> Bool[Array, " P"]:
    """[P] bool, the candidates of best_static. The best of all rows for the links and the load to be
    expected is what a careful engineer deploys once."""
    return jnp.ones_like(table.mask)


def inside_one_domain(table: PlanTable) -> Bool[Array, " P"]:
    """[P] bool, the candidates of single_domain: the classical way, exhaustively searched."""
    return table.single_domain


def even_splits(table: PlanTable) -> Bool[Array, " P"]:
    """[P] bool, the candidates of static_even_split: rows that treat all domains alike, one even
    pipeline in the file's order or one replica each."""
    return table.even_split
