"""Plans in plain words: what is built can be carried out, what cannot is refused in one line."""

import dataclasses

import numpy as np
import pytest
from helpers.plan_check import check_plan
from helpers.toy_world import JOB, cluster_spec

from jaxsim.files.errors import InputError
from jaxsim.plan.layouts import enumerate_layouts
from jaxsim.plan.modes import Recompute, Schedule
from jaxsim.plan.plan import Plan
from jaxsim.workload.workload import build_workload

# Four domains a to d of 8 GPUs; 8 layers, 32 sequences.
SPEC = cluster_spec(4, gpus=8)
WORK = build_workload([JOB]).job(0)


def build(groups, **fields):
    return Plan.build(SPEC, JOB, groups, **fields)


def test_every_field_is_where_the_description_says():
    plan = build(
        [["b", "d"], ["a"]],
        layers={"b": 3, "d": 5, "a": 8},
        tp={"b": 2, "d": 1, "a": 1},
        pp={"b": 1, "d": 2, "a": 1},
        cp={"b": 1, "d": 1, "a": 2},
        zero_stage={"b": 1, "d": 2, "a": 3},
        dp=[2, 4],
        batch_share=[4, 2],
        micro_batch=2,
        recompute=["full", "none"],
        schedule=["eager_1f1b", Schedule.GPIPE],
        sync_period=4,
        wire_bits=8,
    )
    expected = {
        "group": [1, 0, -1, 0],
        "position": [0, 0, 0, 1],
        "layers": [8, 3, 0, 5],
        "batch_share": [4, 2, 0, 0],
        "sync_period": 4,
        "wire_bits": 8,
        "dp": [2, 4, 1, 1],
        "micro_batch": [2, 2, 1, 1],
        "recompute": [Recompute.FULL, Recompute.NONE, 0, 0],
        "schedule": [Schedule.EAGER_1F1B, Schedule.GPIPE, 0, 0],
        "tp": [1, 2, 1, 1],
        "pp": [1, 1, 1, 2],
        "cp": [2, 1, 1, 1],
        "zero_stage": [3, 1, 1, 2],
        "placement": [0, 0, 0, 0],
    }
    for name, value in expected.items():
        np.testing.assert_array_equal(getattr(plan, name), value, err_msg=name)
        assert getattr(plan, name).dtype == np.int32, name
    check_plan(plan, WORK, np.array(SPEC.gpus), SPEC.domains)


def test_domains_have_names_and_numbers():
    named, numbered = build([["c", "a"]], tp={"c": 2, "a": 4}), build([[2, 0]], tp={2: 2, 0: 4})
    for name in Plan.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(named, name), getattr(numbered, name), err_msg=name)


def test_what_is_not_said_follows_from_cluster_and_job():
    plan = build([["a", "b"], ["c"]], tp=4, dp=2)
    np.testing.assert_array_equal(plan.pp, [1, 1, 1, 1])  # 8 GPUs / (4 x 2)
    np.testing.assert_array_equal(plan.layers, [4, 4, 8, 0])
    np.testing.assert_array_equal(plan.batch_share, [8, 8, 0, 0])  # 32 sequences / 2, halved
    uneven = build([["a"], ["b"], ["c"]], dp=2, pp=1)
    np.testing.assert_array_equal(uneven.batch_share, [6, 5, 5, 0])


def test_whatever_is_built_can_be_carried_out():
    """Random descriptions: each is refused with one line or passes the independent check."""
    rng, built = np.random.default_rng(0), 0
    layouts = list(enumerate_layouts((0, 1, 2, 3), 4))
    for _ in range(400):
        layout = layouts[rng.integers(len(layouts))]
        fields = {
            "tp": int(2 ** rng.integers(4)),
            "cp": int(2 ** rng.integers(2)),
            "dp": [int(x) for x in 2 ** rng.integers(0, rng.integers(1, 4), len(layout))],
            "micro_batch": int(2 ** rng.integers(3)),
        }
        if rng.random() < 0.5:
            fields["pp"] = int(rng.integers(1, 5))
        try:
            plan = build(layout, **fields)
        except InputError as error:
            assert str(error).startswith("plan: ") and "\n" not in str(error)
            continue
        check_plan(plan, WORK, np.array(SPEC.gpus), SPEC.domains)
        built += 1
    assert 50 < built < 350


@pytest.mark.parametrize(
    ("groups", "fields", "words"),
    [
        ([], {}, ["groups", "at least one"]),
        ("ab", {}, ["groups", "at least one"]),
        ([["a"], []], {}, ["groups", "at least one"]),
        ([["a", "e"]], {}, ["groups", "a, b, c, d", "'e'"]),
        ([["a", 4]], {}, ["groups", "at most 3", "4"]),
        ([["a", True]], {}, ["groups", "True"]),
        ([["a"], ["b", "a"]], {}, ["groups", "a is used 2 times"]),
        ([["a"]], {"tp": 3, "dp": 4}, ["a: dp x tp x pp x cp = 12 GPUs of 8"]),
        ([["a"]], {"pp": 2, "tp": 8}, ["a: dp x tp x pp x cp = 16 GPUs of 8"]),
        ([["a"]], {"tp": 0}, ["tp", ">= 1", "0"]),
        ([["a", "b"]], {"tp": {"a": 2}}, ["tp: b is missing"]),
        ([["a"]], {"tp": {"a": 2, "b": 2}}, ["tp: b is in none of the groups"]),
        ([["a", "b"]], {"pp": 5}, ["pp: 10 stages in a, b for 8 layers"]),
        ([["a", "b"]], {"layers": {"a": 4, "b": 5}}, ["layers: a, b hold 9 of 8 layers"]),
        ([["a", "b"]], {"layers": {"a": 1, "b": 7}, "pp": 2}, ["a: 2 stages for 1 layers"]),
        ([["a"], ["b"]], {"dp": [1, 2, 3]}, ["dp: 3 values for 2 groups"]),
        ([["a"]], {"dp": 3}, ["batch_share: 32 sequences", "dp x micro_batch = 3"]),
        ([["a"], ["b"]], {"dp": [1, 2]}, ["batch_share: 32 sequences", "1 + 2"]),
        ([["a"]], {"batch_share": 31}, ["batch_share: 31 sequences of 32"]),
        ([["a"]], {"zero_stage": 4}, ["zero_stage", "at most 3"]),
        ([["a"]], {"wire_bits": 64}, ["wire_bits", "at most 32"]),
        ([["a"]], {"sync_period": 0}, ["sync_period", ">= 1"]),
        ([["a"]], {"recompute": "all"}, ["recompute", "none, selective, full"]),
        ([["a"]], {"schedule": "eager1f1b"}, ["did you mean eager_1f1b", "1f1b, eager_1f1b, gpipe"]),
    ],
)  # fmt: skip
def test_an_impossible_plan_is_refused_in_one_line(groups, fields, words):
    with pytest.raises(InputError) as error:
        build(groups, **fields)
    text = str(error.value)
    assert "\n" not in text and text.startswith("plan: ")
    for word in words:
        assert word in text, f"{word!r} is not in {text!r}"


def test_more_domains_than_layers_are_refused():
    shallow = dataclasses.replace(JOB, model=dataclasses.replace(JOB.model, layers=2))
    with pytest.raises(InputError, match="for 2 layers"):
        Plan.build(SPEC, shallow, [["a", "b", "c"]])
