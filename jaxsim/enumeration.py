"""Plan tables: the admissible plans of a cluster and a job, found on the host, scored in batches.

Family (every table's claim of exactness is relative to it): ordered groups of ordered domains; the
layers of a group spread evenly over its stages; one tp per plan, in powers of two up to a node;
one dp per group, a divisor of the global batch; as many stages per domain as its GPUs allow; cp = 1,
ZeRO-1, dp packed into nodes first, H = 1, 16 bits; the free fields from a menu of lower choices, the
same in all groups, with batch shares balanced under the network at hand.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import pickle

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array

from jaxsim.balance import complete
from jaxsim.calibration import Calibration
from jaxsim.cluster import ClusterSpec
from jaxsim.errors import InputError
from jaxsim.layouts import (
    Layout,
    count_layouts,
    enumerate_layouts,
    extensions,
    split_layers,
)
from jaxsim.plan import LowerChoices, Plan, empty_plan
from jaxsim.plan_family import PlanFamily
from jaxsim.scoring import base_view, choice_rates, one_view
from jaxsim.step_time import NetworkView, job_step_cost
from jaxsim.workload import Workload

Settings = tuple[int, tuple[int, ...]]  # tp, dp of each group
COMBINATIONS = 16  # of the dp of a layout's groups, per tp: all there are of up to four groups


@struct.dataclass
class PlanTable:
    """Plans of one job, one row each; the free fields of a row are those best at base."""

    plans: Plan  # leaves [P, ...]
    mask: Array  # [P] bool, False for padding
    base_rate: Array  # [P] [training steps / s] at base bandwidth, best lower choice; 0 if unfit
    single_domain: Array  # [P] bool, the row uses one domain
    even_split: Array  # [P] bool, the row uses all domains, all alike
    # {scheduler: [P, V] bool}, the rows and lower choices that its rules admit; see `jaxsim.nomination`
    admitted: dict[str, Array] = struct.field(default_factory=dict)

    @property
    def size(self) -> int:
        return self.mask.shape[0]


@dataclasses.dataclass(frozen=True)
class TableInfo:
    """What a table claims, for reports."""

    family: str
    plans_in_table: int
    plans_scored: int
    layouts: int
    exhaustive: bool  # every layout of the family was scored
    plans_in_family: int  # all layouts with all settings, free fields apart


FAMILY = (
    "ordered groups of ordered domains, even stages, one tp, dp per group, cp 1, "
    "ZeRO-1, H 1, 16 bits"
)


def make_plan(
    layout: Layout, settings: Settings, gpus: np.ndarray, n_layers: int, n_domains: int
) -> Plan | None:
    """Build one plan with NumPy leaves, or None where the GPUs or layers do not allow it."""
    tp, dps = settings
    splits = []
    for members, dp in zip(layout, dps, strict=True):
        stages = [int(gpus[k]) // (tp * dp) for k in members]
        if min(stages) < 1 or len(members) > n_layers:
            return None
        splits.append(split_layers(n_layers, stages))
    return assemble_plan(layout, tp, dps, splits, n_domains)


def assemble_plan(
    layout: Layout,
    tp: int | dict[int, int],
    dps: tuple[int, ...],
    splits: list[tuple[list[int], list[int]]],
    n_domains: int,
    **fields: int,
) -> Plan:
    """A plan with NumPy leaves from its numbers; the free fields are left for `complete`.

    `tp` holds for all domains or is {domain: tp}; `dps` is one dp per group; `splits` holds per group
    (layers, stages) of its domains in order; further fields (zero_stage, sync_period, wire_bits)
    hold for the whole plan.
    """
    plan = empty_plan(n_domains)
    names = ("group", "position", "layers", "pp", "dp", "tp")
    values = {name: np.array(getattr(plan, name)) for name in names}
    for g, (members, dp, (layers, stages)) in enumerate(zip(layout, dps, splits, strict=True)):
        values["dp"][g] = dp
        for i, k in enumerate(members):
            values["group"][k], values["position"][k] = g, i
            values["layers"][k], values["pp"][k] = layers[i], stages[i]
            values["tp"][k] = tp[k] if isinstance(tp, dict) else tp
    whole = {k: np.full_like(getattr(plan, k), v) for k, v in fields.items()}
    return plan.replace(**values, **whole)


def stack_plans(plans: list[Plan]) -> Plan:
    """Plans with NumPy leaves, one row each."""
    return jax.tree.map(lambda *xs: jnp.asarray(np.stack(xs), jnp.int32), *plans)


def _all_settings(layout: Layout, gpus: np.ndarray, per_node: np.ndarray, batch: int):
    """Every (tp, dp per group) that the GPUs of a layout allow."""
    members = [k for group in layout for k in group]
    largest_tp = min(int(min(gpus[k], per_node[k])) for k in members)
    for tp in (2**i for i in range(largest_tp.bit_length())):
        options = []
        for group in layout:
            room = min(int(gpus[k]) for k in group) // tp
            options.append([d for d in range(1, room + 1) if batch % d == 0])
        yield from ((tp, dps) for dps in itertools.product(*options))


# Compiled once for all builders.
_score = jax.jit(choice_rates)
_complete_each = jax.jit(jax.vmap(complete, in_axes=(0, None, 0, None, None, None, None)))


class TableBuilder:
    """Finds the plans worth having in a table for one cluster and one job."""

    def __init__(
        self,
        spec: ClusterSpec,
        work: Workload,
        calibration: Calibration,
        choices: LowerChoices,
        pad_to: int | None = None,
    ):
        self.cluster = spec.to_arrays(pad_to)
        self.spec, self.work, self.choices = spec, work, choices
        self.calibration = calibration
        self.gpus = np.asarray(self.cluster.gpus)
        self.per_node = np.asarray(self.cluster.gpus_per_node)
        self.n_domains = self.cluster.mask.shape[0]
        self._group_settings: dict[tuple[int, ...], list[tuple[float, int, int]]] = {}

    def rates(self, plans: list[Plan], views: NetworkView, block: int = 256) -> np.ndarray:
        """[W, P] training steps per second, best lower choice; 0 where nothing fits."""
        return self.choice_rates(plans, views, block).max(axis=-1)

    def choice_rates(self, plans: list[Plan], views: NetworkView, block: int = 256) -> np.ndarray:
        """[W, P, V] training steps per second; blocks of one size, so that one compilation serves."""
        out = []
        for start in range(0, len(plans), block):
            part = plans[start : start + block]
            padded = stack_plans(part + [part[0]] * (block - len(part)))
            rate = _score(padded, views, self.choices, self.work, self.cluster, self.calibration)
            out.append(np.asarray(rate)[:, : len(part)])
        return np.concatenate(out, axis=1)

    def base_rates(self, plans: list[Plan]) -> np.ndarray:
        """[P, V] training steps per second with the cluster as its file states it."""
        return self.choice_rates(plans, one_view(base_view(self.cluster)))[0]

    def complete_at_base(self, plans: list[Plan]) -> Plan:
        """Stack plans, their free fields set by the lower choice that is best at base."""
        choice = jnp.asarray(self.base_rates(plans).argmax(axis=-1), jnp.int32)
        args = (self.work, self.cluster, self.calibration, base_view(self.cluster))
        done, _ = _complete_each(stack_plans(plans), self.choices, choice, *args)
        return done

    def group_settings(self, groups: list[tuple[int, ...]], keep: int = 2) -> None:
        """Remember the best `keep` (tp, dp) of each pipeline on its own, at base bandwidth."""
        new = [g for g in groups if g not in self._group_settings]
        trials, owners = [], []
        batch, layers = int(self.work.global_batch), int(self.work.layers)
        for group in new:
            for settings in _all_settings((group,), self.gpus, self.per_node, batch):
                plan = make_plan((group,), settings, self.gpus, layers, self.n_domains)
                if plan is not None:
                    trials.append(plan)
                    owners.append((group, settings))
        if not trials:
            return
        rate = self.base_rates(trials).max(axis=-1)
        found: dict[tuple[int, ...], list] = {g: [] for g in new}
        for (group, (tp, dps)), r in zip(owners, rate, strict=True):
            found[group].append((float(r), tp, dps[0]))
        for group, options in found.items():
            options.sort(reverse=True)
            best = [o for o in options if o[0] > 0][:keep]
            # A group that fits only beside others does not exist: memory is per group.
            self._group_settings[group] = best

    def plans_of(self, layouts: list[Layout]) -> tuple[list[Plan], list[Layout]]:
        """Plans of layouts with the settings found for their groups (same tp in all groups)."""
        self.group_settings(sorted({g for layout in layouts for g in layout}))
        plans, owners = [], []
        layers = int(self.work.layers)
        for layout in layouts:
            for settings in self._settings_of(layout):
                plan = make_plan(layout, settings, self.gpus, layers, self.n_domains)
                if plan is not None:
                    plans.append(plan)
                    owners.append(layout)
        return plans, owners

    def _settings_of(self, layout: Layout) -> list[Settings]:
        """What was found for the groups, joined where they have the same tp; of an even layout all
        that its domains have in common too, as what is best for each alone need not agree."""
        options = [self._group_settings.get(g, []) for g in layout]
        settings: list[Settings] = []
        for tp in dict.fromkeys(tp for found in options for _, tp, _ in found):
            dps = [[dp for _, t, dp in found if t == tp] for found in options]
            joined = itertools.islice(itertools.product(*dps), COMBINATIONS)
            settings += [(tp, combination) for combination in joined]
        if layout in even_layouts(self.spec.n_domains):
            everyone = (tuple(k for group in layout for k in group),)
            common = _all_settings(everyone, self.gpus, self.per_node, int(self.work.global_batch))
            settings += [(tp, dps * len(layout)) for tp, dps in common]
        return list(dict.fromkeys(settings))

    def layouts(self, limit: int = 4000) -> tuple[list[Layout], bool]:
        """All layouts where there are at most `limit`, else a beam's and the even ones."""
        n = self.spec.n_domains
        if count_layouts(n) <= limit:
            return list(enumerate_layouts(tuple(range(n)), n)), True
        told = (self.spec, self.work, self.calibration, self.choices)
        found = _beam(pickle.dumps(told), limit)
        return list(dict.fromkeys([*found, *even_layouts(n)])), False

    def beam(self, width: int, limit: int) -> list[Layout]:
        """Grow layouts one domain at a time, keeping the `width` fastest at base of each size."""
        n = self.spec.n_domains
        frontier: list[Layout] = [((k,),) for k in range(n)]
        found = list(frontier)
        while frontier and len(found) < limit:
            grown = sorted({new for old in frontier for new in extensions(old, n)})
            plans, owners = self.plans_of(grown)
            if not plans:
                break
            rate = self.base_rates(plans).max(axis=-1)
            best: dict[Layout, float] = {}
            for owner, r in zip(owners, rate, strict=True):
                best[owner] = max(best.get(owner, 0.0), float(r))
            frontier = sorted(best, key=lambda x: -best[x])[:width]
            found += frontier
        return found[:limit]


@functools.lru_cache(maxsize=4)
def _beam(told: bytes, limit: int) -> tuple[Layout, ...]:
    """What a builder finds, given what it was told, pickled: tables of one cluster and job that differ
    in the plans of rivals share the search."""
    return tuple(TableBuilder(*pickle.loads(told)).beam(width=max(64, limit // 32), limit=limit))


def build_table(
    builder: TableBuilder, views: NetworkView, size: int, limit: int = 4000
) -> tuple[PlanTable, TableInfo, Plan]:
    """Choose `size` plans that together do best over sampled views [W, ...].

    Greedy cover: take the plan that raises the mean over views of the best rate most (the mean of
    maxima is submodular, so greedy is within 1 - 1/e of the best subset, Nemhauser et al. 1978).
    The best single-domain plan, the best even split and the best plan at base are always in.
    Returns the table, its claim, and all scored plans [N, ...] (the family, for bounds).

    Raises InputError when no plan fits, naming the shortfall.
    """
    layouts, exhaustive = builder.layouts(limit)
    plans, owners = builder.plans_of(layouts)
    base = builder.base_rates(plans).max(axis=-1) if plans else np.zeros(0)
    if not base.any():
        raise InputError(_nothing_fits(builder))
    single = np.array([len(o) == 1 and len(o[0]) == 1 for o in owners])
    even = np.array(
        [_is_even(p, o, builder.spec.n_domains) for p, o in zip(plans, owners, strict=True)]
    )
    rate = np.concatenate([base[None], builder.rates(plans, views)])
    chosen = [int(base.argmax())]
    for kind in (single, even):
        if (base * kind).max() > 0:
            chosen.append(int(np.argmax(base * kind)))
    # Every domain alone is a refuge when links fail.
    for k in range(builder.spec.n_domains):
        mine = np.array([o == ((k,),) for o in owners])
        if (base * mine).max() > 0:
            chosen.append(int(np.argmax(base * mine)))
    chosen = list(dict.fromkeys(chosen))[:size]
    covered = rate[:, chosen].max(axis=1)
    while len(chosen) < min(size, len(plans)):
        gain = np.maximum(rate - covered[:, None], 0.0).mean(axis=0)
        gain[chosen] = -1.0
        best = int(gain.argmax())
        if gain[best] <= 0:
            break
        chosen.append(best)
        covered = np.maximum(covered, rate[:, best])
    pad = size - len(chosen)
    rows = chosen + [chosen[0]] * pad
    table = PlanTable(
        plans=builder.complete_at_base([plans[i] for i in rows]),
        mask=jnp.asarray([True] * len(chosen) + [False] * pad),
        base_rate=jnp.asarray(base[rows] * ([1.0] * len(chosen) + [0.0] * pad), jnp.float32),
        single_domain=jnp.asarray(single[rows]),
        even_split=jnp.asarray(even[rows]),
    )
    whole = PlanFamily(cuts=("even",), choices=((1, 0, 0),)).count(builder.cluster, builder.work)
    info = TableInfo(FAMILY, len(chosen), len(plans), len(layouts), exhaustive, whole)
    return table, info, stack_plans(plans)


def even_layouts(n_domains: int) -> tuple[Layout, Layout]:
    """All domains in one pipeline in the file's order, and each a replica of its own."""
    return (tuple(range(n_domains)),), tuple((k,) for k in range(n_domains))


def _is_even(plan: Plan, layout: Layout, n_domains: int) -> bool:
    """An even layout, its replicas alike."""
    return layout in even_layouts(n_domains) and len(set(plan.dp[: len(layout)].tolist())) == 1


def _nothing_fits(builder: TableBuilder) -> str:
    """Say how much memory the least demanding plan lacks."""
    n = builder.spec.n_domains
    layers, batch = int(builder.work.layers), int(builder.work.global_batch)
    layouts: list[Layout] = [((k,),) for k in range(n)] + [(tuple(range(n)),)]
    trials = [
        plan
        for layout in layouts
        for s in _all_settings(layout, builder.gpus, builder.per_node, batch)
        if (plan := make_plan(layout, s, builder.gpus, layers, builder.n_domains)) is not None
    ]
    if not trials:
        return f"{builder.spec.name}: no plan splits {layers} layers over {n} domains"
    view = base_view(builder.cluster)
    args = (builder.work, builder.cluster, builder.calibration)

    def need(plan, choice):
        done, _ = complete(plan, builder.choices, choice, *args, view)
        return job_step_cost(done, *args, view).memory_gb.max()

    menu = jnp.arange(builder.choices.size, dtype=jnp.int32)
    needs = jax.jit(jax.vmap(jax.vmap(need, (None, 0)), (0, None)))(stack_plans(trials), menu)
    least = float(needs.min())
    limit = builder.spec.gpu_spec.memory_gb
    return (
        f"{builder.spec.name}: no plan fits: the least demanding one needs {least:.1f} GB per GPU, "
        f"{least - limit:.1f} GB more than the {limit:.1f} GB there are"
    )
