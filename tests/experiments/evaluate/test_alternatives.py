"""The best plan of each setting, side by side: for one evaluation and for every scene of a suite."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from helpers.toy_world import JOB, base_view, calibration, cluster_spec

from experiments.evaluate import alternatives as module
from experiments.evaluate.alternatives import (
    alternatives,
    alternatives_rows,
    alternatives_text,
    suite_alternatives,
)
from experiments.evaluate.trust import plan_trust
from jaxsim.plan import Problem
from jaxsim.workload.workload import build_workload

SPEC = cluster_spec(2, gpus=2)
CLUSTER = SPEC.to_arrays()


def problem(global_batch=JOB.global_batch):
    job = dataclasses.replace(JOB, global_batch=global_batch)
    return Problem(build_workload([job]).job(0), CLUSTER, calibration())


@pytest.fixture(scope="module")
def told():
    return alternatives(SPEC, problem(), base_view(CLUSTER))


def test_the_figures_of_a_plan_follow_from_each_other(told):
    tokens = JOB.global_batch * JOB.seq
    for name in ("synchronous", "any"):
        one = told[name]
        assert one["tokens_per_s"] == pytest.approx(tokens / one["step_s"])
        assert one["effective_tokens_per_s"] == pytest.approx(
            one["efficiency"] * one["tokens_per_s"]
        )
        assert one["usd_per_effective_mtoken"] * one["efficiency"] == pytest.approx(
            one["usd_per_mtoken"]
        )
        # The band is that of the slowest step with tokens that are worth least, and the other end.
        for end, slow in ((0, 1), (1, 0)):
            expected = one["efficiency_band"][end] * tokens / one["step_s_band"][slow]
            assert one["effective_tokens_per_s_band"][end] == pytest.approx(expected)
        assert one["step_s_band"][0] < one["step_s"] < one["step_s_band"][1]
    assert told["synchronous"]["efficiency_band"] == [1.0, 1.0]


def test_where_they_tie_both_train_as_many_effective_tokens(told):
    plain, other = told["synchronous"], told["any"]
    if other["exchange"] == plain["exchange"]:
        assert told["tie_efficiency"] is None
    else:
        tied = told["tie_efficiency"] * other["tokens_per_s"]
        assert tied == pytest.approx(plain["effective_tokens_per_s"])


def test_a_question_is_searched_once_and_another_one_anew(told, monkeypatch):
    def refuse(*args):
        raise AssertionError("searched again")

    monkeypatch.setattr(module, "SpaceSearch", refuse)
    again = alternatives(SPEC, problem(), base_view(CLUSTER))
    assert again == told
    again["any"]["step_s"] = -1.0  # nobody else sees it
    assert alternatives(SPEC, problem(), base_view(CLUSTER)) == told
    view = base_view(CLUSTER)
    slower = view.replace(bandwidth_gb_per_s=view.bandwidth_gb_per_s * jnp.float32(0.999))
    fewer = view.replace(gpus_available=view.gpus_available - 1)
    others = [
        (SPEC, problem(2 * JOB.global_batch), view),
        (SPEC, problem(), slower),
        (SPEC, problem(), fewer),
        (dataclasses.replace(SPEC, stack="torchtitan"), problem(), view),
    ]
    for question in others:
        with pytest.raises(AssertionError, match="searched again"):
            alternatives(*question)


def test_no_more_questions_are_remembered_than_allowed(monkeypatch):
    monkeypatch.setattr(module, "_known", {})
    monkeypatch.setattr(module, "MOST_KNOWN", 2)
    monkeypatch.setattr(
        module, "_searched", lambda spec, problem, view: {"n": float(view.rtt_s[0, 1])}
    )
    view = base_view(CLUSTER)
    for rtt in (0.01, 0.02, 0.03):
        alternatives(SPEC, problem(), view.replace(rtt_s=jnp.full_like(view.rtt_s, rtt)))
    assert [round(x["n"], 3) for x in module._known.values()] == [0.02, 0.03]


def scene(told):
    return {"schedulers": {}, "alternatives": told}


def test_a_suite_tells_both_plans_of_every_scene_of_one_job(told):
    nothing = {"synchronous": None, "any": None, "tie_efficiency": None}
    scenes = {"first": scene(told), "jobs": {"schedulers": {}}, "dead": scene(nothing)}
    text = suite_alternatives(scenes)
    lines = text.splitlines()
    # The best of any plans syncs every 15 steps, which nobody published for two replicas.
    assert told["any"]["extrapolated"] and not told["synchronous"]["extrapolated"]
    assert len(lines) == 2 + 2 * 2 + 2 and "jobs" not in text
    assert [line.endswith(" *") for line in lines[2:4]] == [False, True]
    assert "extrapolated" in lines[-1]
    at = {x.split()[0]: i for i, x in enumerate(lines) if not x.startswith(" ")}
    for row, name in zip(lines[at["first"] :], ("synchronous", "any"), strict=False):
        one = told[name]
        low, high = one["effective_tokens_per_s_band"]
        assert f"{one['effective_tokens_per_s']:,.0f} ({low:,.0f} to {high:,.0f})" in row
        assert f"{one['usd_per_effective_mtoken']:.2f}" in row
        assert f"{one['wan_gb_per_step']:.2f}" in row and name in row
        # One evaluation says the same of it.
        assert f"{one['effective_tokens_per_s']:,.0f} ({low:,.0f}" in alternatives_text(told)
    if told["tie_efficiency"] is not None:
        assert f"{told['tie_efficiency']:.2f}" in lines[at["first"] + 1]
    assert text.count("none can run") == 2
    assert suite_alternatives({"jobs": {"schedulers": {}}}) == ""


def test_the_table_has_a_row_for_each_plan(told):
    frame = alternatives_rows({"first": scene(told), "jobs": {"schedulers": {}}})
    assert frame["setting"].tolist() == ["synchronous", "any"]
    assert (frame["scene"] == "first").all()
    np.testing.assert_allclose(
        frame["effective_tokens_per_s_lo"],
        [told[n]["effective_tokens_per_s_band"][0] for n in ("synchronous", "any")],
    )
    assert frame["extrapolated"].tolist() == [False, True]
    empty = alternatives_rows({"jobs": {"schedulers": {}}})
    assert list(empty.columns) == list(frame.columns) and len(empty) == 0


def test_the_band_of_the_speed_is_that_of_the_plan():
    from jaxsim.planning import Exchange, PlanSpace
    from jaxsim.planning.exact import SpaceSearch

    result = SpaceSearch(problem(), PlanSpace.of(problem())).best(
        base_view(CLUSTER), 500, [Exchange()]
    )
    one = module.one_of(result, SPEC, problem(), base_view(CLUSTER))
    trust = plan_trust(SPEC, problem(), result.plan, one["tokens_per_s"])
    assert one["effective_tokens_per_s_band"] == pytest.approx(
        [trust["tokens_per_s_lo"], trust["tokens_per_s_hi"]]
    )
