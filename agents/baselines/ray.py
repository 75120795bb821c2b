"""Ray: a gang is placed where resources are free, blind to the network.

Moritz et al., OSDI 2018, and its placement groups: a job asks for bundles of GPUs, all of them are
reserved at once or none, packed by what is free; a gang that loses its resources is placed again. The
scheduler counts resources and knows no link. The rule here: of the rows whose GPUs are all free, the
one that would be fastest on links of no delay and no limit; it stays until it cannot run. Left out:
the choice of parallelism, which is the user's: the table's plans stand for what a good user asks for.
"""

from __future__ import annotations

from typing import Any, Self

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array
from jaxtyping import Float, Int, Key

from agents.protocol import EvaluatedTable, Setup, TableScheduler, score_table
from jaxsim.step_time import NetworkView

NO_LIMIT = 1e5  # [GB/s]


class Ray(TableScheduler):
    """Place the whole gang by free GPUs, and again where it cannot run.

    Attributes:
        blind: [P] rates on links that cost nothing, set by `bind`
    """

    blind: Float[Array, "*batch P"] = struct.field(default=None, kw_only=True)

    def bind(self, setup: Setup) -> Self:
        blind = score_table(setup, without_links(setup.prior), self.candidates).rate
        return self.replace(setup=setup, blind=blind)

    def choose(
        self, key: Key[Array, ""], seen: EvaluatedTable, memory: Any
    ) -> tuple[Int[Array, ""], Any]:
        del key
        asked = jax.vmap(lambda plan: plan.gpus)(self.setup.table.plans)  # [P, K]
        whole = jnp.all(asked <= seen.view.gpus_available[None], axis=1) & self.rows
        # Where no gang finds all its GPUs, replicas are left out rather than waited for.
        able = jnp.where(jnp.any(whole & (self.blind > 0)), whole, self.rows)
        best = jnp.argmax(jnp.where(able, self.blind, -jnp.inf)).astype(jnp.int32)
        place = seen.idle | (seen.now.rate[seen.row] == 0)
        return jnp.where(place, best, seen.row), memory


def without_links(view: NetworkView) -> NetworkView:
    """The view with links of no delay and no limit."""
    there = view.bandwidth_gb_per_s > 0
    return view.replace(
        bandwidth_gb_per_s=jnp.where(there, NO_LIMIT, 0.0), rtt_s=jnp.zeros_like(view.rtt_s)
    )
