"""What a scheduler would deploy that has learned how links move: one more proposal where no search is
exact."""

from __future__ import annotations

import dataclasses
from typing import Any

from experiments.evaluate import requested_without_truth
from experiments.plan.answer import answer_of, carried
from experiments.plan.candidates import Candidates, Found, distinct, groups_of, joined
from experiments.plan.config import PlanConfig
from experiments.plan.question import Question
from experiments.plan.thresholds import talks
from experiments.respond import RespondConfig, make_responder
from jaxsim.plan import Plan


def check_policy(config: PlanConfig) -> None:
    """Raises InputError where --policy names nobody who could be asked."""
    if config.policy is not None:
        requested_without_truth(config.policy, "policy")


def ask_policy(
    config: PlanConfig, question: Question, candidates: Candidates
) -> tuple[Candidates, dict[str, Any] | None]:
    """The candidates with the policy's plan among them, and what is told of it; None where nobody is
    to be asked. Where the search is exact there is nothing to ask."""
    if config.policy is None:
        return candidates, None
    found = candidates.found[config.allow]
    told = {"name": config.policy, "asked": found.search != "exact", "answer": None}
    if not told["asked"]:
        return candidates, told
    plan = _deployed(config)
    (one,) = carried([plan], question)
    if not one.runs:
        return candidates, told
    candidates = _named(joined(candidates, [plan], question), config, plan, found)
    searched = 0.0 if found.best is None else found.best.least
    return candidates, told | {
        "answer": answer_of(one, question, config.bill, config.tokens),
        "talks": talks(one.plan),
        "same_place": found.best is not None and groups_of(plan) == groups_of(found.best.plan),
        # Both at the lower end of their bands; what the search came to alone.
        "gain_pct": 100.0 * (one.least / searched - 1.0) if searched else None,
    }


def _named(candidates: Candidates, config: PlanConfig, plan: Plan, before: Found) -> Candidates:
    """The candidates, told to be the policy's where its plan is the best, which the search neither had
    nor can prove."""
    found = candidates.found[config.allow]
    if found.best is None or found.search == "exact" or len(distinct([found.best.plan, plan])) > 1:
        return candidates
    if before.best is not None and len(distinct([before.best.plan, plan])) == 1:
        return candidates
    named = dataclasses.replace(found, search=str(config.policy))
    return dataclasses.replace(candidates, found={**candidates.found, config.allow: named})


def _deployed(config: PlanConfig) -> Plan:
    """The policy's first choice on the links that the cluster file states."""
    responder = make_responder(
        RespondConfig(
            scheduler=str(config.policy),
            cluster=config.cluster,
            model=config.model,
            global_batch=config.global_batch,
            seq=config.seq,
            efficiency=config.efficiency,
            allow=config.allow,
        )
    )
    return responder.plan
