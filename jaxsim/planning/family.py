"""Plan families: which plans a table is chosen from, how many they are, and the pipelines of searches.

A plan of a family is a layout (ordered groups of ordered domains, see `jaxsim.plan.layouts`), settings
common to all its groups (tensor and context parallelism, ZeRO stage, the part of the GPUs, the way
layers are cut, and a lower choice: micro-batch, recompute, schedule) and one data parallelism each;
`PlanSpace` (`jaxsim.planning.space`) gives each group its own and adds ways to talk.
Each domain holds as many stages as its GPUs allow; dp is packed into nodes first, H = 1, 16 bits; batch
shares follow from the network (`jaxsim.planning.balance.complete`).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int, Num

from jaxsim.cluster import Cluster
from jaxsim.files import InputError
from jaxsim.plan import (
    FREE_FIELDS,
    MENU_SCHEDULES,
    Layout,
    LowerChoices,
    Plan,
    count_layouts,
    default_lower_choices,
    empty_plan,
    enumerate_layouts,
)
from jaxsim.planning.cuts import Pace, cut_layers, even_layers, pace_of
from jaxsim.trees import take
from jaxsim.workload import Workload

Cut = Literal["even", "min_max"]
Choice = tuple[int, int, int]  # micro-batch, recompute, schedule
Settings = tuple[int, tuple[int, ...]]  # tp, dp of each group
BLOCK = 64  # plans that are scored at once: about as many as a table has rows


def _default_choices() -> tuple[Choice, ...]:
    menu = jax.tree.map(lambda x: np.asarray(x).tolist(), default_lower_choices())
    return tuple(zip(menu.micro_batch, menu.recompute, menu.schedule, strict=True))


@dataclasses.dataclass(frozen=True)
class PlanFamily:
    """The dimensions of the plan that are enumerated, and their values; None = no limit.

    Attributes:
        max_domains: domains that one plan may use
        max_groups: groups (data-parallel replicas over the WAN) of one plan
        tensor_parallel: None = powers of two up to a node
        data_parallel: per group, None = divisors of the global batch
        zero_stages: ZeRO stages
        context_parallel: ranks that share a sequence
        parts: 1 = all GPUs of a domain, 2 = half of them, and so on: local jobs may hold the rest
        cuts: even = layers spread evenly over the stages, or, where GPUs differ, so that stages
            take equally long; min_max = the slowest stage, logits included, as fast as contiguous
            layers allow
        choices: (micro-batch, recompute, schedule), the same in all groups
    """

    max_domains: int | None = None
    max_groups: int | None = None
    tensor_parallel: tuple[int, ...] | None = None
    data_parallel: tuple[int, ...] | None = None
    zero_stages: tuple[int, ...] = (1,)
    context_parallel: tuple[int, ...] = (1,)
    parts: tuple[int, ...] = (1,)
    cuts: tuple[Cut, ...] = ("even", "min_max")
    choices: tuple[Choice, ...] = dataclasses.field(default_factory=_default_choices)

    def __post_init__(self):
        if any(schedule not in MENU_SCHEDULES for _, _, schedule in self.choices):
            *first, last = (schedule.label for schedule in MENU_SCHEDULES)
            known = f"{', '.join(first)} and {last}"
            raise InputError(f"choices: schedules: a search knows {known} only")

    @staticmethod
    def within(n_domains: int, layouts: int, **limits) -> PlanFamily:
        """The family of the most domains per plan that has at most `layouts` layouts."""
        sizes = [m for m in range(1, n_domains + 1) if count_subsets(n_domains, m) <= layouts]
        return PlanFamily(max_domains=max(sizes, default=1), **limits)

    @property
    def menu(self) -> LowerChoices:
        """The lower choices as arrays [V]."""
        return LowerChoices.of(self.choices)

    def describe(self) -> str:
        """One line for reports."""
        domains = "any number of" if self.max_domains is None else f"up to {self.max_domains}"
        zero, cp = (", ".join(map(str, x)) for x in (self.zero_stages, self.context_parallel))
        parts = "" if self.parts == (1,) else f", {self.describe_parts()}"
        return (
            f"ordered groups of {domains} ordered domains, {' or '.join(self.cuts)} cuts, one tp, "
            f"dp per group, ZeRO {zero}, {len(self.choices)} choices of micro-batch, recompute and "
            f"schedule, cp {cp}, H 1, 16 bits{parts}"
        )

    def describe_parts(self) -> str:
        """Of which GPUs its plans are."""
        each = ["all" if part == 1 else f"1/{part}" for part in self.parts]
        return f"on {', '.join(each)} of the GPUs"

    def tensor_sizes(self, cluster: Cluster) -> list[int]:
        """Tensor parallelism that the largest node has room for."""
        room = int(_node_room(cluster).max())
        sizes = self.tensor_parallel or [2**i for i in range(room.bit_length())]
        return [t for t in sizes if t <= room]

    def shapes(self, cluster: Cluster) -> Iterator[tuple[int, int, int]]:
        """(tp, cp, part) of a group."""
        return itertools.product(self.tensor_sizes(cluster), self.context_parallel, self.parts)

    def replicas(self, cluster: Cluster, work: Workload) -> list[int]:
        """Data parallelism that the largest domain has room for."""
        room, batch = int(np.asarray(cluster.gpus).max()), int(work.global_batch)
        sizes = self.data_parallel or range(1, room + 1)
        return [d for d in sizes if d <= room and batch % d == 0]

    def count(self, cluster: Cluster, work: Workload) -> int:
        """Plans of the family on a cluster, lower choices included, whether or not they fit memory.

        Nothing is listed. Domains are added in the order of their room for replicas, so that the
        first of a group is its tightest and alone says how many dp the group has: every later one
        goes to one of the m + g places in the g groups of m domains, begins a group, or stays out.
        """
        total = 0
        replicas = self.replicas(cluster, work)
        for tp, cp, part in self.shapes(cluster):
            fits = _node_room(cluster) >= tp
            room = np.sort(np.asarray(cluster.gpus)[fits] // (part * tp * cp))
            total += self._count([sum(d <= r for d in replicas) for r in room.tolist()])
        return total * len(self.zero_stages) * len(self.cuts) * len(self.choices)

    def _count(self, settings: list[int]) -> int:
        """Layouts, each as often as its groups' settings; `settings` by domain, ascending."""
        ways = {(0, 0): 1}  # (domains, groups) -> sets of ordered groups
        for own in settings:
            grown = dict(ways)
            for (m, g), count in ways.items():
                grown[m + 1, g] = grown.get((m + 1, g), 0) + count * (m + g)
                grown[m + 1, g + 1] = grown.get((m + 1, g + 1), 0) + count * own
            ways = grown
        most = len(settings)
        domains, groups = self.max_domains or most, self.max_groups or most
        rings = (
            count * math.factorial(g - 1)  # orders of a ring up to rotation
            for (m, g), count in ways.items()
            if m <= domains and 0 < g <= groups
        )
        return sum(rings)

    def settings(
        self,
        layout: Layout,
        gpus: Num[np.ndarray, " K"],
        per_node: Num[np.ndarray, " K"],
        batch: int,
    ) -> Iterator[Settings]:
        """Every (tp, dp per group) that the GPUs of a layout allow, with cp 1."""
        members = [k for group in layout for k in group]
        room = min(int(min(gpus[k], per_node[k])) for k in members)
        sizes = self.tensor_parallel or [2**i for i in range(room.bit_length())]
        for tp in (t for t in sizes if t <= room):
            options = []
            for group in layout:
                most = min(int(gpus[k]) for k in group) // tp
                dps = self.data_parallel or range(1, most + 1)
                options.append([d for d in dps if d <= most and batch % d == 0])
            yield from ((tp, dps) for dps in itertools.product(*options))

    def layouts(self, domains: tuple[int, ...]) -> list[Layout]:
        """All layouts of the family."""
        most = min(self.max_domains or len(domains), len(domains))
        groups = self.max_groups or most
        return [x for x in enumerate_layouts(domains, most) if len(x) <= groups]


def count_subsets(n_domains: int, most: int) -> int:
    """Layouts over at most `most` of the domains."""
    of_size = [0, *(count_layouts(m) for m in range(1, most + 1))]
    total = 0
    for m in range(1, most + 1):  # layouts over exactly m domains, by inclusion and exclusion
        exact = sum((-1) ** (m - k) * math.comb(m, k) * of_size[k] for k in range(m + 1))
        total += math.comb(n_domains, m) * exact
    return total


def _node_room(cluster: Cluster) -> np.ndarray:
    """[K] GPUs of a node that a plan can use."""
    return np.minimum(np.asarray(cluster.gpus), np.asarray(cluster.gpus_per_node))


def make_plan(
    layout: Layout,
    settings: Settings,
    gpus: Num[np.ndarray, " K"],
    n_layers: int,
    n_domains: int,
    pace: Pace | None = None,
) -> Plan | None:
    """Build one plan with NumPy leaves, or None where the GPUs or layers do not allow it; `pace` is
    that of `layer_pace`."""
    tp, dps = settings
    splits = []
    for members, dp in zip(layout, dps, strict=True):
        stages = [int(gpus[k]) // (tp * dp) for k in members]
        if min(stages) < 1 or len(members) > n_layers:
            return None
        splits.append(even_layers(n_layers, tuple(stages), pace_of(pace, members)))
    return Plan.assemble(layout, tp, dps, splits, n_domains)


def plan_key(plan: Plan) -> bytes:
    """Equal for plans between which no reconfiguration is needed; NumPy leaves."""
    names = (n for n in Plan.__dataclass_fields__ if n not in FREE_FIELDS)
    return b"".join(np.asarray(getattr(plan, n), np.int32).tobytes() for n in names)


def row_key(plan: Plan) -> bytes:
    """Equal for plans that make the same row of a table: `plan_key`, and what groups send in the same
    bits. Nobody's lower choice sets those."""
    bits = (np.asarray(plan.wire_bits, np.int32), np.asarray(plan.activation_bits, np.int32))
    return plan_key(plan) + b"".join(x.tobytes() for x in bits)


def stack_plans(plans: Sequence[Plan]) -> Plan:
    """Plans with NumPy leaves, one row each."""
    return jax.tree.map(jnp.asarray, _stacked(plans))


def plan_blocks(plans: Sequence[Plan] | Plan, block: int = BLOCK) -> tuple[Iterator[Plan], int]:
    """Plans with NumPy leaves, one by one or [P, ...], in blocks of `block` rows, so that one
    compilation serves: the last is filled up with the first plan. And P."""
    rows = jax.tree.map(np.asarray, plans) if isinstance(plans, Plan) else _stacked(plans)
    count = len(rows.group)

    def at(start: int) -> Plan:
        index = np.arange(start, start + block)
        return take(rows, np.where(index < count, index, 0))

    return (at(start) for start in range(0, count, block)), count


def _stacked(plans: Sequence[Plan]) -> Plan:
    """Plans with NumPy leaves, one row each, on the host: faster than an `np.stack` of each field."""

    def column(name: str) -> np.ndarray:
        values = [getattr(plan, name) for plan in plans]
        shape = np.shape(values[0])
        flat = np.concatenate(values) if shape else np.array(values)
        return flat.reshape(len(values), *shape).astype(np.int32, copy=False)

    fields: dict[str, Any] = {name: column(name) for name in Plan.__dataclass_fields__}
    return Plan(**fields)


class Common(NamedTuple):
    """What all groups of a plan share, lower choices apart."""

    tp: int
    zero_stage: int
    cut: Cut
    cp: int = 1
    part: int = 1


@dataclasses.dataclass(frozen=True)
class Pipelines:
    """Every pipeline that groups of a family may be: N orders of domains, C common settings, D data
    parallelisms; S domains at most. NumPy arrays on the host."""

    members: np.ndarray  # [N, S] domain, -1 = none
    common: tuple[Common, ...]  # [C]
    dp: np.ndarray  # [D]
    layers: np.ndarray  # [N, C, D, S]
    stages: np.ndarray  # [N, C, D, S]
    exists: np.ndarray  # [N, C, D] bool, GPUs and layers suffice
    index: dict[tuple[int, ...], int]  # order of domains -> N

    def plans(
        self,
        order: Int[np.ndarray, "P G"],
        common: Int[np.ndarray, " P"],
        dp: Int[np.ndarray, "P G"],
        n_domains: int,
    ) -> Plan:
        """Plans [P, ...] (NumPy) whose group g is pipeline order[:, g] with dp[:, g] (indices; [P, G]
        both) under settings common [P]; free fields as in `empty_plan`."""
        return self.mixed_plans(order, np.repeat(common[:, None], order.shape[1], 1), dp, n_domains)

    def mixed_plans(
        self,
        order: Int[np.ndarray, "P G"],
        common: Int[np.ndarray, "P G"],
        dp: Int[np.ndarray, "P G"],
        n_domains: int,
    ) -> Plan:
        """`plans` whose groups have settings of their own, common [P, G]."""
        size, n_groups = order.shape
        empty = empty_plan(n_domains)
        fields: dict[str, Any] = {
            name: np.repeat(np.asarray(getattr(empty, name))[None], size, axis=0)
            for name in Plan.__dataclass_fields__
        }
        names = ("tp", "zero_stage", "cp")
        own = {n: np.array([getattr(x, n) for x in self.common], np.int32) for n in names}
        for g in range(n_groups):
            fields["dp"][:, g] = self.dp[dp[:, g]]
            at = order[:, g], common[:, g], dp[:, g]
            for s in range(self.members.shape[1]):
                domain = self.members[order[:, g], s]
                p = np.flatnonzero(domain >= 0)
                k = domain[p]
                fields["group"][p, k], fields["position"][p, k] = g, s
                fields["layers"][p, k] = self.layers[at][p, s]
                fields["pp"][p, k] = self.stages[at][p, s]
                for name, values in own.items():
                    fields[name][p, k] = values[common[p, g]]
        return Plan(**fields)


def list_pipelines(
    family: PlanFamily,
    cluster: Cluster,
    work: Workload,
    orders: list[tuple[int, ...]],
    head_share: dict[int, float],
    pace: Pace | None = None,
) -> Pipelines:
    """All settings of the given orders of domains. `head_share`: the logits' time over a layer's,
    by tensor parallelism; `pace` is that of `layer_pace`."""
    gpus, room, layers = np.asarray(cluster.gpus), _node_room(cluster), int(work.layers)
    cuts = family.cuts
    common = tuple(
        Common(tp, zero, cut, cp, part)
        for (tp, cp, part), zero, cut in itertools.product(
            family.shapes(cluster), family.zero_stages, cuts
        )
    )
    dp = np.array(family.replicas(cluster, work), np.int32)
    longest = max(map(len, orders))
    shape = (len(orders), len(common), len(dp))
    held, stages = np.zeros((2, *shape, longest), np.int32)
    exists = np.zeros(shape, bool)
    members = np.array([[*order, *[-1] * (longest - len(order))] for order in orders])
    absent = members < 0

    @functools.cache
    def split(counts: tuple[int, ...], tp: int, cut: Cut, paces: tuple[float, ...]):
        if cut == "even":
            return even_layers(layers, counts, paces)
        extra = [0.0] * (len(counts) - 1) + [head_share[tp] * paces[-1]]
        best = cut_layers(layers, list(counts), paces, extra)
        same = "even" in cuts and best == even_layers(layers, counts, paces)
        return None if same else best  # listed once

    paces = [pace_of(pace, order) for order in orders]
    possible = (~absent).sum(axis=1) <= layers
    for c, own in enumerate(common):
        each = own.part * own.tp * own.cp * dp
        counts = np.where(absent[:, None], 0, gpus[members][:, None] // each[:, None])  # [N, D, S]
        roomy = (absent | (room[members] >= own.tp)).all(axis=1) & possible
        fits = (absent[:, None] | (counts >= 1)).all(axis=2) & roomy[:, None]
        for n, d in np.argwhere(fits):
            size = len(orders[n])
            found = split(tuple(counts[n, d, :size].tolist()), own.tp, own.cut, paces[n])
            if found is not None:
                exists[n, c, d] = True
                held[n, c, d, :size], stages[n, c, d, :size] = found
    index = {order: n for n, order in enumerate(orders)}
    return Pipelines(members, common, dp, held, stages, exists, index)
