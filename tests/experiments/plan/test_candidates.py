"""Of plans that are about as fast the surest is chosen: by the lower end of what is predicted."""

import dataclasses
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from experiments.evaluate import least_reach, plan_features, plan_trust
from experiments.plan import answer
from experiments.plan.answer import answer_of
from experiments.plan.candidates import (
    place_key,
    search_plans,
    surest,
    worthiest,
)
from experiments.plan.config import PlanConfig
from experiments.plan.planning import pareto
from experiments.plan.question import asked, objective_of
from experiments.plan.thresholds import Thresholds
from jaxsim.cluster.band import Domain
from jaxsim.cluster.cluster import ClusterSpec
from jaxsim.cluster.fits import shipped_fit
from jaxsim.planning.exact import Asked, is_synchronous, score

CONFIG = PlanConfig(model="llama-7b", global_batch=64, tokens=1e10)


@pytest.fixture(scope="module")
def found():
    question = asked(CONFIG)
    return question, search_plans(question, None, quick=True)


def narrowed(monkeypatch, most_gpus):
    """As if only runs on so many GPUs had been measured, of a model like this one: each doubling beyond
    makes the model's error ten times wider."""
    fit = shipped_fit("A100-80GB", "llm-foundry")
    domain = Domain({"gpus": (1.0, float(most_gpus))})
    band = dataclasses.replace(fit.band, per_doubling=10.0)
    changed = dataclasses.replace(fit, domain=domain, band=band)
    monkeypatch.setattr(ClusterSpec, "fit_of", lambda self, gpu: changed)


def gpus_of(one, question):
    return plan_features(question.problem.work, one.plan)[1]


def usd_per_hour(one, question):
    return answer_of(one, question, "used", None)["usd_per_hour"]


def test_a_carried_plan_is_as_sure_as_its_answer_says(found):
    question, candidates = found
    runs = [one for one in candidates.pool if one.runs]
    assert len(runs) > 20
    tokens = float(question.problem.work.tokens_per_step)
    for one in runs[:6]:
        per_s = tokens / float(one.cost.step_s)
        trust = plan_trust(question.spec, question.problem, one.plan, per_s)
        assert trust["tokens_per_s_lo"] == pytest.approx(per_s * np.exp(-one.reach), rel=1e-6)
        low, _ = answer_of(one, question, "used", None)["effective_tokens_per_s_band"]
        assert low == pytest.approx(tokens * one.least, rel=1e-5)
        assert one.reach >= least_reach(question.spec)


def test_the_pool_is_rated_as_one_plan_at_a_time(found):
    question, candidates = found
    plans = [one.plan for one in candidates.pool]
    whole = jax.tree.map(lambda *x: np.stack(x), *plans)
    np.testing.assert_array_equal(
        score(whole, question.view, question.problem), np.float32([o.rate for o in candidates.pool])
    )


def test_the_best_plan_of_each_setting_is_the_surest_of_its_plans(found):
    _, candidates = found
    for name, of in candidates.found.items():
        synchronous = name == "synchronous"
        least = [
            one.least
            for one in candidates.pool
            if not synchronous
            or (one.plan.sync_period, one.plan.wire_bits, one.plan.activation_bits) == (1, 16, 16)
        ]
        assert of.best.least == max(least) > 0.0
        assert of.gap_pct >= 0.0


def test_a_plan_beyond_what_was_measured_must_earn_its_wider_band(found, monkeypatch):
    """The fastest plan holds many GPUs. Where runs of 8 GPUs alone were measured, and error grows fast
    beyond, a plan within 8 GPUs is chosen; what is faster by prediction is in the gap."""
    question, before = found
    assert gpus_of(before.found["any"].best, question) > 8
    narrowed(monkeypatch, most_gpus=8)
    after = search_plans(question, None, quick=True)
    best, of = after.found["any"].best, after.found["any"]
    assert gpus_of(best, question) <= 8
    fastest = max(after.pool, key=lambda one: one.rate)
    assert fastest.rate > best.rate and fastest.least < best.least
    assert of.search == "beam"
    assert of.gap_pct >= 100.0 * (fastest.rate / best.rate - 1.0) - 1e-3
    # All that is said of other plans is measured the same way.
    thresholds = Thresholds(question, list(after.pool), best)
    told = thresholds.runners_up("used")
    assert all(one["behind_pct"] >= 0.0 for one in told)
    front = pareto(after, CONFIG, question)
    tokens = float(question.problem.work.tokens_per_step)
    assert front[0]["effective_tokens_per_s_lo"] == pytest.approx(tokens * best.least)
    # Weights that ask for speed alone, and a deadline that nobody misses, choose the same plan.
    lax = dataclasses.replace(CONFIG, deadline=1e6)
    asked = Asked(objective_of(lax), 60.0 * best.least)
    assert worthiest(list(after.pool), question, asked) is best


@pytest.mark.nightly
def test_a_budget_has_a_bound_of_its_own_and_no_plan_of_the_pool_is_worth_more(found):
    """Nothing that keeps to it is as fast as what was found, times what the gap says."""
    question, before = found
    dear = usd_per_hour(before.found["any"].best, question)
    objective = objective_of(dataclasses.replace(CONFIG, budget=0.5 * dear))
    after = search_plans(question, objective, quick=True)
    for name, of in after.found.items():
        assert usd_per_hour(of.best, question) <= 0.5 * dear and of.gap_pct >= 0.0
        result = after.sought[name].result
        assert result.bound >= result.worth > 0.0
        pool = [one for one in after.pool if name == "any" or is_synchronous(one.plan)]
        within = [one.rate for one in pool if usd_per_hour(one, question) <= 0.5 * dear]
        assert max(within) <= of.best.rate * (1 + of.gap_pct / 100) * (1 + 1e-5)


def test_of_two_that_are_alike_the_probability_is_shared():
    one = SimpleNamespace(rate=1.0, least=0.9, plan=None)
    thresholds = SimpleNamespace(best=one, carried=[one, one], others=[1])
    chance = Thresholds.chances(thresholds)
    assert chance == pytest.approx([0.5, 0.5], abs=0.03)
    sure = SimpleNamespace(rate=1.0, least=0.99, plan=None)
    half = SimpleNamespace(rate=0.5, least=0.49)
    chance = Thresholds.chances(SimpleNamespace(best=sure, carried=[sure, half], others=[1]))
    assert chance == pytest.approx([1.0, 0.0], abs=1e-6)


def test_nothing_is_the_surest_of_none_and_of_what_cannot_run():
    dead = answer.Carried(None, None, 0.0, 0.0)
    assert surest([]) is None and surest([dead]) is None
    slow, sure = answer.Carried(None, None, 1.0, 0.5), answer.Carried(None, None, 0.9, 0.1)
    assert surest([dead, slow, sure]) is sure
    assert slow.least == pytest.approx(np.exp(-0.5)) and not dead.runs


def test_the_same_groups_in_another_ring_are_one_place(found):
    _, candidates = found
    plan = next(
        o.plan for o in candidates.pool if o.plan.group.max() == 2 and (o.plan.group >= 0).all()
    )
    turned = np.array([1, 2, 0])  # group g is called turned[g]
    fields = {}
    for name in ("dp", "micro_batch", "recompute", "schedule", "batch_share"):
        values = np.array(getattr(plan, name))
        values[turned] = getattr(plan, name)[:3]
        fields[name] = values
    other = plan.replace(group=turned[plan.group], **fields)
    assert place_key(other) == place_key(plan)
    assert place_key(plan.replace(sync_period=np.int32(1 if plan.sync_period > 1 else 30))) != (
        place_key(plan)
    )
    swapped = plan.group.copy()
    swapped[[0, 1]] = swapped[[1, 0]]
    if plan.group[0] != plan.group[1] and np.bincount(plan.group).max() > 1:
        assert place_key(plan.replace(group=swapped)) != place_key(plan)
