"""How fast plans train: training steps per second under many networks, lower choices included."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from jaxsim.cluster import Cluster
from jaxsim.plan import Plan, Problem
from jaxsim.planning.balance import complete
from jaxsim.step_time import NetworkView, job_step_cost
from jaxsim.vmap_last import vmap_last

VIEWS_AT_ONCE = 16  # that a table's plans are scored under together
VIEWS_TOGETHER = 64  # that few plans are scored under side by side
LANES = 8  # float32 numbers in a CPU's vector


def base_view(cluster: Cluster) -> NetworkView:
    """The cluster as its file states it, all GPUs free."""
    return NetworkView(cluster.bandwidth_gb_per_s, cluster.rtt_s, cluster.gpus)


def one_view(view: NetworkView) -> NetworkView:
    """Give a view the leading axis of views that scoring asks for."""
    return jax.tree.map(lambda x: x[None], view)


def in_front(n_domains: int) -> bool:
    """Does the axis of plans stand in front? Then reductions are over short axes."""
    return n_domains >= LANES


def over_plans(function: Callable[..., Any], in_axes: Sequence[int | None], n_domains: int) -> Any:
    """`jax.vmap`, with the axis last where fewer domains than LANES would leave vectors half empty.

    With eight domains and more the axis in front is faster: the arrays of a plan lie together.
    """
    return (jax.vmap if in_front(n_domains) else vmap_last)(function, tuple(in_axes))


def under_each(
    function: Callable[..., Any],
    views: NetworkView,
    balanced: NetworkView | None = None,
    *of_each: Any,
    blocks: bool = False,
) -> Any:
    """[W, ...] `function(view, balanced, ...)` of every one of W views, the one of `balanced` [W, ...]
    beside it (the same one where that is None), and what else belongs to each, [W, ...].

    Where the GPUs are the same in all of them, `views.gpus_available` may be [K]: what stages compute
    is then computed once. In `blocks`, as always where something belongs to each, views are computed
    side by side, which suits a function of few plans.
    """
    same = views.gpus_available.ndim == 1

    def whole(view):
        return view.replace(gpus_available=views.gpus_available) if same else view

    def under(view, balanced, *others):
        view = whole(view)
        return function(view, view if balanced is None else whole(balanced), *others)

    def of_links(view):
        return view.replace(gpus_available=None) if same and view is not None else view

    each = (of_links(views), of_links(balanced), *of_each)
    if blocks or of_each:
        return in_blocks(under, *each)
    return jax.lax.map(lambda args: under(*args), each)


def in_blocks(function: Callable[..., Any], *each: Any) -> Any:
    """`function` of every one of W arguments [W, ...], views first, many of them at once."""
    count, n_domains = each[0].rtt_s.shape[:2]
    size = min(count, VIEWS_AT_ONCE if in_front(n_domains) else VIEWS_TOGETHER)
    whole = count // size * size
    together = over_plans(function, [0] * len(each), n_domains)
    blocks = jax.tree.map(lambda x: x[:whole].reshape(-1, size, *x.shape[1:]), each)
    done = jax.lax.map(lambda args: together(*args), blocks)
    done = jax.tree.map(lambda x: x.reshape(whole, *x.shape[2:]), done)
    if whole == count:
        return done
    rest = together(*jax.tree.map(lambda x: x[whole:], each))
    return jax.tree.map(lambda *parts: jnp.concatenate(parts), done, rest)


def same_gpus(views: NetworkView, unless: bool = False) -> NetworkView:
    """Views [W, ...] that find the same GPUs, as `under_each` takes them; as they are if `unless`."""
    return views if unless else views.replace(gpus_available=views.gpus_available[0])


def gpus_once(views: NetworkView) -> NetworkView:
    """`same_gpus` of views on the host, where they find the same GPUs."""
    gpus = np.asarray(views.gpus_available)
    return same_gpus(views, unless=bool((gpus != gpus[:1]).any()))


def score_plans(
    plans: Plan,
    views: NetworkView,
    problem: Problem,
) -> tuple[Float[Array, "W P"], Int[Array, "W P"]]:
    """Training steps per second of P plans [P, ...] under W views [W, ...], best lower choice.

    Returns rate [W, P] (0 where nothing fits) and the choice [W, P] int32.
    """
    rates = choice_rates(plans, views, problem)
    return rates.max(axis=-1), jnp.argmax(rates, axis=-1).astype(jnp.int32)


# Traced once for all its callers, as `jaxsim.step_time.stages` is.
@functools.partial(jax.jit, inline=True)
def choice_rates(
    plans: Plan,
    views: NetworkView,
    problem: Problem,
    pairs: Int[Array, " N"] | None = None,
    balanced: NetworkView | None = None,
) -> Float[Array, "W P V"]:
    """[W, P, V] training steps per second (efficiency included), 0 where the choice is illegal.

    `pairs` [N], row x V + choice: those that are computed, all if None; the others are 0. `balanced`
    [W, ...]: the views that batch shares are balanced on, `views` themselves if None. Who plays has
    nothing but the measurement before.
    """
    n_plans, n_choices = plans.group.shape[0], problem.choices.size
    row, choice = pairs_of(n_plans, n_choices, pairs)
    each = jax.tree.map(lambda x: x[row], plans)
    by_pair = over_plans(_rate_of(problem), (None, None, 0, 0), plans.group.shape[-1])
    rates = under_each(lambda *seen: by_pair(*seen, each, choice), views, balanced)
    return spread(rates, n_plans, n_choices, pairs)


def pairs_of(
    n_plans: int, n_choices: int, pairs: Int[Array, " N"] | None
) -> tuple[Int[Array, " N"], Int[Array, " N"]]:
    """[N] rows and [N] lower choices of `pairs`, of all if None. They stand on one axis, because nested
    ones take 1.7 times as long on CPU."""
    every = jnp.arange(n_plans * n_choices, dtype=jnp.int32)
    return jnp.divmod(every if pairs is None else pairs, n_choices)


def spread(values: Array, n_plans: int, n_choices: int, pairs: Array | None) -> Array:
    """[W, P, V] from values [W, N] of `pairs`, 0 or False elsewhere."""
    if pairs is not None:
        nothing = jnp.zeros((values.shape[0], n_plans * n_choices), values.dtype)
        values = nothing.at[:, pairs].set(values)
    return values.reshape(-1, n_plans, n_choices)


@functools.partial(jax.jit, inline=True)
def row_rates(
    plans: Plan,
    choice: Int[Array, "W P"] | Int[Array, " P"],
    views: NetworkView,
    problem: Problem,
    balanced: NetworkView | None = None,
) -> Float[Array, "W P"]:
    """[W, P] training steps per second of plans [P, ...], each with one lower choice in each of the
    views [W, ...], or in all of them: [P] is a third of the work where GPUs do not change. `balanced`
    as in `choice_rates`."""
    by_plan = over_plans(_rate_of(problem), (None, None, 0, 0), plans.group.shape[-1])
    return rows_under_each(by_plan, plans, choice, views, balanced)


def rows_under_each(
    by_plan: Callable[..., Any],
    plans: Plan,
    choice: Int[Array, "W P"] | Int[Array, " P"],
    views: NetworkView,
    balanced: NetworkView | None,
) -> Any:
    """[W, P, ...] `by_plan(view, balanced, plans, choice)` of every one of W views; choices may differ
    between views, or not."""

    def under(view, balanced, chosen=choice):
        return by_plan(view, balanced, plans, chosen)

    of_each = (choice,) if choice.ndim > 1 else ()
    return under_each(under, views, balanced, *of_each, blocks=True)


def best_rate(
    plans: Plan,
    choice: Int[Array, " N"],
    views: NetworkView,
    problem: Problem,
) -> Float[Array, " W"]:
    """[W] training steps per second of the best of M plans [M, ...], each with one lower choice [M]."""
    by_plan = over_plans(_rate_of(problem), (None, None, 0, 0), plans.group.shape[-1])
    return under_each(lambda *seen: by_plan(*seen, plans, choice).max(), views)


def _rate_of(problem: Problem):
    """(view, balanced, plan, choice) -> [] training steps per second, 0 where the choice is illegal."""

    def rate(view, balanced, plan, choice):
        done, legal = complete(plan, choice, problem, balanced)
        cost = job_step_cost(done, problem, view, schedules=problem.choices.schedules)
        return jnp.where(legal & cost.runs, cost.efficiency / cost.step_s, 0.0)

    return rate
