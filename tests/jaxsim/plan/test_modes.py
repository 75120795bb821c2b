"""Schedules and recompute modes: numbers for arrays, words for users, labels for tables."""

import json
import pickle

import jax
import jax.numpy as jnp
import pytest

from jaxsim.files import InputError
from jaxsim.plan.modes import ALL_SCHEDULES, MENU_SCHEDULES, Recompute, Schedule


def test_numbers_and_words_are_those_of_files():
    """Plans are saved by number: none may move."""
    schedules = ("1f1b", "eager_1f1b", "gpipe", "interleaved", "zero_bubble", "greedy")
    assert {s.word: int(s) for s in Schedule} == {word: i for i, word in enumerate(schedules)}
    assert {r.word: int(r) for r in Recompute} == {"none": 0, "selective": 1, "full": 2}
    assert tuple(range(6)) == ALL_SCHEDULES and MENU_SCHEDULES == (0, 1, 2)
    assert json.dumps([*Schedule, *Recompute]) == "[0, 1, 2, 3, 4, 5, 0, 1, 2]"
    assert pickle.loads(pickle.dumps(Schedule.GREEDY)) is Schedule.GREEDY


def test_the_traced_program_is_that_of_plain_integers():
    def program(eager, gpipe):
        def of(x):
            return jnp.where(x == eager, gpipe, x), (x == gpipe).astype(jnp.float32)

        return str(jax.make_jaxpr(of)(jnp.arange(3, dtype=jnp.int32)))

    assert program(Schedule.EAGER_1F1B, Schedule.GPIPE) == program(1, 2)


@pytest.mark.parametrize("said", ["gpipe", 2, Schedule.GPIPE])
def test_a_mode_is_found_by_word_and_by_number(said):
    assert Schedule.of(said, "schedule") is Schedule.GPIPE


@pytest.mark.parametrize("said", ["GPipes", 6, -1, True, None, 0.5, ["gpipe"]])
def test_a_refusal_lists_the_words(said):
    with pytest.raises(InputError, match=r"^plan: schedule: unknown schedule .*1f1b, eager_1f1b"):
        Schedule.of(said, "plan: schedule")
    with pytest.raises(InputError, match=r"did you mean selective.*none, selective, full"):
        Recompute.of("selectiv", "plan: recompute")
