"""Side by side: the best plan whose replicas sync every step in 16 bits, and the best of any plans."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxsim.cluster import ClusterSpec
from jaxsim.learning import Band
from jaxsim.plan import Problem, whole_plan
from jaxsim.planning import Exchange, PlanSpace, objectives
from jaxsim.planning.exact import SpaceResult, SpaceSearch
from jaxsim.step_time import NetworkView, communication

MOST_SCORED = 3000  # plans of each setting; the gap says what that leaves open
SETTINGS = ("synchronous", "any")


def alternatives(spec: ClusterSpec, problem: Problem, view: NetworkView) -> dict[str, Any]:
    """The best plan found in each setting under `view`, chosen by the lower end of what its tokens are
    worth; None where nothing can run. One job, no job axis."""
    held = np.asarray(view.gpus_available) < np.asarray(problem.cluster.gpus)
    space = PlanSpace.of(problem, loaded=bool(held.any()))
    search = SpaceSearch(problem, space)
    ways = {"synchronous": [Exchange()], "any": None}
    found = {name: search.best(view, MOST_SCORED, ways[name]) for name in SETTINGS}
    if found["any"].rate < found["synchronous"].rate:  # it holds the other's plans as well
        bound = max(one.bound for one in found.values())
        found["any"] = dataclasses.replace(found["synchronous"], bound=bound)
    told: dict[str, Any] = {
        name: one_of(result, spec, problem, view) if result.rate > 0 else None
        for name, result in found.items()
    }
    plain, other = told["synchronous"], told["any"]
    tie = None
    if plain and other and other["exchange"] != plain["exchange"]:
        tie = plain["effective_tokens_per_s"] / other["tokens_per_s"]
    return {**told, "tie_efficiency": tie, "space": space.describe()}


def one_of(
    result: SpaceResult, spec: ClusterSpec, problem: Problem, view: NetworkView
) -> dict[str, Any]:
    """What a reader wants to know of a plan."""
    plan, cost, work = result.plan, result.cost, problem.work
    band = worth_of(result, problem)
    tokens_per_s = float(work.tokens_per_step) / float(cost.step_s)
    # Without what a token is worth: that is told beside it.
    price = objectives(cost.replace(efficiency=jnp.float32(1.0)), problem)
    usd = float(price[2])
    low, centre, high = (float(x) for x in (band.low, band.centre, band.high))
    return {
        "plan": whole_plan(plan, spec.domains),
        "exchange": result.exchange.fields(),
        "step_s": float(cost.step_s),
        "tokens_per_s": tokens_per_s,
        "efficiency": centre,
        "efficiency_band": [low, high],
        "extrapolated": bool(band.extrapolated),
        "effective_tokens_per_s": centre * tokens_per_s,
        "effective_tokens_per_s_band": [low * tokens_per_s, high * tokens_per_s],
        "usd_per_mtoken": usd,
        "usd_per_effective_mtoken": usd / centre,
        "memory_gb_max": float(np.max(cost.memory_gb)),
        "wan_gb_per_step": float(np.sum(cost.wan_gb)),
        "search": "exact" if result.gap_pct == 0.0 else "bounded",
        "gap_pct": result.gap_pct,
        "plans_scored": result.plans_scored,
    }


def worth_of(result: SpaceResult, problem: Problem) -> Band:
    """The band of what the plan's tokens are worth."""
    plan = jax.tree.map(jnp.asarray, result.plan)
    return problem.learning.band(communication(plan, problem.work))


def alternatives_text(told: dict[str, Any]) -> str:
    """For the terminal."""
    head = f"{'best plan':<14}{'step':>9}{'tokens/s':>11}{'a token is worth':>26}"
    head += f"{'effective':>11}{'USD per M':>11}{'WAN GB':>9}{'gap':>8}"
    under = f"{'':<14}{'s':>9}{'':>11}{'centre (95 % band)':>26}"
    under += f"{'tokens/s':>11}{'effective':>11}{'a step':>9}{'%':>8}"
    lines = [head, under]
    for name in SETTINGS:
        one = told[name]
        if one is None:
            lines.append(f"{name:<14}none can run")
            continue
        low, high = one["efficiency_band"]
        worth = f"{one['efficiency']:.2f} ({low:.2f} to {high:.2f})"
        worth += " *" if one["extrapolated"] else ""
        lines.append(
            f"{name:<14}{one['step_s']:>9.2f}{one['tokens_per_s']:>11,.0f}{worth:>26}"
            f"{one['effective_tokens_per_s']:>11,.0f}{one['usd_per_effective_mtoken']:>11.2f}"
            f"{one['wan_gb_per_step']:>9.2f}{one['gap_pct']:>8.1f}"
        )
    lines += [f"  {name}: {_exchange(told[name])}" for name in SETTINGS if told[name]]
    if told["tie_efficiency"] is not None:
        tie = told["tie_efficiency"]
        lines.append(
            f"  they tie where a token of the second is worth {tie:.2f} of one of the first"
        )
    if any(told[name] and told[name]["extrapolated"] for name in SETTINGS):
        lines.append("  * no published run is near: extrapolated")
    return "\n".join(lines) + "\n"


def _exchange(one: dict[str, Any]) -> str:
    """In words: who holds a replica, and how they talk."""
    groups = " | ".join(">".join(d["domain"] for d in p["domains"]) for p in one["plan"])
    way = one["exchange"]
    words = f"H {way['sync_period']}, {way['wire_bits']} bits"
    if way["activation_bits"] != 16:
        words += f", {way['activation_bits']} bits inside pipelines"
    if way["overlap"]:
        words += f", {way['fragments']} fragments behind {way['overlap']} step"
    return f"{groups}; {words}"
