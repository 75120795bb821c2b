"""The orders of operations that no search looks at: the leading plans in each of them.

Interleaved, ZB-H1 and greedy orders are timed operation by operation, milliseconds a plan where a
closed form takes microseconds. A search scores thousands; here a few plans are asked for once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.plan.answer import Carried
from experiments.plan.question import Question
from jaxsim.plan import PLAYED_SCHEDULES, LowerChoices, Plan, Recompute, Schedule, describe
from jaxsim.planning.exact import finish_each
from jaxsim.trees import stack_numpy, take

LEADING = 12  # plans that are tried, the most promising in the search's own orders


def in_other_orders(
    best: Carried, pool: Sequence[Carried], question: Question
) -> list[dict[str, Any]]:
    """One entry per order: the fastest of the LEADING plans in it, with any micro-batch and
    recomputation of the menu, and by how much that is faster than `best`, both at predicted speed;
    fields of None where none of them fits.

    `pool` holds other plans of the same setting, that run.
    """
    ranked = sorted(pool, key=lambda one: -one.least)[: LEADING - 1]
    leading = [best.plan, *(one.plan for one in ranked)]
    settings = sorted(set(question.problem.choices.settings))
    rows = [(*setting, order) for order in PLAYED_SCHEDULES for setting in settings]
    problem = question.problem.replace(choices=LowerChoices.of(rows))
    plans = [_with(plan, *row) for row in rows for plan in leading]
    done, costs, rates = finish_each(stack_numpy(plans), question.view, problem)
    told = []
    for order in PLAYED_SCHEDULES:
        own = np.where(done.schedule[:, 0] == order, rates, 0.0)
        top = int(own.argmax())
        body = {"order": order.word, "plan": None, "step_s": None, "gain_pct": None}
        if own[top] > 0.0:
            body |= _told(take(done, top), question) | {
                "step_s": float(costs.step_s[top]),
                "gain_pct": 100.0 * (float(own[top]) / best.rate - 1.0),
            }
        told.append(body)
    return told


def _with(plan: Plan, micro_batch: int, recompute: int, order: Schedule) -> Plan:
    """The plan with these settings in all its groups."""
    lower = {"micro_batch": micro_batch, "recompute": recompute, "schedule": int(order)}
    fields = {name: np.full_like(getattr(plan, name), value) for name, value in lower.items()}
    return plan.replace(**fields)


def _told(plan: Plan, question: Question) -> dict[str, Any]:
    return {
        "plan": describe(plan, question.spec.domains),
        "micro_batch": int(plan.micro_batch[0]),
        "recompute": Recompute(int(plan.recompute[0])).label,
    }
