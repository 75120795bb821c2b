"""The optimal plan sequence with the future known, by dynamic programme over (time x plan table).

What it is exact over: `agents.foresight.programme`.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

import jax.numpy as jnp
from flax import struct
from jax import Array
from jaxtyping import Key

from agents.protocol import Scheduler, Setup, carry_out, find_row
from jaxsim.env import Observation
from jaxsim.plan import Plan
from jaxsim.pytree import Pytree
from jaxsim.trees import take


class Clairvoyant(Pytree, Scheduler):
    """Follow the optimum that `Truth` holds. It reads the whole future."""

    oracle: ClassVar[bool] = True
    scores_table: ClassVar[bool] = False

    setup: Setup = struct.field(default=None)  # set by `bind`

    def bind(self, setup: Setup) -> Self:
        return self.replace(setup=setup)

    def init(self, key: Key[Array, ""]) -> Any:
        del key
        return ()

    def decide(
        self, key: Key[Array, ""], observation: Observation, memory: Any, *truth: Any
    ) -> tuple[Plan, Any]:
        """`truth` is the scenario's `Truth`."""
        del key
        (known,) = truth
        t = observation.t
        row, found = find_row(self.setup.table, take(observation.target, 0))
        best = jnp.where(found, known.best[t, row], known.start)
        row = jnp.where(observation.moving[0], row, best)
        view = take(known.views, t)
        return carry_out(self.setup, row, known.table.choice[t, row], view), memory
