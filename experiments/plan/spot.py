"""What a plan comes to on spot GPUs: cheaper, but taken away at times.

A reclaim takes all GPUs of one domain. A plan that syncs in every step stops as a whole: until they are
back, for the restart, and for what it computed since its last checkpoint, half an interval in the mean
(Young 1974). Of a plan whose groups train on their own for H steps (local SGD) that group alone stops;
what it loses is half of its H steps, for the others hold the state, which it fetches over its fastest
link. Reclaims of different domains are independent and rare enough not to meet.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from experiments.plan.answer import Carried
from experiments.plan.question import Question
from jaxsim.workload import MOVED_STATE_BYTES

MOST_TIMES, HALVINGS = 100.0, 60  # how much more often reclaims may be asked to be, and how exactly


def spot_of(
    one: Carried, told: dict[str, Any], question: Question, checkpoint_s: float, bill: str = "used"
) -> dict[str, Any] | None:
    """The plan with the spot GPUs of every domain that offers them, beside what was `told` of it; None
    where it uses no such domain. `bill`: all = GPUs that it leaves idle are paid for as well."""
    used = np.flatnonzero(np.asarray(one.plan.group) >= 0)
    offers = {k: offer for k in used.tolist() if (offer := _offer(question, k)) is not None}
    if not offers:
        return None

    idle_usd = told["idle_usd_per_hour"] if bill == "all" else 0.0

    def per_mtoken(times: float) -> float:
        lasting = _lasting(one, question, checkpoint_s, times)
        usd = idle_usd + _usd_per_hour(one, question, lasting, times)
        return usd / 3600.0 / (told["effective_tokens_per_s"] * lasting) * 1e6

    lasting = _lasting(one, question, checkpoint_s, 1.0)
    price, listed = per_mtoken(1.0), told["usd_per_effective_mtoken"]
    return {
        "domains": [question.spec.domains[k] for k in offers],
        "reclaims_per_day": sum(offer.reclaims_per_day for offer in offers.values()),
        "time_lost_pct": 100.0 * (1.0 - lasting),
        "effective_tokens_per_s": told["effective_tokens_per_s"] * lasting,
        "usd_per_hour": idle_usd + _usd_per_hour(one, question, lasting, 1.0),
        "usd_per_effective_mtoken": price,
        "saves_pct": 100.0 * (1.0 - price / listed),
        "days": None if told["days"] is None else told["days"] / lasting,
        "pays_up_to_times": _pays_up_to(per_mtoken, listed),
    }


def _offer(question: Question, k: int) -> Any:
    return question.spec.spot[k] if question.spec.spot else None


def _lasting(one: Carried, question: Question, checkpoint_s: float, times: float) -> float:
    """Share of the tokens that is left, where reclaims come `times` as often."""
    plan, group = one.plan, np.asarray(one.plan.group)
    on_their_own = int(plan.sync_period) > 1
    step_s, period = float(one.cost.step_s), int(plan.sync_period)
    restart_s = float(question.problem.calibration.restart_s)
    stops = np.zeros(int(group.max()) + 1)  # [s] lost for every second of training, by group
    for k in np.flatnonzero(group >= 0).tolist():
        if (offer := _offer(question, k)) is None:
            continue
        again_s = (
            0.5 * period * step_s + _fetch_s(k, question) if on_their_own else 0.5 * checkpoint_s
        )
        stops[group[k]] += times * offer.reclaims_per_s * (offer.away_s + restart_s + again_s)
    if not on_their_own:
        return float(1.0 / (1.0 + stops.sum()))
    n = stops.size
    share = np.asarray(plan.batch_share * plan.micro_batch * plan.dp, float)[:n]
    return float(np.sum(share / share.sum() / (1.0 + stops)))


def _fetch_s(k: int, question: Question) -> float:
    """[s] in which a domain that was away fetches the state over its fastest link."""
    rate = np.asarray(question.view.bandwidth_gb_per_s)[:, k]
    fastest = float(rate.max()) * float(question.problem.calibration.wan_efficiency)
    state_gb = float(question.problem.work.gparams) * MOVED_STATE_BYTES
    return state_gb / fastest if fastest > 0 else 0.0


def _usd_per_hour(one: Carried, question: Question, lasting: float, times: float) -> float:
    """[USD/h] of GPUs and egress: spot GPUs while they are there, the others all the time."""
    usd = 3600.0 * float(one.cost.egress_usd) / float(one.cost.step_s) * lasting
    prices = question.spec.usd_per_gpu_hour
    for k, gpus in enumerate(np.asarray(one.cost.gpus_used).tolist()):
        offer = _offer(question, k) if k < len(prices) else None
        if offer is None:
            usd += gpus * (prices[k] if k < len(prices) else 0.0)
        else:
            usd += gpus * offer.usd_per_gpu_hour * offer.there(times)
    return usd


def _pays_up_to(per_mtoken: Any, listed: float) -> float | None:
    """How many times as often reclaims may come until spot costs as much as the list price: 0 where
    it never pays, None where it still does at MOST_TIMES."""
    if per_mtoken(0.0) >= listed:
        return 0.0
    if per_mtoken(MOST_TIMES) < listed:
        return None
    low, high = 0.0, MOST_TIMES
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if per_mtoken(middle) < listed else (low, middle)
    return low
