"""What a reader wants to know of a plan: speed and bands, days, USD, memory, bytes over each link."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.evaluate import in_calibrated_domain, plan_trust, speed_reaches
from experiments.plan.bottleneck import bound_by
from experiments.plan.question import SECONDS_PER_DAY, Question
from jaxsim.plan import Plan, describe, whole_plan
from jaxsim.planning import Exchange
from jaxsim.planning.exact import finish_each, usd_per_hour
from jaxsim.step_time import StepCost, communication
from jaxsim.trees import stack_numpy, take

WAYS = tuple(field.name for field in dataclasses.fields(Exchange))
HIDDEN_BELOW_GB = 1e-9


@dataclasses.dataclass(frozen=True)
class Carried:
    """A plan with its shares, what a step of it costs, and at which rate it trains."""

    plan: Plan  # NumPy leaves
    cost: StepCost
    rate: float  # [training steps / s] at the lower end of what tokens are worth; 0 = cannot run
    reach: float  # half the 90 % band of the speed, in logarithms

    @property
    def runs(self) -> bool:
        return self.rate > 0.0

    @property
    def least(self) -> float:
        """[training steps / s] at the lower end of both bands, of worth and of speed: by this plans are
        chosen. The fastest of many is among those whose speed is overestimated most."""
        return self.rate * float(np.exp(-self.reach))


def carried(plans: Sequence[Plan], question: Question) -> list[Carried]:
    """Each of the plans, its shares dealt anew, under the question's links; NumPy leaves."""
    if not plans:
        return []
    done, costs, rates = finish_each(stack_numpy(plans), question.view, question.problem)
    each = [take(done, i) for i in range(len(plans))]
    reaches, runs = np.zeros(len(plans)), np.flatnonzero(rates > 0.0)
    reaches[runs] = speed_reaches(question.spec, question.problem, [each[i] for i in runs])
    return [
        Carried(plan, take(costs, i), float(rates[i]), float(reaches[i]))
        for i, plan in enumerate(each)
    ]


def plan_body(plan: Plan, question: Question) -> dict[str, Any]:
    """The plan itself: for people by pipelines, for programs field by field."""
    return {
        "label": describe(plan, question.spec.domains),
        "groups": whole_plan(plan, question.spec.domains),
        **{name: int(getattr(plan, name)) for name in WAYS},
        "fields": {name: np.asarray(getattr(plan, name)).tolist() for name in vars(plan)},
    }


def answer_of(one: Carried, question: Question, bill: str, tokens: float | None) -> dict[str, Any]:
    """Everything about one plan that runs."""
    problem, cost, spec = question.problem, one.cost, question.spec
    step_s = float(cost.step_s)
    tokens_per_s = float(problem.work.tokens_per_step) / step_s
    band = problem.learning.band(communication(jax.tree.map(jnp.asarray, one.plan), problem.work))
    low, centre, high = (float(x) for x in (band.low, band.centre, band.high))
    trust = plan_trust(spec, problem, one.plan, tokens_per_s)
    # A step as slow and as fast as the 90 % band of the speed says.
    step_band = [step_s * tokens_per_s / trust[f"tokens_per_s_{end}"] for end in ("hi", "lo")]
    bills = {name: hourly(one, question, name) for name in ("used", "all")}
    usd_per_hour = bills[bill]
    usd_per_mtoken = usd_per_hour / 3600.0 / tokens_per_s * 1e6
    idle = np.asarray(problem.cluster.gpus) - np.asarray(cost.gpus_used)
    return {
        "plan": plan_body(one.plan, question),
        "step_s": step_s,
        "step_s_band": step_band,
        "tokens_per_s": tokens_per_s,
        "efficiency": centre,
        "efficiency_band": [low, high],
        "extrapolated": bool(band.extrapolated),
        "effective_tokens_per_s": centre * tokens_per_s,
        "effective_tokens_per_s_band": [
            low * trust["tokens_per_s_lo"],
            high * trust["tokens_per_s_hi"],
        ],
        "usd_per_hour": usd_per_hour,
        "usd_per_mtoken": usd_per_mtoken,
        "usd_per_effective_mtoken": usd_per_mtoken / centre,
        "idle_gpus": int(idle.sum()),
        "idle_usd_per_hour": bills["all"] - bills["used"],
        "memory_gb_max": trust["memory_gb"],
        "memory_gb_max_hi": trust["memory_gb_hi"],
        "memory_gb_held": trust["memory_gb_held"],
        "memory_gb": dict(
            zip(spec.domains, np.asarray(cost.memory_gb, float).tolist(), strict=True)
        ),
        "wan_gb_per_step": float(np.sum(cost.wan_gb)),
        "wan": _links(one, question),
        "in_calibrated_domain": in_calibrated_domain(spec, problem.work, one.plan),
        "doubts": trust["doubts"],
        "bound_by": bound_by(one.plan, cost, question),
        **_totals(tokens, usd_per_mtoken, [x * tokens_per_s for x in (low, centre, high)], trust),
    }


def hourly(one: Carried, question: Question, bill: str) -> float:
    """[USD/h] of GPUs, as billed, and egress while the plan trains."""
    cluster = question.problem.cluster
    paid = one.cost.gpus_used if bill == "used" else cluster.gpus
    return usd_per_hour(one.cost, paid, cluster)


def _totals(
    tokens: float | None, usd_per_mtoken: float, effective: list[float], trust: dict
) -> dict[str, Any]:
    """Days and USD for the tokens; both ends carry the bands of speed and of what a token is worth."""
    if tokens is None:
        return {"tokens": None, "days": None, "days_band": None, "usd": None, "usd_band": None}
    low, centre, high = effective
    speed = trust["tokens_per_s_hi"] / trust["tokens_per_s_lo"]
    reach = speed**0.5  # the band of the speed is as far above as below, in logarithms
    days = tokens / centre / SECONDS_PER_DAY
    ends = [tokens / (high * reach), tokens / (low / reach)]
    raw = trust["tokens_per_s_hi"] / reach
    usd_per_day = usd_per_mtoken * raw / 1e6 * SECONDS_PER_DAY
    days_band = [seconds / SECONDS_PER_DAY for seconds in ends]
    return {
        "tokens": tokens,
        "days": days,
        "days_band": days_band,
        "usd": usd_per_day * days,
        "usd_band": [usd_per_day * d for d in days_band],
    }


def _links(one: Carried, question: Question) -> list[dict[str, Any]]:
    """Every WAN link that carries something: GB a step, and for how much of the time it is busy."""
    gb, rate = np.asarray(one.cost.wan_gb), np.asarray(question.view.bandwidth_gb_per_s)
    names, step_s = question.spec.domains, float(one.cost.step_s)
    ring = np.asarray(one.cost.sync_gb) > HIDDEN_BELOW_GB
    return [
        {
            "src": names[i],
            "dst": names[j],
            "gb_per_step": float(gb[i, j]),
            "busy": float(gb[i, j] / (rate[i, j] * step_s)),
            "gbps": float(8.0 * rate[i, j]),
            "kind": "ring" if ring[i, j] else "pipeline",
        }
        for i, j in np.argwhere(gb > HIDDEN_BELOW_GB).tolist()
    ]
