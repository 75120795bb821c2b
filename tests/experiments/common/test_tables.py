"""Tables for the terminal: what cannot be measured, and what cannot be told apart."""

import math

import pytest

from experiments.common.tables import (
    NOTHING,
    best_plan_text,
    jobs_table,
    scheduler_table,
    suite_table,
    tie_text,
)


def row(tokens_per_s, interval, **more):
    return {
        "headroom_pct": 0.0,
        "regret_pct": 1.0,
        "bound_pct": 2.0,
        "regret_ci95_pct": interval,
        "step_s": 3.0,
        "utilisation": 0.5,
        "wan_gb_per_step": 1.0,
        "usd_per_mtoken": 0.1,
        "replans": 0.0,
        "decision_ms_p50": 1.0,
        "tokens_per_s": tokens_per_s,
        **more,
    }


def evaluation(*rows):
    head = {"n_kept": 1, "n_scenarios": 1, "share_of_scenarios": 1.0, "threshold_pct": 0.0}
    return {"headroom": head, "schedulers": {f"s{i}": r for i, r in enumerate(rows)}}


@pytest.mark.parametrize("missing", [[math.nan, math.nan], [None, None], None])
def test_one_scenario_has_no_interval(missing):
    rows = [row(10.0, missing), row(11.0, missing)]
    if missing is not None:
        assert "nan" not in scheduler_table(evaluation(*rows)).lower()
    suite = {"suite": "mine", "wall_s": 60.0, "scenes": {"one": evaluation(*rows)}}
    assert "nan" not in suite_table(suite).lower()
    assert "98.0 to 99.0" in scheduler_table(evaluation(row(1.0, [1.0, 2.0])))


def test_who_spends_more_than_the_budget_is_named():
    """By hand: 10,000 tokens/s at 0.5 USD a million are 18 USD an hour."""
    rows = [row(1e4, [1.0, 2.0], usd_per_mtoken=usd) for usd in (0.5, 0.4)]
    summary = evaluation(*rows) | {"scenario": {"budget": 15.0}}
    assert "beyond the budget of 15 USD/h" in scheduler_table(summary)
    assert "s0 (18.00)" in scheduler_table(summary) and "s1 (" not in scheduler_table(summary)
    for budget in (20.0, None):
        summary["scenario"]["budget"] = budget
        assert "budget" not in scheduler_table(summary)


def test_where_a_token_is_worth_less_to_some_effective_tokens_are_told():
    """By hand: 10,000 tokens/s, each worth 0.8 of one, at 0.1 USD a million."""
    plain = {"efficiency": 1.0, "efficiency_band": [1.0, 1.0]}
    plain |= {"effective_tokens_per_s": 9e3, "usd_per_effective_mtoken": 0.1}
    seldom = {"efficiency": 0.8, "efficiency_band": [0.7, 0.9]}
    seldom |= {"effective_tokens_per_s": 8e3, "usd_per_effective_mtoken": 0.125}
    interval = [1.0, 2.0]
    alike = scheduler_table(evaluation(row(9e3, interval, **plain), row(8e3, interval, **plain)))
    assert "effective" not in alike and "is worth" not in alike
    rows = row(9e3, interval, **plain), row(1e4, interval, **seldom)
    text = scheduler_table(evaluation(*rows))
    cells = [[cell.strip() for cell in line.split("│")] for line in text.splitlines()]
    (told,) = (line for line in cells if "s1" in line)
    assert {"10,000", "0.80 (0.70 to 0.90)", "8,000", "0.125"} <= set(told)
    unknown = dict.fromkeys(seldom) | {"efficiency_band": [None, None]}  # it trained nothing
    scheduler_table(evaluation(*rows, row(None, interval, **unknown)))


def test_equal_schedulers_say_that_there_is_nothing_to_decide():
    interval = [1.0, 2.0]
    same, other = row(10.0, interval), row(10.1, interval)
    assert NOTHING in scheduler_table(evaluation(same, dict(same)))
    assert NOTHING not in scheduler_table(evaluation(same, other))
    assert NOTHING not in scheduler_table(evaluation(same))  # one alone is equal to itself
    scenes = {"still": evaluation(same, dict(same)), "lively": evaluation(same, other)}
    text = suite_table({"suite": "mine", "wall_s": 60.0, "scenes": scenes})
    assert f"still: {NOTHING}" in text and f"lively: {NOTHING}" not in text
    jobs = dict.fromkeys(("behind_best", "jct_mean_s", "queueing_mean_s", "unfinished"), 0.0)
    jobs |= {"makespan_s": None, "fairness": 1.0, "overcommitted": 0, "behind_best_ci95": [0, 0]}
    rows = [row(1.0, interval, jobs={**jobs, "jct_normalised_mean": x}) for x in (2.0, 2.0, 2.5)]
    scenario = {"n_counted": 3, "n_jobs": 4, "sharing": "fair", "seeds": 1}

    def table(*some):
        return jobs_table({**evaluation(*some), "scenario": scenario, "best": "s0"})

    assert NOTHING in table(*rows[:2]) and NOTHING not in table(*rows)


def test_scenes_with_nothing_to_gain_are_controls_and_come_last():
    def scene(headroom_pct):
        one = row(5.0, [4.0, 6.0])
        return {
            **evaluation(),
            "schedulers": {"best_static": {**one, "headroom_pct": headroom_pct}},
        }

    scenes = {"calm": scene(0.4), "lively": scene(12.0), "unknown": scene(None)}
    text = suite_table({"suite": "mine", "wall_s": 60.0, "scenes": scenes})
    assert text.index("lively") < text.index("unknown") < text.index("calm (control)")
    assert "controls, with less than 1 % to gain over the best static plan: calm\n" in text
    del scenes["calm"]
    assert "control" not in suite_table({"suite": "mine", "wall_s": 60.0, "scenes": scenes})


def test_the_best_plan_is_told_whole():
    stage = {"domain": "ohio", "layers": 12, "tp": 4, "pp": 2}
    pipeline = {"domains": [stage, {**stage, "domain": "oregon", "layers": 20}], "dp": 3}
    pipeline |= {"micro_batches": 16, "micro_batch": 2, "recompute": "nothing", "schedule": "1F1B"}
    text = best_plan_text({"tokens_per_s": 12345.6, "pipelines": [pipeline]})
    assert "probability" not in text and "next" not in text
    tie = {"tokens_per_s": 12000.0, "probability_best": 0.3, "pipelines": [pipeline]}
    more = {"probability_best": 0.6, "near_ties": [tie]}
    whole = best_plan_text({"tokens_per_s": 12345.6, "pipelines": [pipeline], **more})
    assert "best with probability 0.60" in whole
    assert "near tie: 12,000 tokens/s, best with probability 0.30: ohio > oregon" in whole
    for part in (
        "12,346 tokens/s",
        "ohio (12 layers, tp 4, pp 2) > oregon (20 layers, tp 4, pp 2)",
        "dp 3, 16 micro-batches of 2 each, recompute nothing, schedule 1F1B",
    ):
        assert part in text
    assert "none can run" in best_plan_text(None)


def test_where_two_plans_tie_is_told_beside_what_the_first_is_worth():
    assert (
        tie_text(0.45, 1.0) == "tie where a token of the second is worth 0.45 of one of the first"
    )
    dear = tie_text(0.13, 0.29)
    assert dear == "tie where a token of the second is worth 0.13 (one of the first is worth 0.29)"
