"""Plans of one job as rows of a table: the whole cost of a step of a row under a network.

Rows are read one at a time, so that every environment may hold another: all numbers of a row stand
side by side, and a row is one lookup.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxsim.cluster import Calibration
from jaxsim.plan import Plan, Problem
from jaxsim.planning.exact.cost_table import step_parts, tabulate
from jaxsim.planning.exact.costs import PlanCostTable, evaluate, read_links
from jaxsim.pytree import Pytree
from jaxsim.step_time import NetworkView, StepCost

SLOT_FIELDS = ("compute_s", "tensor_s", "context_s")


class StepTable(Pytree):
    """P plans of one job, with all replicas running."""

    numbers: Float[Array, "*batch P F"]
    links: Int[Array, "*batch P I"]
    memory_gb: Float[Array, "*batch P K"]
    gpus: Int[Array, "*batch P K"]  # that all replicas need
    fits: Bool[Array, "*batch P"]
    runs: Bool[Array, "*batch P"]
    link_gb: Float[Array, "*batch P K K"]  # [GB] over each link in one step
    sync_gb: Float[Array, "*batch P K K"]  # [GB] over each link in one gradient sync
    # Static: (name, shape) of what stands side by side in `numbers` and in `links`.
    number_fields: tuple = struct.field(pytree_node=False)
    link_fields: tuple = struct.field(pytree_node=False)
    pairs: tuple[tuple[int, int], ...] = struct.field(pytree_node=False)
    virtual_stages: float = struct.field(pytree_node=False)

    @property
    def size(self) -> int:
        return self.runs.shape[-1]


def build_step_table(plans: Plan, problem: Problem) -> StepTable:
    """Prepare P complete plans, leaves [P, ...], of one job; on the host. Raises InputError for the
    greedy order, whose memory and limits depend on the network."""
    parts = step_parts(plans, problem, whole=True)
    costs, slots = tabulate(plans, parts, problem)
    fields = {
        name: np.asarray(getattr(costs, name))
        for name in PlanCostTable.__dataclass_fields__
        if name not in ("pairs", "virtual_stages")
    }
    fields |= {name: slots.rows(parts[name]) for name in SLOT_FIELDS}
    fields["optimizer_s"] = parts["optimizer_s"]
    links = {name: x for name, x in fields.items() if x.dtype.kind == "i"}
    numbers = {name: x for name, x in fields.items() if name not in links}
    number_rows, number_fields = _side_by_side(numbers, np.float32)
    link_rows, link_fields = _side_by_side(links, np.int32)
    same = {name: jnp.asarray(parts[name]) for name in ("memory_gb", "fits", "runs", "link_gb")}
    return StepTable(
        numbers=number_rows,
        links=link_rows,
        gpus=jax.vmap(lambda plan: plan.gpus)(jax.tree.map(jnp.asarray, plans)),
        sync_gb=jnp.asarray(parts["sync_gb"]),
        **same,
        number_fields=number_fields,
        link_fields=link_fields,
        pairs=costs.pairs,
        virtual_stages=costs.virtual_stages,
    )


def all_replicas_run(
    table: StepTable, row: Int[Array, ""], gpus_available: Int[Array, " K"]
) -> Bool[Array, ""]:
    """[] bool: `gpus_available` [K] leave room for all replicas of the row's plan."""
    return jnp.all(table.gpus[row] <= gpus_available)


def row_step_cost(
    table: StepTable, row: Int[Array, ""], view: NetworkView, calibration: Calibration
) -> StepCost:
    """`job_step_cost` of the plan in `row` ([] int32), rounding apart, where `all_replicas_run`."""
    r = _apart(table.numbers[row], table.number_fields)
    r |= _apart(table.links[row], table.link_fields)
    parts = [r.pop(name) for name in SLOT_FIELDS]  # [S] each
    optimizer_s = r.pop("optimizer_s")
    plan = PlanCostTable(**r, pairs=table.pairs, virtual_stages=table.virtual_stages)
    reads = read_links(plan, view.bandwidth_gb_per_s, view.rtt_s, calibration)
    costs, slowest, ideal_s = evaluate(plan, reads)
    here = jnp.arange(parts[0].shape[0]) == slowest
    compute_s, tensor_s, context_s = (jnp.sum(jnp.where(here, x, 0.0)) for x in parts)
    runs = table.runs[row]
    return StepCost(
        step_s=costs.step_s,
        compute_s=compute_s,
        tensor_parallel_s=tensor_s,
        context_parallel_s=context_s,
        bubble_s=ideal_s - (compute_s + tensor_s + context_s),
        exposed_wan_s=costs.exposed_wan_s,
        sync_s=costs.sync_s,
        optimizer_s=optimizer_s,
        wan_busy_s=costs.wan_busy_s,
        memory_gb=table.memory_gb[row],
        gpus_used=table.gpus[row],
        wan_gb=table.link_gb[row],
        sync_gb=table.sync_gb[row],
        egress_usd=costs.egress_usd,
        efficiency=plan.efficiency,
        fits=table.fits[row],
        runs=runs,
    )


def _side_by_side(fields: dict[str, np.ndarray], dtype) -> tuple[Array, tuple]:
    """{name: [..., P]} -> [P, F] and (name, shape without P) of each."""
    columns = [x.reshape(-1, x.shape[-1]).T for x in fields.values()]
    shapes = tuple((name, x.shape[:-1]) for name, x in fields.items())
    return jnp.asarray(np.concatenate(columns, axis=1), dtype), shapes


def _apart(row: Array, fields: tuple) -> dict[str, Array]:
    """[F] -> {name: [...]}."""
    out, start = {}, 0
    for name, shape in fields:
        size = int(np.prod(shape))
        out[name] = row[start : start + size].reshape(shape)
        start += size
    return out
