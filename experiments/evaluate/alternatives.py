"""Side by side: the best plan whose replicas sync every step in 16 bits, and the best of any plans."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from experiments.common import tie_text
from experiments.evaluate.trust import plan_trust
from jaxsim.cluster import ClusterSpec
from jaxsim.learning import Band
from jaxsim.plan import Problem, whole_plan
from jaxsim.planning import Exchange, PlanSpace, objectives
from jaxsim.planning.exact import SpaceResult, SpaceSearch, best_plan
from jaxsim.step_time import NetworkView, communication

MOST_KNOWN = 16
MOST_SCORED = 3000  # plans of each setting; the gap says what that leaves open
SETTINGS = ("synchronous", "any")
# Columns of alternatives.csv.
BANDS = ("step_s", "efficiency", "effective_tokens_per_s")
NUMBERS = (
    *BANDS,
    "tokens_per_s",
    "usd_per_effective_mtoken",
    "wan_gb_per_step",
    "memory_gb_max",
    "gap_pct",
    "extrapolated",
)


_known: dict[bytes, dict[str, Any]] = {}  # of scenes of one world: what changes is how links move


def alternatives(spec: ClusterSpec, problem: Problem, view: NetworkView) -> dict[str, Any]:
    """The best plan found in each setting under `view`, chosen by the lower end of what its tokens are
    worth; None where nothing can run. One job, no job axis. The same question is searched once."""
    key = _key(spec, problem, view)
    if key not in _known:
        while len(_known) >= MOST_KNOWN:
            _known.pop(next(iter(_known)))
        _known[key] = _searched(spec, problem, view)
    return copy.deepcopy(_known[key])


def _key(spec: ClusterSpec, problem: Problem, view: NetworkView) -> bytes:
    """Equal for equal questions: every number and every name in them."""
    leaves, shape = jax.tree.flatten((problem, view))
    text = f"{spec}{shape}{[(np.shape(x), np.asarray(x).dtype) for x in leaves]}"
    numbers = b"".join(np.asarray(x).tobytes() for x in leaves)
    return hashlib.sha256(text.encode() + numbers).digest()


def _searched(spec: ClusterSpec, problem: Problem, view: NetworkView) -> dict[str, Any]:
    """`alternatives`, searched anew."""
    held = np.asarray(view.gpus_available) < np.asarray(problem.cluster.gpus)
    space = PlanSpace.of(problem, loaded=bool(held.any()))
    search = SpaceSearch(problem, space)
    ways = {"synchronous": [Exchange()], "any": None}
    found = {name: best_plan(search, view, MOST_SCORED, ways[name]) for name in SETTINGS}
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
    step_s = float(cost.step_s)
    tokens_per_s = float(work.tokens_per_step) / step_s
    trust = plan_trust(spec, problem, plan, tokens_per_s)
    slowest, fastest = (trust[f"tokens_per_s_{end}"] for end in ("lo", "hi"))
    # Without what a token is worth: that is told beside it.
    price = objectives(cost.replace(efficiency=jnp.float32(1.0)), problem)
    usd = float(price[2])
    low, centre, high = (float(x) for x in (band.low, band.centre, band.high))
    return {
        "plan": whole_plan(plan, spec.domains),
        "exchange": result.exchange.fields(),
        "step_s": step_s,
        "step_s_band": [step_s * tokens_per_s / end for end in (fastest, slowest)],
        "tokens_per_s": tokens_per_s,
        "efficiency": centre,
        "efficiency_band": [low, high],
        "extrapolated": bool(band.extrapolated),
        "effective_tokens_per_s": centre * tokens_per_s,
        "effective_tokens_per_s_band": [low * slowest, high * fastest],
        "usd_per_mtoken": usd,
        "usd_per_effective_mtoken": usd / centre,
        "memory_gb_max": trust["memory_gb"],
        "wan_gb_per_step": float(np.sum(cost.wan_gb)),
        "search": "exact" if result.exhaustive and result.gap_pct == 0.0 else "bounded",
        "gap_pct": result.gap_pct,
        "plans_scored": result.plans_scored,
    }


def worth_of(result: SpaceResult, problem: Problem) -> Band:
    """The band of what the plan's tokens are worth."""
    plan = jax.tree.map(jnp.asarray, result.plan)
    return problem.learning.band(communication(plan, problem.work))


def alternatives_text(told: dict[str, Any]) -> str:
    """For the terminal."""
    head = f"{'best plan':<14}{'step':>9}{'tokens/s':>11}{'a token is worth':>26}{_HEAD}{'gap':>8}"
    under = f"{'':<14}{'s':>9}{'':>11}{'centre (95 % band)':>26}{_UNDER}{'%':>8}"
    lines = [head, under]
    for name in SETTINGS:
        one = told[name]
        if one is None:
            lines.append(f"{name:<14}none can run")
            continue
        low, high = one["efficiency_band"]
        worth = f"{one['efficiency']:.2f} ({low:.2f} to {high:.2f})"
        worth += _mark(one)
        lines.append(
            f"{name:<14}{one['step_s']:>9.2f}{one['tokens_per_s']:>11,.0f}{worth:>26}"
            f"{_effective(one)}{one['gap_pct']:>8.1f}"
        )
    lines += [f"  {name}: {_exchange(told[name])}" for name in SETTINGS if told[name]]
    if told["tie_efficiency"] is not None:
        tied = tie_text(told["tie_efficiency"], told[SETTINGS[0]]["efficiency"])
        lines.append(f"  they {tied}")
    if any(told[name] and told[name]["extrapolated"] for name in SETTINGS):
        lines.append(EXTRAPOLATED)
    return "\n".join(lines) + "\n"


EXTRAPOLATED = "  * what a token is worth is extrapolated: no published run is near"


def _mark(one: dict[str, Any]) -> str:
    """Behind what no published run is near."""
    return " *" if one["extrapolated"] else ""


_HEAD = f"{'effective tokens/s':>32}{'USD per M':>11}{'WAN GB':>9}"
_UNDER = f"{'centre (both bands)':>32}{'effective':>11}{'a step':>9}"


def _effective(one: dict[str, Any]) -> str:
    """The cells below `_HEAD`."""
    low, high = one["effective_tokens_per_s_band"]
    speed = f"{one['effective_tokens_per_s']:,.0f} ({low:,.0f} to {high:,.0f})"
    return f"{speed:>32}{one['usd_per_effective_mtoken']:>11.2f}{one['wan_gb_per_step']:>9.2f}"


def suite_alternatives(scenes: dict[str, dict]) -> str:
    """For the terminal, of the summaries of a suite: both settings of each scene of one job."""
    told = {scene: x["alternatives"] for scene, x in scenes.items() if x.get("alternatives")}
    if not told:
        return ""
    wide = max(len(scene) for scene in (*told, "best plan in")) + 2
    lines = [
        f"{'best plan in':<{wide}}{'setting':<13}{_HEAD}{'tie':>7}  where",
        f"{'':<{wide}}{'':<13}{_UNDER}{'at':>7}",
    ]
    for scene, of in told.items():
        for name in SETTINGS:
            start = f"{scene if name == SETTINGS[0] else '':<{wide}}{name:<13}"
            one, tie = of[name], of["tie_efficiency"] if name == SETTINGS[1] else None
            if one is None:
                lines.append(f"{start}none can run")
                continue
            at = "" if tie is None else f"{tie:.2f}"
            lines.append(f"{start}{_effective(one)}{at:>7}  {_where(one)}{_mark(one)}")
    lines.append(
        "  at base links and mean load; tie at: where a token of the second is worth so much"
    )
    if any(_mark(of[name]) for of in told.values() for name in SETTINGS if of[name]):
        lines.append(EXTRAPOLATED)
    return "\n".join(lines) + "\n"


def alternatives_rows(scenes: dict[str, dict]) -> pd.DataFrame:
    """alternatives.csv: both settings of every scene that tells them."""
    rows = []
    for scene, summary in scenes.items():
        told = summary.get("alternatives") or {}
        for name in SETTINGS:
            one = told.get(name)
            if one is None:
                continue
            ends = [end for key in BANDS for end in one[f"{key}_band"]]
            numbers = [one[key] for key in NUMBERS]
            tie = told["tie_efficiency"]
            rows.append([scene, name, _exchange(one), tie, *numbers, *ends])
    ends = [f"{key}_{end}" for key in BANDS for end in ("lo", "hi")]
    columns = ["scene", "setting", "plan", "tie_efficiency", *NUMBERS, *ends]
    return pd.DataFrame(rows, columns=columns)


def _where(one: dict[str, Any]) -> str:
    """How many domains in how many groups, and how often they talk."""
    domains, groups = sum(len(p["domains"]) for p in one["plan"]), len(one["plan"])
    counts = [
        f"{n} {word}{'s' if n > 1 else ''}" for n, word in ((domains, "domain"), (groups, "group"))
    ]
    way = f", H {one['exchange']['sync_period']}, {one['exchange']['wire_bits']} bits"
    return " in ".join(counts) + (way if groups > 1 else "")


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
