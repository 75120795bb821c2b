"""From a question to the whole answer: plans, runners-up, thresholds, trade-off, what-if, pictures."""

from __future__ import annotations

import dataclasses
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from analysis.records import RunWriter, now
from experiments.common import note_efficiency, progress, put_result
from experiments.evaluate import compile_trust
from experiments.plan.answer import Carried, answer_of, carried, hourly
from experiments.plan.bottleneck import link_gains
from experiments.plan.candidates import Candidates, distinct, groups_of, search_plans
from experiments.plan.config import PlanConfig
from experiments.plan.export import check_folder, export_plan, job_of, passes_of
from experiments.plan.orders import in_other_orders
from experiments.plan.policy import ask_policy, check_policy
from experiments.plan.question import SECONDS_PER_DAY, Question, asked, objective_of
from experiments.plan.remarks import WORTH_TELLING_PCT, weighted
from experiments.plan.screen import dry_text, screen
from experiments.plan.spot import spot_of
from experiments.plan.thresholds import Thresholds, switch, talks
from experiments.runs import compared
from jaxsim.files import InputError
from jaxsim.plan import Plan, describe, empty_plan
from jaxsim.planning.exact import is_synchronous

SETTINGS = ("synchronous", "any")


def make_plan(config: PlanConfig) -> None:
    """Answer, say it and write the run folder. Raises InputError, RecordError."""
    started = now()
    RunWriter.check("plan", config.out)
    if config.export is not None:
        check_folder(config.export)
    check_policy(config)
    if config.dry_run:
        result = dry(config)
        if put_result(result, config.json):
            print(dry_text(result))
        return
    question = asked(config)
    result = answered(config, question)
    # Before the run folder: what a format refuses leaves nothing behind.
    result["export"] = launched(config, question, result)
    with RunWriter.create("plan", _recorded(config), 0, config.out, started=started) as writer:
        result["figures"] = _pictures(config, result, writer)
        writer.finish(result)
    if put_result(result, config.json):
        print(screen(result))
        print(f"run folder: {writer.dir}")


def _recorded(config: PlanConfig) -> dict[str, Any]:
    return {k: v for k, v in dataclasses.asdict(config).items() if k not in ("json", "dry_run")}


def launched(config: PlanConfig, question: Question, result: dict[str, Any]) -> dict | None:
    """Write the launch files of the best plan, if they are asked for. Raises InputError where no plan
    can run, and where the format cannot express it."""
    if config.export is None or config.format is None:
        return None
    told = result["alternatives"][config.allow]
    if told is None:
        raise InputError("export: no plan can run, so there is nothing to launch")
    fields = {name: np.asarray(value) for name, value in told["plan"]["fields"].items()}
    plan = Plan(**fields)
    passes = passes_of(plan, question.problem, question.view)
    job = job_of(plan, question.spec, question.job, config.model, told, passes)
    files = export_plan(job, config.format, config.export)
    return {"folder": config.export, "format": config.format, "files": files}


def dry(config: PlanConfig) -> dict[str, Any]:
    """The files are read and checked; how large the search is, and how long the most alike of the
    finished ones took."""
    question = asked(config, with_changes=config.what_if is not None)
    domains = int(np.asarray(question.problem.cluster.mask).sum())
    space = question.space
    return {
        "cluster": question.spec.name,
        "domains": domains,
        "gpus": question.gpus,
        "model": config.model,
        "gparams": float(question.problem.work.gparams),
        "groups": len(space.orders(question.problem.cluster)),
        "ways_to_talk": len(space.exchanges()),
        "space": space.describe(),
        **compared("plan", _recorded(config)),
    }


def answered(config: PlanConfig, question: Question) -> dict[str, Any]:
    """The whole answer, as --json writes it."""
    start = time.perf_counter()
    objective = objective_of(config)
    source = note_efficiency(question.spec)
    bar_of = partial(progress, total=None, desc="plan", leave=False, bar_format="{desc}")
    with ThreadPoolExecutor(1) as beside_search, bar_of(disable=None) as bar:
        beside_search.submit(compile_ahead, question)
        candidates = search_plans(question, objective, config.quick, bar.set_description_str)
        bar.set_description_str("asking the policy")
        candidates, policy = ask_policy(config, question, candidates)
        told = {name: _told(candidates, name, config, question) for name in SETTINGS}
        best = candidates.found[config.allow].best
        bar.set_description_str("asking what would change the plan")
        beside = {} if config.quick else _beside(candidates, best, config, question)
        front = pareto(candidates, config, question) if config.pareto else []
        changed = None
        if config.what_if is not None:
            bar.set_description_str(f"asking what if {config.what_if}")
            changed = _what_if(config, candidates, best)
    found, space = candidates.found[config.allow], question.space
    body = told[config.allow] or {}
    top = ("plan", "step_s", "tokens_per_s", "memory_gb_max", "wan_gb_per_step", "usd_per_mtoken")
    return {
        **{name: body.get(name) for name in top},
        "gain_over_pct": _gains(candidates, best),
        "pareto": front,
        "alternatives": told,
        "tie_efficiency": _tie(candidates),
        "single_domain": _alone(candidates, config, question),
        "search": found.search,
        "gap_pct": found.gap_pct,
        "gap_pct_by_setting": {name: f.gap_pct for name, f in candidates.found.items()},
        "search_by_setting": {name: f.search for name, f in candidates.found.items()},
        "gap_of": "speed" if objective is None else "worth",
        # Domains of the longest pipelines that the gap is about; None = of all that are looked at.
        "gap_up_to": space.max_pipeline if space.longest_tried > space.max_pipeline else None,
        "allow": config.allow,
        "pool": len(candidates.pool),
        **{"probability_best": None, "runners_up": [], "changes": [], "ranked_by": None, **beside},
        "policy": policy,
        "what_if": changed,
        "asked": _asked(config, question, source),
        "wall_s": time.perf_counter() - start,
    }


def compile_ahead(question: Question) -> None:
    """Compile what every answer needs, by an empty plan: beside the search, which leaves a core free
    most of the time."""
    nothing = empty_plan(len(question.spec.domains))
    link_gains(nothing, question)
    compile_trust(question.problem, nothing)


def _told(
    candidates: Candidates, name: str, config: PlanConfig, question: Question
) -> dict[str, Any] | None:
    best = candidates.found[name].best
    if best is None:
        return None
    told = answer_of(best, question, config.bill, config.tokens)
    talk = talks(best.plan)
    spot = spot_of(best, told, question, 60.0 * config.checkpoint_minutes, config.bill)
    running = _running(candidates, name)
    orders = in_other_orders(best, running, question) if config.orders else []
    limits = _limits(best, config, question)
    return {**told, "talks": talk, **limits, "spot": spot, "orders": orders}


def _running(candidates: Candidates, name: str) -> list[Carried]:
    """Plans of the pool that run and belong to a setting."""
    return [
        one for one in candidates.pool if one.runs and (name == "any" or is_synchronous(one.plan))
    ]


def _limits(one: Carried, config: PlanConfig, question: Question) -> dict[str, bool]:
    """Which limits a plan that runs breaks, at the lower end of its bands."""
    late = dear = False
    if config.deadline is not None and config.tokens is not None:
        tokens_per_s = one.least * float(question.problem.work.tokens_per_step)
        late = config.tokens / tokens_per_s > config.deadline * SECONDS_PER_DAY
    if config.budget is not None:
        dear = hourly(one, question, config.bill) > config.budget
    return {"misses_deadline": late, "over_budget": dear}


def _within_limits(one: Carried, config: PlanConfig, question: Question) -> bool:
    return not any(_limits(one, config, question).values())


def _beside(
    candidates: Candidates, best: Carried | None, config: PlanConfig, question: Question
) -> dict[str, Any]:
    """Runners-up and thresholds, among the plans that --allow allows and that keep the limits. They are
    about speed: there are none where weights rank plans, or where nothing keeps the limits."""
    if best is None or weighted(config.weights) or not _within_limits(best, config, question):
        return {}
    running = _running(candidates, config.allow)
    pool = [one for one in running if _within_limits(one, config, question)]
    thresholds = Thresholds(question, pool, best)
    runners_up = thresholds.runners_up(config.bill)
    used = np.argwhere(np.asarray(best.cost.wan_gb) > 1e-9)
    rate = np.asarray(question.view.bandwidth_gb_per_s)
    busiest = sorted(used.tolist(), key=lambda at: -best.cost.wan_gb[tuple(at)] / rate[tuple(at)])
    names = question.spec.domains
    pairs = list(dict.fromkeys(tuple(sorted(at)) for at in busiest))[:3]
    links = [(names[i], names[j]) for i, j in pairs]
    chance = float(thresholds.chances()[0])
    changes = thresholds.changes(links)
    ranked = "speed" if candidates.objective is None else "speed within the limits"
    told = {"probability_best": chance, "runners_up": runners_up, "changes": changes}
    return {**told, "ranked_by": ranked, "pool": len(pool)}


def pareto(candidates: Candidates, config: PlanConfig, question: Question) -> list[dict[str, Any]]:
    """Plans of the pool that no other beats in both effective tokens/s and price, fastest first; both
    at the lower end of the bands of speed and of what tokens are worth."""
    tokens = float(question.problem.work.tokens_per_step)
    points = []
    for one in _running(candidates, config.allow):
        per_s = tokens * one.least
        usd = hourly(one, question, config.bill) / 3600.0 / per_s * 1e6
        points.append((per_s, usd, one))
    points.sort(key=lambda p: (-p[0], p[1]))
    front, cheapest = [], np.inf
    for per_s, usd, one in points:
        if usd < cheapest * (1.0 - 1e-6):
            cheapest = usd
            front.append(
                {
                    "plan": describe(one.plan, question.spec.domains),
                    "talks": talks(one.plan),
                    "effective_tokens_per_s_lo": per_s,
                    "usd_per_effective_mtoken_hi": usd,
                    "usd_per_hour": hourly(one, question, config.bill),
                    "wan_gb_per_step": float(np.sum(one.cost.wan_gb)),
                    "gpus": int(np.sum(one.cost.gpus_used)),
                }
            )
    return front


def _gains(candidates: Candidates, best: Carried | None) -> dict[str, float | None]:
    """[%] how much faster the best plan trains than the classical ways, each at the lower end of its
    bands."""

    def over(rival: Carried | None) -> float | None:
        if best is None or rival is None or not rival.runs:
            return None
        return 100.0 * (best.least / rival.least - 1.0)

    rivals = ("single_domain", "static_even_split")
    return {name: over(getattr(candidates, name)) for name in rivals}


def _alone(candidates: Candidates, config: PlanConfig, question: Question) -> dict[str, Any] | None:
    """The fastest plan inside one domain: where, how fast, at what price; None where none runs."""
    one = candidates.single_domain
    if one is None or not one.runs:
        return None
    tokens_per_s = float(question.problem.work.tokens_per_step) / float(one.cost.step_s)
    return {
        "plan": describe(one.plan, question.spec.domains),
        "tokens_per_s": tokens_per_s,
        "usd_per_mtoken": hourly(one, question, config.bill) / 3600.0 / tokens_per_s * 1e6,
    }


def _tie(candidates: Candidates) -> float | None:
    """What a token of the best of any plans must be worth to tie with the best synchronous one, both as
    slow as their bands say; None where they are the same kind of training."""
    plain, other = (candidates.found[name].best for name in SETTINGS)
    if plain is None or other is None or is_synchronous(other.plan):
        return None
    return plain.least * float(other.cost.step_s) * float(np.exp(other.reach))


def _what_if(config: PlanConfig, before: Candidates, best: Carried | None) -> dict[str, Any]:
    """The same question with the changes: the plan of before, the best one now, and the switch. Plans
    of the pool are looked at as well, so that the answer agrees with the thresholds."""
    question = asked(config, with_changes=True)
    known = [one.plan for one in before.pool if not _gone(one.plan, question)]
    again = search_plans(question, objective_of(config), quick=True, known=known)
    now = again.found[config.allow].best
    keeps = None if best is None else _kept(best, question)
    stays = keeps.least if keeps is not None else 0.0
    told = {
        "changes": config.what_if,
        "kept": None,
        "best": None if now is None else answer_of(now, question, config.bill, config.tokens),
        "switch": None,
        "gain_pct": None,
        "keep": False,  # the plan of before is as good as any
        "kept_breaks": {},
    }
    if stays and keeps is not None:
        told["kept"] = answer_of(keeps, question, config.bill, config.tokens)
        told["kept_breaks"] = _limits(keeps, config, question)
    if now is not None:
        told["keep"] = bool(stays) and _is_kept(keeps, now, config, question)
        told["talks"] = talks(now.plan)
        told["same_place"] = best is not None and groups_of(best.plan) == groups_of(now.plan)
        if stays:
            told["gain_pct"] = 100.0 * (now.least / stays - 1.0)
        if best is not None:
            told["switch"] = switch(best.plan, now.plan, question, stays, now.least)
    return told


def _is_kept(kept: Carried, now: Carried, config: PlanConfig, question: Question) -> bool:
    """Is there no reason to leave the plan of before? Where weights count, only if it is still the
    best; else if none that keeps the limits is faster."""
    if len(distinct([kept.plan, now.plan])) == 1:
        return True
    if weighted(config.weights):
        return False
    breaks = not _within_limits(kept, config, question) and _within_limits(now, config, question)
    return not breaks and 100.0 * (now.least / kept.least - 1.0) < WORTH_TELLING_PCT


def _kept(best: Carried, question: Question) -> Carried | None:
    """The plan of before under the changes; None where a domain of it is gone."""
    return None if _gone(best.plan, question) else carried([best.plan], question)[0]


def _gone(plan: Plan, question: Question) -> bool:
    """Has a domain of the plan no GPUs left?"""
    names = question.spec.domains
    used = {names[k] for k in np.flatnonzero(np.asarray(plan.group) >= 0)}
    return bool(question.gone & used)


def _asked(config: PlanConfig, question: Question, source: dict) -> dict[str, Any]:
    """What the answer is about."""
    spec = question.spec
    return {
        "cluster": spec.name,
        "domains": dict(zip(spec.domains, spec.gpus, strict=True)),
        "gpu": ", ".join(dict.fromkeys(spec.gpu_words)),
        "stack": spec.stack,
        "gpu_of": dict(zip(spec.domains, spec.gpu_words, strict=True)),
        "rtt_ms": np.asarray(spec.rtt_ms).tolist(),
        "model": config.model,
        "gparams": float(question.problem.work.gparams),
        "global_batch": config.global_batch,
        "seq": config.seq,
        "weights": config.weights,
        "quick": config.quick,
        "bill": config.bill,
        "tokens": config.tokens,
        "deadline": config.deadline,
        "budget": config.budget,
        "efficiency_of_gpus": source,
        "space": question.space.describe(),
    }


def _pictures(config: PlanConfig, result: dict[str, Any], writer: RunWriter) -> list[str]:
    """Draw what was asked for; returns the files, relative to the run folder."""
    files: list[Path] = []
    if config.figure and result["alternatives"][config.allow] is not None:
        from analysis.figures import plan_map, save

        files.append(save(plan_map(result), writer.figures / "plan.png"))
    if config.pareto and result["pareto"]:
        from analysis.figures import plan_front, save

        files.append(save(plan_front(result), writer.figures / "pareto.png"))
    return [str(path.relative_to(writer.dir)) for path in files]
