"""Orders that no search looks at: told as the form that plays every operation times them."""

import jax
import numpy as np
import pytest

from experiments.plan.answer import carried
from experiments.plan.config import PlanConfig
from experiments.plan.orders import in_other_orders
from experiments.plan.question import asked
from experiments.plan.remarks import _orders
from jaxsim.plan import PLAYED_SCHEDULES, Plan, Recompute, Schedule
from jaxsim.step_time import EventBounds, event_step_cost

CLUSTER = """
name: two-sites
gpu: A100-80GB
domains:
  - {name: north, gpus: 16, gpus_per_node: 8, usd_per_gpu_hour: 2.0}
  - {name: south, gpus: 16, gpus_per_node: 8, usd_per_gpu_hour: 2.0}
intra_domain: {bandwidth_gbps: 400, rtt_ms: 0.05}
wan:
  bandwidth_gbps: [[0, 5.0], [5.0, 0]]
  rtt_ms: [[0, 40], [40, 0]]
  egress_usd_per_gb: [[0, 0.02], [0.02, 0]]
"""
SEQUENCES = 32
WORDS = [order.word for order in PLAYED_SCHEDULES]


@pytest.fixture(scope="module")
def question(tmp_path_factory):
    path = tmp_path_factory.mktemp("cluster") / "two-sites.yaml"
    path.write_text(CLUSTER)
    return asked(PlanConfig(cluster=str(path), global_batch=SEQUENCES))


def carried_plan(question, groups, **fields):
    plan = jax.tree.map(np.asarray, Plan.build(question.spec, question.job, groups, **fields))
    (one,) = carried([plan], question)
    assert one.runs
    return one


@pytest.fixture(scope="module")
def pipelined(question):
    fields = {"tp": 4, "pp": 2, "dp": 2, "schedule": "eager_1f1b"}
    return carried_plan(question, [["north", "south"]], **fields)


def exact_step_s(one, question, order):
    """[s] of the fastest step in an order, by the event-exact form of each setting of the menu."""
    bounds = EventBounds(4, SEQUENCES, groups=1, schedules=(order,))
    menu, plan, found = question.problem.choices, one.plan, []
    time = jax.jit(lambda plan: event_step_cost(plan, question.problem, question.view, bounds))
    for size, recompute in set(
        zip(menu.micro_batch.tolist(), menu.recompute.tolist(), strict=True)
    ):
        shares = np.where(plan.dp > 0, SEQUENCES // (plan.dp * size), 0).astype(np.int32)
        fields = {"micro_batch": size, "recompute": recompute, "schedule": order}
        filled = {k: np.full_like(getattr(plan, k), int(v)) for k, v in fields.items()}
        cost = time(plan.replace(batch_share=shares * (plan.batch_share > 0), **filled))
        found.append(float(cost.step_s) if bool(cost.runs) else np.inf)
    return min(found)


def test_a_pipeline_is_timed_as_the_event_exact_form_times_it(question, pipelined):
    told = in_other_orders(pipelined, [], question)
    assert [one["order"] for one in told] == WORDS
    for order, one in zip(PLAYED_SCHEDULES, told, strict=True):
        assert one["plan"] == "north>south"
        np.testing.assert_allclose(
            one["step_s"], exact_step_s(pipelined, question, order), rtol=1e-4, err_msg=order.word
        )
        gain = 100.0 * (float(pipelined.cost.step_s) / one["step_s"] - 1.0)
        assert one["gain_pct"] == pytest.approx(gain, abs=0.01)


def test_without_a_pipeline_all_orders_are_the_same(question):
    alone = carried_plan(question, [["north"]], tp=4, pp=1, dp=4)
    plain = carried_plan(question, [["north"]], tp=4, pp=1, dp=4, micro_batch=4)
    for one in in_other_orders(alone, [], question):
        # The menu has larger micro-batches than the plan that was given; the largest is the best.
        assert (one["plan"], one["micro_batch"]) == ("north", 4)
        assert one["step_s"] == pytest.approx(float(plain.cost.step_s), rel=1e-5)


def test_the_fastest_of_the_leading_plans_is_told(question, pipelined):
    alone = carried_plan(question, [["north"]], tp=4, pp=1, dp=4)
    apart = in_other_orders(pipelined, [], question), in_other_orders(alone, [], question)
    both = in_other_orders(alone, [pipelined], question)
    for one, *each in zip(both, *apart, strict=True):
        assert one["step_s"] == pytest.approx(min(x["step_s"] for x in each), rel=1e-6)


def test_what_fits_nowhere_is_told_in_words():
    body = {"plan": None, "step_s": None, "gain_pct": None}
    told = [{"order": "greedy", **body}, {**_faster("zero_bubble", 3.0)}]
    lines = _orders("best synchronous plan", {"orders": told})
    assert lines[0] == "In greedy order no plan beside the best synchronous plan fits."
    assert "In ZB-H1 order 3.0 % faster than the best synchronous plan: a>b" in lines[1]
    assert _orders("best of any plan", None) == [] == _orders("best of any plan", {"orders": []})


def _faster(order, gain):
    return {
        **{"order": order, "plan": "a>b", "step_s": 9.0, "gain_pct": gain, "micro_batch": 1},
        "recompute": Recompute.NONE.label,
    }


def test_words_are_those_of_the_orders():
    assert {Schedule.of(word, "order") for word in WORDS} == set(PLAYED_SCHEDULES)
