"""The decision as a pytree: which domains take part, who computes what, and how.

A plan of one job has the fields below without the job axis; stacked over jobs, every leaf gains a
leading [J]. Domains with the same `group` form one pipeline over the WAN in the order of
`position`; groups are data-parallel replicas of each other and form a gradient ring in the order of
their number. Groups are numbered from 0 without gaps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array
from jaxtyping import Bool, Float, Int, Shaped

from jaxsim.cluster import ClusterSpec
from jaxsim.plan.build import assembled_fields, described_fields, empty_fields
from jaxsim.plan.layouts import Layout
from jaxsim.plan.modes import ALL_SCHEDULES, MENU_SCHEDULES, Recompute, Schedule
from jaxsim.pytree import Pytree
from jaxsim.workload import JobSpec

PLACEMENT_DP_INNER, PLACEMENT_PP_INNER = 0, 1


class Plan(Pytree):
    """Leaves are int32; [K] runs over domains, [G] over groups (G = K)."""

    group: Int[Array, "*batch K"]  # UNUSED or the number of the domain's group
    position: Int[Array, "*batch K"]  # place in the group's pipeline, 0 = first
    layers: Int[Array, "*batch K"]  # layers held; those of one group sum to the model's
    batch_share: Int[Array, "*batch G"]  # micro-batches per replica and step
    # H, steps between gradient syncs over the WAN; 1 = synchronous
    sync_period: Int[Array, "*batch"]
    # bits per value that groups exchange: gradients for H = 1, outer deltas for H > 1
    wire_bits: Int[Array, "*batch"]
    activation_bits: Int[Array, "*batch"]  # bits per value between domains of a pipeline
    fragments: Int[Array, "*batch"]  # F, parts of the model that an outer sync sends one by one
    overlap: Int[
        Array, "*batch"
    ]  # tau, inner steps that a fragment may travel; 0 = all wait for it
    # groups over which ZeRO shards spread, neighbours in the ring; 1 = every group holds the model
    shard_groups: Int[Array, "*batch"]
    dp: Int[Array, "*batch G"]  # replicas of the pipeline inside the group
    micro_batch: Int[Array, "*batch G"]  # [sequences]
    recompute: Int[Array, "*batch G"]  # Recompute
    schedule: Int[Array, "*batch G"]  # Schedule
    tp: Int[Array, "*batch K"]  # tensor parallelism
    pp: Int[Array, "*batch K"]  # pipeline stages inside the domain
    cp: Int[Array, "*batch K"]  # context parallelism
    zero_stage: Int[Array, "*batch K"]  # 0-3, over the dp replicas of the group
    reshard: Int[Array, "*batch K"]  # index into RESHARD for ZeRO-3; AS_JOB = as the job says
    placement: Int[Array, "*batch K"]  # PLACEMENT_*: which of dp and pp is packed into a node first

    @property
    def used(self) -> Bool[Array | np.ndarray, "*batch K"]:
        """[K] bool, True where the domain takes part."""
        return self.group >= 0

    @property
    def gpus(self) -> Int[Array, " K"]:
        """[K] int32 GPUs that the plan asks for."""
        return per_domain(self, self.dp) * self.tp * self.pp * self.cp * self.used.astype(jnp.int32)

    @classmethod
    def build(
        cls,
        cluster: ClusterSpec,
        job: JobSpec,
        groups: Sequence[Sequence[str | int]],
        **fields: Any,
    ) -> Plan:
        """A complete plan that `cluster` and `job` allow, from a short description.

        `groups` lists the domains of each group in pipeline order, by name or by index. `fields` are
        those of a plan; what is not given has its default:

            tp, cp, zero_stage  one number, or {domain: number}; 1
            layers              {domain: number}; as even as whole domains allow
            pp                  one number, or {domain: number}; as many stages as GPUs allow
            dp, micro_batch     one number, or a list with one per group; 1
            batch_share         the same, in micro-batches per replica and step; dealt evenly
            recompute           none, selective or full, or a list with one per group; none
            schedule            1f1b, eager_1f1b, gpipe, ... (`Schedule`), or such a list; 1f1b
            sync_period         steps between gradient syncs over the WAN; 1
            wire_bits           bits per value between groups, up to 32; 16
            activation_bits     bits per value between domains of a pipeline, up to 32; 16
            fragments, overlap  parts of an outer sync, and the inner steps it may take; 1, 0
            shard_groups        groups over which ZeRO shards spread; 1
            reshard             always, never or unless-pipelined, or {domain: word}; as the job says

        Raises InputError, one line that names the field, for a plan that cannot be carried out:
        a domain unknown or used twice, more GPUs than there are, layers or sequences that do not add
        up. Memory is not looked at: `StepCost` says whether a plan fits.
        """
        found = described_fields(cluster, job, groups, **fields)
        return cls(**{name: jnp.asarray(value, jnp.int32) for name, value in found.items()})

    @classmethod
    def assemble(
        cls,
        layout: Layout,
        tp: int | dict[int, int],
        dps: Sequence[int],
        splits: Sequence[tuple[list[int], list[int]]],
        n_domains: int,
        **fields: int,
    ) -> Plan:
        """A plan with NumPy leaves from its numbers; the free fields are left for `complete`.

        `tp` holds for all domains or is {domain: tp}; `dps` is one dp per group; `splits` holds per
        group (layers, stages) of its domains in order; further fields (zero_stage, sync_period,
        wire_bits) hold for the whole plan. Nothing is checked.
        """
        return cls(**assembled_fields(layout, tp, dps, splits, n_domains, **fields))


# Fields that change without stopping the job; all others force a reconfiguration.
FREE_FIELDS = (
    "batch_share",
    "micro_batch",
    "recompute",
    "schedule",
    "wire_bits",
    "activation_bits",
)


class LowerChoices(Pytree):
    """The lower policy's menu: settings that change at no cost, [V] each, the same in all groups."""

    micro_batch: Int[Array, "*batch V"]  # [sequences]
    recompute: Int[Array, "*batch V"]  # Recompute
    schedule: Int[Array, "*batch V"]  # Schedule
    # Static: those that occur. What only others need is not compiled.
    schedules: tuple[int, ...] = struct.field(pytree_node=False, default=ALL_SCHEDULES)

    @staticmethod
    def of(rows: Iterable[tuple[int, int, int]]) -> LowerChoices:
        """From (micro-batch, recompute, schedule)."""
        columns = np.array(list(rows), np.int32).T
        size, recompute, schedule = (jnp.asarray(column) for column in columns)
        return LowerChoices(size, recompute, schedule, schedules_among(columns[2]))

    @property
    def size(self) -> int:
        return self.micro_batch.shape[-1]

    @property
    def settings(self) -> list[tuple[int, int]]:
        """(micro-batch, recompute) of each choice, whatever its schedule."""
        return list(zip(self.micro_batch.tolist(), self.recompute.tolist(), strict=True))


def schedules_among(schedule: Int[np.ndarray, "*batch"]) -> tuple[int, ...]:
    """The menu's schedules and what else occurs in plans on the host: what is compiled for them."""
    return tuple(Schedule(k) for k in sorted({*MENU_SCHEDULES, *np.unique(schedule).tolist()}))


def default_lower_choices() -> LowerChoices:
    """Micro-batches 1, 2, 4, each with four settings from fast and large to slow and small."""
    settings = [
        (Recompute.NONE, Schedule.ONE_F_ONE_B),
        (Recompute.NONE, Schedule.EAGER_1F1B),
        (Recompute.FULL, Schedule.EAGER_1F1B),
        (Recompute.FULL, Schedule.GPIPE),
    ]
    return LowerChoices.of((b, *s) for b in (1, 2, 4) for s in settings)


def membership(plan: Plan) -> Float[Array, "K G"]:
    """[K, G] float32, 1 where the domain belongs to the group."""
    groups = jnp.arange(plan.group.shape[-1], dtype=jnp.int32)
    return (plan.group[:, None] == groups[None, :]).astype(jnp.float32)


def per_domain(plan: Plan, of_group: Shaped[Array | np.ndarray, " G"]) -> Shaped[Array, " K"]:
    """Give each domain its group's value >= 0: [G] -> [K], 0 for unused domains.

    The largest of a one-hot column: on CPU a batched gather is several times slower, and so are
    reductions along rows, which do not vectorise.
    """
    groups = jnp.arange(plan.group.shape[-1], dtype=jnp.int32)
    hot = plan.group[None, :] == groups[:, None]
    return jnp.where(hot, of_group[:, None], jnp.zeros_like(of_group)[:, None]).max(axis=0)


def n_groups(plan: Plan) -> Int[Array, ""]:
    """[] int32 number of groups in use."""
    return jnp.max(plan.group) + 1


def empty_plan(n_domains: int) -> Plan:
    """A plan that uses nothing; a starting point for building one on the host (NumPy leaves)."""
    return Plan(**empty_fields(n_domains))


def needs_reconfiguration(old: Plan, new: Plan) -> Bool[Array, ""]:
    """[] bool: does going from `old` to `new` stop the job (one job each)?"""
    # All per-domain and per-group fields side by side: one reduction instead of one per field.
    differs = jnp.zeros(old.group.shape, bool)
    for name in Plan.__dataclass_fields__:
        if name not in FREE_FIELDS and name != "sync_period":
            differs = differs | (getattr(old, name) != getattr(new, name))
    return jnp.any(differs) | (old.sync_period != new.sync_period)


def layer_range(plan: Plan) -> tuple[Float[Array, " K"], Float[Array, " K"]]:
    """[K], [K] float32: first layer and one past the last layer that each domain holds."""
    layers = jnp.where(plan.used, plan.layers, 0).astype(jnp.float32)
    ahead = steps_ahead(plan)
    before = (ahead < 0.0) & (ahead > -plan.group.shape[-1])
    start = masked_sums(before, layers[None])[0]
    return start, start + layers


def masked_sums(mask: Bool[Array, "K K"], vectors: Float[Array, "C K"]) -> Float[Array, "C K"]:
    """[C, K]: for every row of mask [K, K], the vectors [C, K] summed over the columns where it is
    True. One product with a vector each: on CPU several times faster than a masked reduction."""
    hot = mask.astype(jnp.float32)
    products = [jnp.matmul(hot, v, precision=jax.lax.Precision.HIGHEST) for v in vectors]
    return jnp.stack(products)


def steps_ahead(plan: Plan) -> Float[Array, "K K"]:
    """[K, K] float32: by how many places the column's domain follows the row's in its pipeline,
    below 0 where it precedes; at least K away from 0 where they do not share one.

    One number instead of comparisons of groups, positions and uses: the masks made from it are two
    operations each, and a compiler computes them again wherever they are read.
    """
    n_domains = plan.group.shape[-1]
    place = (2 * n_domains * plan.group + plan.position).astype(jnp.float32)
    row, column = (jnp.where(plan.used, place, apart) for apart in (jnp.inf, -jnp.inf))
    return column[None, :] - row[:, None]


USUAL = {"cp": 1, "zero_stage": 1}  # of a domain; whoever reads a plan takes it to be so


def whole_plan(plan: Plan, names: tuple[str, ...]) -> list[dict]:
    """One job's plan for a reader, one mapping for each pipeline: its settings, and in order its
    domains with what each of them holds. What has a default (USUAL) is said where it differs."""
    group, position = np.asarray(plan.group), np.asarray(plan.position)
    pipelines = []
    for g in range(group.max() + 1):
        members = np.flatnonzero(group == g)
        stages = [
            {
                "domain": names[k],
                **{key: int(getattr(plan, key)[k]) for key in ("layers", "tp", "pp")},
                **{
                    key: int(getattr(plan, key)[k])
                    for key, usual in USUAL.items()
                    if int(getattr(plan, key)[k]) != usual
                },
            }
            for k in members[np.argsort(position[members])]
        ]
        pipelines.append(
            {
                "domains": stages,
                "dp": int(plan.dp[g]),
                "micro_batches": int(plan.batch_share[g]),
                "micro_batch": int(plan.micro_batch[g]),
                "recompute": Recompute(int(plan.recompute[g])).label,
                "schedule": Schedule(int(plan.schedule[g])).label,
            }
        )
    return pipelines


def describe(plan: Plan, names: tuple[str, ...]) -> str:
    """Short label of one job's plan, such as 'ohio>virginia | oregon'."""
    group, position = np.asarray(plan.group), np.asarray(plan.position)
    parts = []
    for g in range(group.max() + 1):
        members = np.flatnonzero(group == g)
        parts.append(">".join(names[k] for k in members[np.argsort(position[members])]))
    return " | ".join(parts) if parts else "idle"
