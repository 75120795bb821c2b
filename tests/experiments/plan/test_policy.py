"""A policy beside the search: who is asked, what its plan changes, what is said of it."""

import dataclasses

import jax
import numpy as np
import pytest

from experiments.cli import main
from experiments.plan import policy
from experiments.plan.candidates import SETTINGS, joined, search_plans, surest
from experiments.plan.config import PlanConfig
from experiments.plan.question import asked
from experiments.plan.remarks import _policy as sentence
from jaxsim.files import InputError
from jaxsim.plan import empty_plan
from jaxsim.planning.exact import is_synchronous

CLUSTER = """
name: two-sites
gpu: A100-80GB
stack: llm-foundry
domains:
  - {name: north, gpus: 8, gpus_per_node: 8, usd_per_gpu_hour: 2.0}
  - {name: south, gpus: 8, gpus_per_node: 8, usd_per_gpu_hour: 1.5}
intra_domain: {bandwidth_gbps: 400, rtt_ms: 0.05}
wan:
  bandwidth_gbps: [[0, 5], [5, 0]]
  rtt_ms: [[0, 30], [30, 0]]
  egress_usd_per_gb: [[0, 0.02], [0.02, 0]]
"""


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    path = tmp_path_factory.mktemp("cluster") / "two-sites.yaml"
    path.write_text(CLUSTER)
    job = {"model": "gpt2-medium", "global_batch": 64, "quick": True}
    return PlanConfig(cluster=str(path), policy="best_static", **job)


@pytest.fixture(scope="module")
def question(config):
    return asked(config)


@pytest.fixture(scope="module")
def searched(question):
    return search_plans(question, None, quick=True)


@pytest.fixture(scope="module")
def poorer(searched):
    """The same search, had it been a beam and passed its best plan over."""
    best = searched.found["any"].best
    pool = tuple(one for one in searched.pool if one is not best)
    found = {
        name: dataclasses.replace(
            searched.found[name],
            best=surest([o for o in pool if name == "any" or is_synchronous(o.plan)]),
            search="beam",
        )
        for name in SETTINGS
    }
    return dataclasses.replace(searched, found=found, pool=pool)


def test_where_the_search_is_exact_nobody_is_asked(config, question, searched, monkeypatch):
    monkeypatch.setattr(policy, "_deployed", None)  # whoever is asked fails
    found = {name: dataclasses.replace(searched.found[name], search="exact") for name in SETTINGS}
    exact = dataclasses.replace(searched, found=found)
    after, told = policy.ask_policy(config, question, exact)
    assert after is exact and told == {"name": "best_static", "asked": False, "answer": None}
    assert sentence(told) == ["best_static was not asked: the search is exact."]


def test_without_a_policy_nothing_is_told(config, question, poorer, monkeypatch):
    monkeypatch.setattr(policy, "_deployed", None)
    alone = dataclasses.replace(config, policy=None)
    assert policy.ask_policy(alone, question, poorer) == (poorer, None) and sentence(None) == []


def test_a_plan_that_the_search_passed_over_is_the_answer(
    config, question, searched, poorer, monkeypatch
):
    best = searched.found["any"].best
    monkeypatch.setattr(policy, "_deployed", lambda config: best.plan)
    after, told = policy.ask_policy(config, question, poorer)
    assert after.found["any"].best.least == pytest.approx(best.least)
    # The bound may prove it: then it is nobody's merit.
    proved = after.found["any"].gap_pct < 1e-3
    assert after.found["any"].search == ("exact" if proved else "best_static")
    gain = 100 * (best.least / poorer.found["any"].best.least - 1)
    assert gain > 0 and told["gain_pct"] == pytest.approx(gain)
    assert after.found["any"].gap_pct < 100 * (
        after.results["any"].bound / poorer.found["any"].best.rate - 1
    )
    assert len(after.pool) == len(searched.pool)
    np.testing.assert_allclose(told["answer"]["step_s"], float(best.cost.step_s), rtol=1e-6)


def test_a_slower_plan_joins_the_pool_and_changes_no_answer(
    config, question, searched, poorer, monkeypatch
):
    slowest = min((one for one in searched.pool if one.runs), key=lambda one: one.least)
    monkeypatch.setattr(policy, "_deployed", lambda config: slowest.plan)
    after, told = policy.ask_policy(config, question, poorer)
    assert after.found["any"].best is poorer.found["any"].best
    assert after.found["any"].search == "beam"
    assert told["gain_pct"] < 0 and "slower" in sentence(told)[0]
    # The same domains may be laid out otherwise: then it is not their names that tell plans apart.
    here = sentence(told | {"same_place": True})[0]
    assert "the same domains, laid out otherwise" in here and "slower" in here


def test_what_is_known_already_is_not_there_twice(question, poorer):
    again = joined(poorer, [one.plan for one in poorer.pool], question)
    assert len(again.pool) == len(poorer.pool)


def test_a_policy_for_which_nothing_runs_is_told(config, question, poorer, monkeypatch):
    nothing = jax.tree.map(np.asarray, empty_plan(2))
    monkeypatch.setattr(policy, "_deployed", lambda config: nothing)
    after, told = policy.ask_policy(config, question, poorer)
    assert after is poorer and sentence(told) == ["best_static has no plan that runs."]


@pytest.mark.parametrize(
    "limit", [{"budget": 50.0}, {"deadline": 9.0, "tokens": 1e9}, {"reserve_pct": 10.0}]
)
def test_limits_of_which_a_policy_knows_nothing_are_refused(config, limit):
    with pytest.raises(InputError, match="policy: it is asked for speed alone"):
        dataclasses.replace(config, **limit)


@pytest.mark.parametrize("name", ["nobody", "clairvoyant"])
def test_who_cannot_be_asked_is_refused_before_the_search(config, name, capsys):
    assert main(["plan", "--policy", name, "--cluster", config.cluster]) == 2
    assert "policy" in capsys.readouterr().err


@pytest.mark.nightly
def test_no_scheduler_deploys_more_than_the_search_says_there_is(config, question, poorer):
    after, told = policy.ask_policy(config, question, poorer)
    assert told["asked"] and told["answer"]["tokens_per_s"] > 0
    rate = question.problem.work.tokens_per_step * after.results["any"].bound
    assert told["answer"]["effective_tokens_per_s_band"][0] <= float(rate) * (1 + 1e-4)
    assert len(after.pool) >= len(poorer.pool)
