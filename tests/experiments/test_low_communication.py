"""Low-communication results: what a step is taken for, under both assumptions."""

import types

import jax.numpy as jnp
import numpy as np
from toy_world import JOB, make_plan

from agents.registry import LOW_COMMUNICATION, LOW_COMMUNICATION_RULES, RULES, SCHEDULERS
from experiments.evaluate import requested
from experiments.low_communication import worth
from jaxsim.enumeration import stack_plans
from jaxsim.workload import build_workload


def test_a_step_is_worth_what_the_default_says_or_all_of_it():
    groups = ([(0,), (1,)], [(8,), (8,)], [4, 4])
    plans = [
        make_plan(*groups, sync_period=h, wire_bits=b) for h, b in ((1, 16), (100, 32), (30, 4))
    ]
    work = build_workload([JOB]).job(0)
    setup = types.SimpleNamespace(table=types.SimpleNamespace(plans=stack_plans(plans)), work=work)
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
