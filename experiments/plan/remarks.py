"""What the screen says below its table: what a first-time user would not guess."""

from __future__ import annotations

import math
from typing import Any

from experiments.common import parse_weights, tie_text
from jaxsim.plan import Schedule

SETTINGS = {"synchronous": "best synchronous plan", "any": "best of any plan"}
MUCH_CHEAPER_PCT = 10.0  # a token; then one domain alone is worth a remark
WORTH_TELLING_PCT = 0.05  # of speed; less is rounding


def remarks(result: dict[str, Any]) -> list[str]:
    """What a first-time user would not guess."""
    told, lines = result["alternatives"], []
    plain, other = told["synchronous"], told["any"]
    if plain and other and plain["plan"]["label"] != other["plan"]["label"]:
        lone = not any(sign in plain["plan"]["label"] for sign in "|>")
        if lone and other["plan"]["sync_period"] > 1:
            lines.append(
                f"On these links the best synchronous plan sits in {plain['plan']['label']} alone; "
                f"local SGD (sync every {other['plan']['sync_period']} steps) uses "
                f"{other['plan']['label'].replace(' | ', ', ').replace('>', ', ')}."
            )
    lines += _cheaper(result["single_domain"], plain)
    for name, one in told.items():
        spot = one["spot"] if one else None
        if spot:
            lines.append(_spot_pays(SETTINGS[name], spot["pays_up_to_times"]))
    if result["tie_efficiency"] is not None:
        tied = tie_text(result["tie_efficiency"], told["synchronous"]["efficiency"])
        lines.append(f"The two {tied}.")
    for name, gain in result["gain_over_pct"].items():
        if gain is not None and gain > WORTH_TELLING_PCT:
            lines.append(
                f"{gain:,.1f} % faster than {name.replace('_', ' ')} (at the lower end of the bands)."
            )
    for name, one in told.items():
        lines += _orders(SETTINGS[name], one)
    lines += _policy(result["policy"])
    if best_is_open(result):
        lines.append("--policy hi_ppo+search asks the shipped policy as well, which takes minutes.")
    best = told[result["allow"]]
    if best and best["misses_deadline"]:
        lines.append("No plan found meets the deadline at the lower end of its bands.")
    if best and best["over_budget"]:
        lines.append("No plan found keeps to the budget.")
    if weighted(result["asked"]["weights"]) and not result["asked"]["quick"]:
        lines.append("Runners-up and thresholds are about speed, and are left out under --weights.")
    if any(one and one["extrapolated"] for one in told.values()):
        lines.append("* no published run of local SGD is near: extrapolated")
    if result["gap_up_to"] is not None and any(told.values()):
        lines.append(
            f"What the search says of other plans is about pipelines over up to {result['gap_up_to']} "
            "domains; longer ones were tried from the best plans on."
        )
    lines += _doubts(told)
    return ["", *dict.fromkeys(lines)] if lines else []


def best_is_open(result: dict[str, Any]) -> bool:
    """Might there be a better plan than the search could look at, and was no policy asked?"""
    return result["search"] == "beam" and result["policy"] is None


def weighted(weights: str) -> bool:
    """Does more than speed and limits count?"""
    return any(parse_weights(weights)[1:])


def _orders(which: str, one: dict[str, Any] | None) -> list[str]:
    """What orders that the search leaves out would bring, where they were asked for."""
    lines = []
    for told in one["orders"] if one else ():
        order, gain = Schedule.of(told["order"], "order").label, told["gain_pct"]
        if gain is None:
            lines.append(f"In {order} order no plan beside the {which} fits.")
            continue
        side = "faster" if gain > 0 else "slower"
        lines.append(
            f"In {order} order {abs(gain):.1f} % {side} than the {which}: {told['plan']}, step "
            f"{told['step_s']:,.2f} s, micro-batches of {told['micro_batch']}, recompute "
            f"{told['recompute']}."
        )
    return lines


def _policy(told: dict[str, Any] | None) -> list[str]:
    """What the policy came to, beside the search; both at the lower end of their bands."""
    if told is None:
        return []
    name, answer = told["name"], told["answer"]
    if not told["asked"]:
        return [f"{name} was not asked: the search is exact."]
    if answer is None:
        return [f"{name} has no plan that runs."]
    gain = told["gain_pct"]
    if gain is not None and told["same_place"] and abs(gain) <= WORTH_TELLING_PCT:
        return [f"{name} would deploy what the search found."]
    beside = f"{name} would deploy {answer['plan']['label']} ({told['talks']})"
    if told["same_place"]:
        beside = f"{name} would use the same domains, laid out otherwise ({told['talks']})"
    if gain is None:
        return [f"{beside}; the search found nothing that runs."]
    side = "faster" if gain > 0 else "slower"
    return [
        f"{beside}: on these links {abs(gain):.1f} % {side} than what the search found, "
        f"{answer['usd_per_effective_mtoken']:.3f} USD per M effective."
    ]


def _doubts(told: dict[str, dict[str, Any] | None]) -> list[str]:
    """Every reason to doubt a plan, and which of the two it is about."""
    of = {name: one["doubts"] if one else [] for name, one in told.items()}
    both = [doubt for doubt in of["synchronous"] if doubt in of["any"]]
    lines = [f"note: {doubt}" for doubt in both]
    for name, doubts in of.items():
        lines += [f"note on the {SETTINGS[name]}: {d}" for d in doubts if d not in both]
    tight = [x for x in told.values() if x and x["memory_gb_max_hi"] > x["memory_gb_held"]]
    if tight:
        # So much free that the upper end of a band as wide as theirs fits.
        pct = max(100.0 * (1.0 - x["memory_gb_max"] / x["memory_gb_max_hi"]) for x in tight)
        lines.append(
            f"A plan that fits at the upper end of its band, too: --reserve-pct {math.ceil(pct)}."
        )
    return lines


def _cheaper(lone: dict[str, Any] | None, plain: dict[str, Any] | None) -> list[str]:
    """What one domain alone would do, where it is much cheaper than the best synchronous plan."""
    if lone is None or plain is None or lone["plan"] == plain["plan"]["label"]:
        return []
    slower = 100.0 * (1.0 - lone["tokens_per_s"] / plain["tokens_per_s"])
    saves = 100.0 * (1.0 - lone["usd_per_mtoken"] / plain["usd_per_mtoken"])
    if saves < MUCH_CHEAPER_PCT:
        return []
    return [
        f"{lone['plan']} alone is {slower:.0f} % slower than the best synchronous plan, and a token "
        f"costs {saves:.0f} % less there."
    ]


def _spot_pays(which: str, times: float | None) -> str:
    if times is None:
        return f"Spot GPUs pay for the {which} however often they are taken (up to 100 times as often)."
    if times <= 0.0:
        return f"Spot GPUs never pay for the {which}: they cost as much."
    return f"Spot GPUs pay for the {which} until they are taken {times:.1f} times as often."
