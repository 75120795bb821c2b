"""Reading plans: layer ranges, group values, and the host-side check."""

import jax.numpy as jnp
import numpy as np
import pytest
from helpers.plan_check import check_plan
from helpers.toy_world import JOB, make_plan

from jaxsim.files.errors import InputError
from jaxsim.plan.plan import (
    default_lower_choices,
    describe,
    empty_plan,
    layer_range,
    membership,
    n_groups,
    per_domain,
    whole_plan,
)
from jaxsim.workload.workload import build_workload

NAMES = ("a", "b", "c", "d")
WORK = build_workload([JOB]).job(0)
GPUS = np.array([8, 8, 8, 8])
# b > d in one group with 3 and 5 layers, a in another; c unused.
DEGREES = {"dp": [4, 2, 1, 1], "micro_batch": [2, 2, 1, 1], "pp": [1, 1, 1, 2], "tp": [2, 1, 1, 1]}
PLAN = make_plan([(1, 3), (0,)], [(3, 5), (8,)], [2, 6], 4, **DEGREES)


def test_layers_run_along_the_pipeline():
    start, end = layer_range(PLAN)
    np.testing.assert_array_equal(start[np.array([1, 3, 0])], [0, 3, 0])
    np.testing.assert_array_equal(end[np.array([1, 3, 0])], [3, 8, 8])
    assert end[2] - start[2] == 0


def test_values_of_groups_reach_their_domains():
    np.testing.assert_array_equal(per_domain(PLAN, PLAN.batch_share), [6, 2, 0, 2])
    np.testing.assert_array_equal(PLAN.used, [True, True, False, True])
    np.testing.assert_array_equal(PLAN.gpus, [4, 4, 0, 8])
    assert int(n_groups(PLAN)) == 2
    np.testing.assert_array_equal(membership(PLAN).sum(axis=0), [2, 1, 0, 0])


def test_a_plan_has_a_readable_name():
    assert describe(PLAN, NAMES) == "b>d | a"


def test_a_good_plan_passes():
    # 2 x 2 x 4 + 6 x 2 x 2 = 40 sequences are 8 too many.
    check_plan(PLAN.replace(batch_share=jnp.array([2, 4, 0, 0])), WORK, GPUS, NAMES)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ["batch_share", "40 sequences of 32"]),
        ({"group": jnp.full(4, -1)}, ["group", "no domain"]),
        ({"group": jnp.array([2, 0, -1, 0])}, ["group", "0..1", "[0, 2]"]),
        ({"position": jnp.array([0, 1, 0, 1])}, ["position", "group 0", "0..1"]),
        ({"layers": jnp.array([8, 3, 0, 4])}, ["layers", "group 0", "7 of 8"]),
        ({"tp": jnp.array([2, 4, 1, 1]), "batch_share": jnp.array([2, 4, 0, 0])},
         ["b", "16 GPUs of 8"]),
        ({"pp": jnp.array([1, 4, 1, 1]), "dp": jnp.array([2, 2, 1, 1]),
          "batch_share": jnp.array([4, 4, 0, 0])}, ["b", "4 stages for 3 layers"]),
    ],
)  # fmt: skip
def test_a_bad_plan_is_one_line_naming_the_field(changes, words):
    with pytest.raises(InputError) as error:
        check_plan(PLAN.replace(**changes), WORK, GPUS, NAMES)
    text = str(error.value)
    assert "\n" not in text and text.startswith("plan: ")
    for word in words:
        assert word in text, f"{word!r} is not in {text!r}"


def test_the_menu_of_lower_choices_has_no_doubles():
    menu = default_lower_choices()
    rows = np.stack([menu.micro_batch, menu.recompute, menu.schedule], axis=1)
    assert menu.size == len(rows) == len(np.unique(rows, axis=0))


def test_the_whole_plan_says_for_each_pipeline_who_holds_what():
    plan = empty_plan(3).replace(
        group=np.array([0, -1, 0], np.int32),
        position=np.array([1, 0, 0], np.int32),
        layers=np.array([20, 0, 12], np.int32),
        tp=np.array([8, 1, 4], np.int32),
        pp=np.array([2, 1, 1], np.int32),
        dp=np.array([3, 0, 0], np.int32),
        batch_share=np.array([16, 0, 0], np.int32),
        micro_batch=np.array([2, 0, 0], np.int32),
        recompute=np.array([2, 0, 0], np.int32),
        schedule=np.array([1, 0, 0], np.int32),
    )
    assert whole_plan(plan, ("a", "b", "c")) == [
        {
            "domains": [
                {"domain": "c", "layers": 12, "tp": 4, "pp": 1},
                {"domain": "a", "layers": 20, "tp": 8, "pp": 2},
            ],
            "dp": 3,
            "micro_batches": 16,
            "micro_batch": 2,
            "recompute": "whole layers",
            "schedule": "eager 1F1B",
        }
    ]
    assert whole_plan(empty_plan(3), ("a", "b", "c")) == []
