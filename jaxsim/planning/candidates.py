"""Candidate plans of schedulers: each by its own rules, all in the one table that everybody plays.

A scheduler with rules of its own (an automatic planner, a framework's rule of thumb) proposes plans on
the host, once per cluster and job. It proposes them for the links of the cluster file, for links
as the bases of scenarios may differ from them, and for parts of the GPUs where local jobs may hold
the rest. The proposed plans join the rows that `builder`
found, and their lower choices join the menu. The optimum over the table therefore covers whatever
anyone can play. Results depend on which schedulers run together, because they share one plan table.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from jaxsim.cluster import Calibration, ClusterSpec
from jaxsim.learning import TokenEfficiency
from jaxsim.plan import LowerChoices, Plan, default_lower_choices
from jaxsim.planning.builder import WHOLE, TableBuilder
from jaxsim.planning.family import row_key, stack_plans
from jaxsim.planning.pairs import filled
from jaxsim.planning.scoring import base_view, one_view
from jaxsim.planning.table import PlanTable, TableInfo
from jaxsim.trees import take
from jaxsim.workload import Workload

Triple = tuple[int, int, int]  # micro-batch, recompute, schedule
# Joined tables are padded to a multiple of this: clusters with other proposals share programs.
ROWS_STEP = 24


@dataclasses.dataclass(frozen=True)
class PlanRules:
    """What a scheduler may play: `propose(builder, allowed)` returns its plans, best first, given
    which lower choices of the builder's menu it may use [V] bool."""

    propose: Callable[[TableBuilder, np.ndarray], list[Plan]]
    recompute: tuple[int, ...]  # Recompute
    schedules: tuple[int, ...]  # Schedule

    def allowed(self, menu: LowerChoices) -> Bool[np.ndarray, " V"]:
        """[V] bool: the choices that the rules know."""
        return np.isin(menu.recompute, self.recompute) & np.isin(menu.schedule, self.schedules)


def propose_candidates(
    spec: ClusterSpec,
    work: Workload,
    calibration: Calibration,
    rules: Mapping[str, PlanRules],
    factors: Iterable[Float[np.ndarray, "K K"]] = (),
    learning: TokenEfficiency | None = None,
    parts: tuple[float, ...] = WHOLE,
) -> tuple[LowerChoices, dict[str, list[Plan]]]:
    """Ask everyone for plans: for the links of the file, for these times each of `factors` [K, K], and
    for 1 / part of every domain's GPUs where local jobs may hold the rest.

    Returns the menu and {scheduler: plans with NumPy leaves, each once}. The menu is the default one
    and what else somebody's plan does best with, while all GPUs are free or half of them: every entry
    costs everybody time, so those that nobody wants are left out.
    """
    default = default_lower_choices()
    offered = _menu(default, _demanded(default, rules))
    proposed: dict[str, dict[bytes, Plan]] = {name: {} for name in rules}
    wanted: list[Triple] = []
    faster = [dataclasses.replace(spec, bandwidth_gbps=spec.bandwidth_gbps * f) for f in factors]
    smaller = [_part_of(spec, part) for part in parts if part > 1]
    for asked in (spec, *faster, *smaller):
        builder = TableBuilder(asked, work, calibration, offered, learning=learning)
        found = {name: own.propose(builder, own.allowed(offered)) for name, own in rules.items()}
        wanted += _best_choices(builder, found, rules)
        for name, plans in found.items():
            for plan in plans:
                proposed[name].setdefault(row_key(plan), plan)
    return _menu(default, wanted), {name: list(own.values()) for name, own in proposed.items()}


def _part_of(spec: ClusterSpec, part: float) -> ClusterSpec:
    """The cluster with 1 / part of each domain's GPUs, one at least."""
    gpus = tuple(max(int(n / part), 1) for n in spec.gpus)
    per_node = tuple(map(min, spec.gpus_per_node, gpus))
    return dataclasses.replace(spec, gpus=gpus, gpus_per_node=per_node)


def _best_choices(
    builder: TableBuilder, proposed: Mapping[str, list[Plan]], rules: Mapping[str, PlanRules]
) -> list[Triple]:
    """What each of the plans does best with, all GPUs free and half of them; those of all schedulers
    are scored together, which fills the blocks."""
    plans = [plan for each in proposed.values() for plan in each]
    if not plans:
        return []
    base = base_view(builder.problem.cluster)
    views = [one_view(base), one_view(base.replace(gpus_available=base.gpus_available // 2))]
    rates = np.concatenate([builder.choice_rates(plans, view) for view in views])  # [2, P, V]
    menu, ends = builder.problem.choices, np.cumsum([len(each) for each in proposed.values()])
    offered, wanted = _triples(menu), []
    for name, own in zip(proposed, np.split(rates, ends[:-1], axis=1), strict=True):
        rows = (own * rules[name].allowed(menu)).reshape(-1, menu.size)
        wanted += [offered[row.argmax()] for row in rows if row.max() > 0]
    return wanted


def add_candidates(
    table: PlanTable,
    info: TableInfo,
    family: Plan,
    builder: TableBuilder,
    proposed: Mapping[str, list[Plan]],
    rules: Mapping[str, PlanRules],
) -> tuple[PlanTable, TableInfo, Plan]:
    """Add proposed plans to a table and to its family [N, ...]; rows that are there already are
    not doubled."""
    rows = _unstack(table.plans, np.flatnonzero(table.mask))
    known = {row_key(plan): i for i, plan in enumerate(rows)}
    for plan in (p for plans in proposed.values() for p in plans):
        if known.setdefault(row_key(plan), len(rows)) == len(rows):
            rows.append(plan)
    n_core = int(table.mask.sum())
    size = filled(max(table.size, len(rows)), ROWS_STEP)
    new = rows[n_core:]
    base = builder.base_rates(rows).max(axis=-1)
    single = [int((np.asarray(p.group) >= 0).sum()) == 1 for p in rows]
    pad = size - len(rows)

    def column(values: Iterable, filler) -> jax.Array:
        return jnp.asarray([*values, *[filler] * pad])

    candidates_of = {}
    for name, plans in proposed.items():
        chosen = np.zeros(size, bool)
        chosen[[known[row_key(p)] for p in plans]] = True
        candidates_of[name] = jnp.asarray(
            chosen[:, None] & rules[name].allowed(builder.problem.choices)
        )
    table = PlanTable(
        plans=builder.complete_at_base(rows + [rows[0]] * pad),
        mask=column([True] * len(rows), False),
        base_rate=column(base.tolist(), 0.0),
        single_domain=column(single, False),
        even_split=column([*np.asarray(table.even_split)[:n_core], *[False] * len(new)], False),
        candidates_of=candidates_of,
    )
    if new:
        family = jax.tree.map(lambda x, y: jnp.concatenate([x, y]), family, stack_plans(new))
    info = dataclasses.replace(
        info,
        family=f"{info.family}; and the plans of {', '.join(proposed)}",
        plans_in_table=len(rows),
        plans_scored=info.plans_scored + len(new),
    )
    return table, info, family


def _triples(menu: LowerChoices) -> list[Triple]:
    columns = (menu.micro_batch, menu.recompute, menu.schedule)
    return list(zip(*(np.asarray(x).tolist() for x in columns), strict=True))


def _menu(default: LowerChoices, more: Iterable[Triple]) -> LowerChoices:
    """The default choices first, in their order; then the others, each once."""
    return LowerChoices.of(dict.fromkeys([*_triples(default), *more]))


def _demanded(default: LowerChoices, rules: Mapping[str, PlanRules]) -> list[Triple]:
    sizes = sorted(set(np.asarray(default.micro_batch).tolist()))
    pairs = [p for own in rules.values() for p in itertools.product(own.recompute, own.schedules)]
    return [(size, *pair) for pair in dict.fromkeys(pairs) for size in sizes]


def _unstack(plans: Plan, rows: np.ndarray) -> list[Plan]:
    host = jax.tree.map(np.asarray, plans)
    return [take(host, i) for i in rows]
