"""Plan tables: which of a family's plans are worth a row, chosen to do well together."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxsim.files import InputError
from jaxsim.plan import Layout, Plan, Problem
from jaxsim.planning.balance import complete
from jaxsim.planning.builder import Owner, TableBuilder, even_layouts, table_family
from jaxsim.planning.family import make_plan, plan_blocks, stack_plans
from jaxsim.planning.objective import BUDGET_SHARES, LEAST_PROGRESS
from jaxsim.planning.scoring import base_view, one_view, over_plans, pairs_of
from jaxsim.pytree import Pytree
from jaxsim.step_time import NetworkView, job_step_cost

# A family up to this size is scored as a whole; of a larger one, the best plans of each layout.
EVERY_PLAN = 12_000
# A table is chosen from so many plans, and at most so many for each of its rows: those that come
# nearest to the best in any of FIRST_VIEWS states of the network.
CANDIDATES, FOR_A_ROW, FIRST_VIEWS = 1000, 21, 16
# States of the network, beside the base, in which plans are weighed for preferences.
PRICED_VIEWS = 3


class PlanTable(Pytree):
    """Plans of one job, one row each; the free fields of a row are those best at base."""

    plans: Plan  # leaves [P, ...]
    mask: Bool[Array, "*batch P"]  # False for padding
    # [training steps / s] at base bandwidth, best lower choice; 0 if unfit
    base_rate: Float[Array, "*batch P"]
    single_domain: Bool[Array, "*batch P"]  # the row uses one domain
    even_split: Bool[Array, "*batch P"]  # the row uses all domains, all alike
    # {scheduler: [P, V] bool}, the rows and lower choices that its rules allow: `planning.candidates`
    candidates_of: dict[str, Bool[Array, "*batch P V"]] = struct.field(default_factory=dict)
    # Rows with lower choices, row x V + choice, of which one is as good as each row's best whatever
    # the network: `planning.pairs`. These alone are weighed; None: all of them
    pairs: Int[Array, "*batch N"] | None = None

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


def build_table(
    builder: TableBuilder,
    views: NetworkView,
    size: int,
    limit: int = 4000,
    preferences: Sequence[Sequence[float]] = (),
) -> tuple[PlanTable, TableInfo, Plan]:
    """Choose `size` plans that together do best over sampled views [W, ...].

    Greedy cover: take the plan that raises the mean over views of the best rate most (the mean of
    maxima is submodular, so greedy is within 1 - 1/e of the best subset, Nemhauser et al. 1978).
    Fallback plans are always in: where there are more of them than `size`, the table is as large as
    they are. With `preferences`, weights as in `Objective`, each of them counts as a view more, and so
    does the price of a token: what is cheap is then in the table too. Returns the table, its claim,
    and all scored plans [N, ...] (the family, for bounds).

    Raises InputError when no plan fits, naming the shortfall.
    """
    layouts, exhaustive = builder.layouts(limit)
    in_family = builder.count()
    plans, owners = builder.plans_of(layouts, every=exhaustive and in_family <= EVERY_PLAN)
    if not plans:
        raise InputError(_nothing_fits(builder))
    family, n_scored = stack_plans(plans), len(plans)
    base = builder.base_rates(family).max(axis=-1)
    if not base.any():
        raise InputError(_nothing_fits(builder))
    n_domains = builder.spec.n_domains
    single = np.array([len(o) == 1 and len(o[0]) == 1 for o, _ in owners])
    even = np.array([_is_even(p, o, n_domains) for p, (o, _) in zip(plans, owners, strict=True)])
    wanted = preferred(builder, family, views, preferences)
    most = min(CANDIDATES, FOR_A_ROW * size)
    near = _candidates(builder, family, base, views, single | even, wanted, most)
    plans, owners = [plans[i] for i in near], [owners[i] for i in near]
    base, single, even = base[near], single[near], even[near]
    # What is preferred counts in units of the best rate at base.
    rate = np.concatenate([base[None], builder.rates(plans, views), base.max() * wanted[:, near]])
    fallbacks = _fallback_plans(owners, base, single, even)
    size = max(size, len(fallbacks))
    chosen = _cover(rate, fallbacks, size)
    pad = size - len(chosen)
    rows = chosen + [chosen[0]] * pad
    table = PlanTable(
        plans=builder.complete_at_base([plans[i] for i in rows]),
        mask=jnp.asarray([True] * len(chosen) + [False] * pad),
        base_rate=jnp.asarray(base[rows] * ([1.0] * len(chosen) + [0.0] * pad), jnp.float32),
        single_domain=jnp.asarray(single[rows]),
        even_split=jnp.asarray(even[rows]),
    )
    info = TableInfo(
        table_family().describe(), len(chosen), n_scored, len(layouts), exhaustive, in_family
    )
    return table, info, family


def _candidates(
    builder: TableBuilder,
    plans: Plan,
    base: np.ndarray,
    views: NetworkView,
    always: np.ndarray,
    wanted: np.ndarray,
    most: int,
) -> np.ndarray:
    """[N] indices of the plans among which a table is chosen, `most` of them: those that come nearest
    to the best in any of a few views or for any preference (`wanted` [_, M]), and those that are
    `always` [M] bool among them, however many these are."""
    most = max(most, int(always.sum()))
    if len(base) <= most:
        return np.arange(len(base))
    few = jax.tree.map(lambda x: x[:FIRST_VIEWS], views)
    rate = np.concatenate([base[None], builder.rates(plans, few)])
    nearness = (rate / np.maximum(rate.max(axis=1, keepdims=True), 1e-30)).max(axis=0)
    nearness = np.maximum(nearness, wanted.max(axis=0, initial=0.0))
    return np.sort(np.argsort(-np.where(always, np.inf, nearness), kind="stable")[:most])


def preferred(
    builder: TableBuilder,
    plans: Sequence[Plan] | Plan,
    views: NetworkView,
    preferences: Sequence[Sequence[float]],
) -> Float[np.ndarray, "_ P"]:
    """[_, P] how near each plan comes to the best for each of the weights and in USD per token: 1 for
    the best and 0 for what is worth nothing, at base and in PRICED_VIEWS of the views; and how near
    in progress to the best that may be had for each of BUDGET_SHARES. Without weights there is no
    row."""
    blocks, count = plan_blocks(plans)
    if not preferences:
        return np.zeros((0, count), np.float32)
    base = one_view(base_view(builder.problem.cluster))
    few = jax.tree.map(lambda x, y: jnp.concatenate([x, y[:PRICED_VIEWS]]), base, views)
    parts = [_PARTS(block, few, builder.problem) for block in blocks]
    whole = np.concatenate(parts, axis=1)[:, :count]
    rate, utilisation, cost, per_usd = np.moveaxis(whole, -1, 0)
    progress = rate / np.maximum(rate.max(axis=(1, 2), keepdims=True), 1e-30)
    rows = [per_usd.max(axis=-1)]
    usd_per_s = np.where(rate > 0, rate / np.maximum(per_usd, 1e-30), np.inf)
    fastest = rate.reshape(len(rate), -1).argmax(axis=1)
    dearest = np.take_along_axis(usd_per_s.reshape(len(rate), -1), fastest[:, None], 1)[..., None]
    for share in BUDGET_SHARES:
        rows.append(np.where(usd_per_s <= share * dearest, progress, 0.0).max(axis=-1))
    for w in preferences:
        worth = max(w[0], LEAST_PROGRESS) * progress + w[1] * utilisation - w[2] * cost
        rows.append(np.where(rate > 0, worth, 0.0).max(axis=-1))
    worths = np.maximum(np.concatenate(rows), 0.0)
    nearness = worths / np.maximum(worths.max(axis=1, keepdims=True), 1e-30)
    return nearness.astype(np.float32)


def _reward_parts(plans: Plan, views: NetworkView, problem: Problem) -> Array:
    """[W, P, V, 4] of plans [P, ...] with every lower choice under views [W, ...]: training steps per
    second, utilisation, egress over the GPUs' price, training steps per USD; 0 where it cannot run."""

    def one(view, plan, choice):
        done, legal = complete(plan, choice, problem, view)
        cost = job_step_cost(done, problem, view, schedules=problem.choices.schedules)
        runs = legal & cost.runs
        rate = jnp.where(runs, cost.efficiency / cost.step_s, 0.0)
        used = cost.gpus_used.astype(jnp.float32)
        gpu_usd = jnp.maximum(jnp.vdot(used, problem.cluster.usd_per_gpu_hour) / 3600.0, 1e-12)
        egress_usd = jnp.where(runs, cost.egress_usd / cost.step_s, 0.0)
        peak = problem.cluster.peak_tflops(view.gpus_available)
        utilisation = rate * problem.work.useful_tflop / jnp.maximum(peak, 1e-9)
        return jnp.stack([rate, utilisation, egress_usd / gpu_usd, rate / (gpu_usd + egress_usd)])

    n_plans, n_choices = plans.group.shape[0], problem.choices.size
    row, choice = pairs_of(n_plans, n_choices, None)
    each = jax.tree.map(lambda x: x[row], plans)
    by_pair = over_plans(one, (None, 0, 0), plans.group.shape[-1])
    parts = jax.lax.map(lambda view: by_pair(view, each, choice), views)
    return parts.reshape(-1, n_plans, n_choices, parts.shape[-1])


_PARTS = jax.jit(_reward_parts)


def _fallback_plans(
    owners: list[Owner], base: np.ndarray, single: np.ndarray, even: np.ndarray
) -> list[int]:
    """Rows of every table, for when GPUs are taken or links fail.

    For every part of the GPUs these are the best at base of all plans, of those inside one domain and
    of the even splits; and the best plan of every domain alone.
    """
    part = np.array([p for _, p in owners])
    where = [layout if one else None for (layout, _), one in zip(owners, single, strict=True)]
    alone = [np.array([x == one for x in where]) for one in dict.fromkeys(where) if one]
    masks = [k & (part == p) for p in range(part.max() + 1) for k in (single | True, single, even)]
    masks += [(part == 0) & k for k in alone]
    best = [int(np.argmax(base * mask)) for mask in masks if (base * mask).max() > 0]
    return list(dict.fromkeys(best))


def _cover(rate: np.ndarray, chosen: list[int], size: int) -> list[int]:
    """Up to `size` columns of rate [W, N], those `chosen` first: greedily what raises the mean of the
    rows' maxima most."""
    covered = rate[:, chosen].max(axis=1)
    while len(chosen) < min(size, rate.shape[1]):
        gain = np.maximum(rate - covered[:, None], 0.0).mean(axis=0)
        gain[chosen] = -1.0
        best = int(gain.argmax())
        if gain[best] <= 0:
            break
        chosen.append(best)
        covered = np.maximum(covered, rate[:, best])
    return chosen


def _is_even(plan: Plan, layout: Layout, n_domains: int) -> bool:
    """An even layout, its replicas alike."""
    return layout in even_layouts(n_domains) and len(set(plan.dp[: len(layout)].tolist())) == 1


def _nothing_fits(builder: TableBuilder) -> str:
    """Say how much memory the least demanding plan lacks."""
    n = builder.spec.n_domains
    layers, batch = int(builder.problem.work.layers), int(builder.problem.work.global_batch)
    layouts: list[Layout] = [((k,),) for k in range(n)] + [(tuple(range(n)),)]
    trials = [
        plan
        for layout in layouts
        for s in table_family().settings(layout, builder.gpus, builder.per_node, batch)
        if (plan := make_plan(layout, s, builder.gpus, layers, builder.n_domains, builder.pace))
        is not None
    ]
    if not trials:
        return f"{builder.spec.name}: no plan splits {layers} layers over {n} domains"
    problem, view = builder.problem, base_view(builder.problem.cluster)

    def need(plan, choice):
        done, _ = complete(plan, choice, problem, view)
        cost = job_step_cost(done, problem, view, schedules=problem.choices.schedules)
        lacks = cost.memory_gb - problem.cluster.gpu.memory_gb
        return cost.memory_gb[jnp.argmax(lacks)], jnp.max(lacks)

    menu = jnp.arange(builder.problem.choices.size, dtype=jnp.int32)
    needs = jax.jit(jax.vmap(jax.vmap(need, (None, 0)), (0, None)))(stack_plans(trials), menu)
    needs_gb, lacks_gb = (np.asarray(x).ravel() for x in needs)
    best = int(lacks_gb.argmin())
    need_gb, lack_gb = float(needs_gb[best]), float(lacks_gb[best])
    return (
        f"{builder.spec.name}: no plan fits: the least demanding one needs {need_gb:.1f} GB per GPU, "
        f"{lack_gb:.1f} GB more than the {need_gb - lack_gb:.1f} GB there are"
    )
