"""Low-communication results: what a step is taken for, under both assumptions."""

import types

import jax.numpy as jnp
import numpy as np
import pytest
from toy_world import JOB, make_plan

from agents.registry import LOW_COMMUNICATION, LOW_COMMUNICATION_RULES, RULES, SCHEDULERS
from experiments import low_communication
from experiments.evaluate import requested
from experiments.low_communication import worth
from jaxsim.enumeration import stack_plans
from jaxsim.workload import build_workload


@pytest.fixture
def setup():
    groups = ([(0,), (1,)], [(8,), (8,)], [4, 4])
    plans = [
        make_plan(*groups, sync_period=h, wire_bits=b) for h, b in ((1, 16), (100, 32), (30, 4))
    ]
    table = types.SimpleNamespace(
        plans=stack_plans(plans),
        mask=jnp.ones(3, bool),
        single_domain=jnp.array([True, False, False]),
        admitted={"diloco": jnp.array([[False] * 2, [True, False], [False] * 2])},
    )
    work = build_workload([JOB]).job(0)
    return types.SimpleNamespace(table=table, work=work, choices=types.SimpleNamespace(size=2))


@pytest.mark.parametrize("name", ["best_static", "single_domain", "diloco"])
def test_everyone_keeps_the_plan_that_is_best_by_what_a_step_is_taken_for(monkeypatch, setup, name):
    monkeypatch.setattr(low_communication, "keep_best", lambda *args: args)
    _, admitted, factor = low_communication.apart_maker(name)(setup, jnp.array(True))
    rows = {"best_static": [1, 1, 1], "single_domain": [1, 0, 0], "diloco": [0, 1, 0]}[name]
    np.testing.assert_array_equal(admitted.any(axis=1), rows)
    np.testing.assert_array_equal(factor, worth(setup, True))
    assert np.all(factor[1:] > 1)


def test_a_step_is_worth_what_the_default_says_or_all_of_it(setup):
    work = setup.work
    np.testing.assert_array_equal(worth(setup, False), 1.0)
    # 1 - 0.08 log10(H) / (1 + log10(P / 1e9) / 5), and 1 % less for each halving below 16 bits.
    size = 1 + np.log10(max(float(work.gparams), 0.1)) / 5
    shares = [1.0, 1 - 0.08 * 2 / size, (1 - 0.08 * np.log10(30) / size) * 0.98]
    np.testing.assert_allclose(worth(setup, jnp.array(True)), 1 / np.array(shares), rtol=1e-5)


def test_all_means_everyone_and_low_communication_stands_apart():
    names, _ = requested("all")
    assert set(names) >= {*SCHEDULERS, *LOW_COMMUNICATION, "hi_ppo"}
    assert set(LOW_COMMUNICATION) == set(LOW_COMMUNICATION_RULES)
    assert not set(LOW_COMMUNICATION_RULES) & set(RULES), "none of them enters the common table"
