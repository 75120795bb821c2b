"""The front door, the example in the protocol, and one compiled program for each class."""

import functools
import inspect
import re
import subprocess
import sys
import textwrap
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.toy_world import JOB, calibration, cluster_spec, env_params, make_plan

import agents
from agents.baselines import Hysteresis
from agents.protocol import Estimate, EvaluatedTable, Scheduler, TableScheduler, make_setup
from agents.registry import ENTRIES, find, jobs_names, plan_rules, rivals_with_rules
from jaxsim.env.env import reset
from jaxsim.files.errors import InputError
from jaxsim.planning.table import PlanTable
from jaxsim.trees import stack

ROWS = 3
PLANS = [
    make_plan([(0, 1)], [(4, 4)], [8], dp=2, micro_batch=2),
    make_plan([(0,)], [(8,)], [8], dp=2, micro_batch=2),
    make_plan([(0,), (1,)], [(8,), (8,)], [4, 4], dp=2, micro_batch=2),
]


def only(row):
    """[P, V] bool: the candidates are one row, with every choice."""
    return jnp.zeros((ROWS, 12), bool).at[row].set(True)


TABLE = PlanTable(
    plans=stack(PLANS),
    mask=jnp.ones(ROWS, bool),
    base_rate=jnp.ones(ROWS, jnp.float32),
    single_domain=jnp.array([False, True, False]),
    even_split=jnp.array([False, False, True]),
    candidates_of={e.name: only(i % ROWS) for i, e in enumerate(ENTRIES) if e.rules},
)


@functools.cache
def params():
    spec = cluster_spec(2, gpus=4, gbps=0.5)
    return env_params(spec, JOB, PLANS[0], efficiency=calibration(restart_s=70.0))


@functools.cache
def start():
    """A setup, and what is observed at reset."""
    seen = jax.jit(reset)(jax.random.key(0), params())[1].observation
    return make_setup(params(), TABLE), seen


@jax.jit
def decide(scheduler, setup, observation):
    scheduler = scheduler.bind(setup)
    memory = scheduler.init(jax.random.key(1))
    return scheduler.decide(jax.random.key(2), observation, memory)[0]


def made(name, **values):
    return find(name).make(TABLE, 12, **values)


@pytest.mark.slow
def test_one_compiled_program_serves_every_static_scheduler_and_every_tuned_value():
    setup, seen = start()
    before = decide._cache_size()
    static = ("static_even_split", "single_domain", "best_static", *rivals_with_rules())
    static = [n for n in static if n not in ("sailor", "hyperion")] + ["diloco"]
    groups = {name: np.asarray(decide(made(name), setup, seen).group[0]) for name in static}
    assert len(static) == 9 and decide._cache_size() == before + 1
    # It is one program, but they are different schedulers.
    for name in static[3:]:
        row = int(np.argmax(np.asarray(TABLE.candidates_of[name]).any(axis=1)))
        np.testing.assert_array_equal(groups[name], PLANS[row].group, err_msg=name)
    np.testing.assert_array_equal(groups["single_domain"], PLANS[1].group)
    np.testing.assert_array_equal(groups["static_even_split"], PLANS[2].group)
    plans = [decide(made("hysteresis", horizon=h), setup, seen) for h in (0.01, 1e6)]
    assert decide._cache_size() == before + 2
    assert any(np.any(a != b) for a, b in zip(*(vars(p).values() for p in plans), strict=True))
    # Tuning may try all values of a leaf at once.
    both = jax.vmap(decide, in_axes=(0, None, None))(
        Hysteresis(jnp.array([0.01, 1e6], jnp.float32)), setup, seen
    )
    for i, plan in enumerate(plans):
        jax.tree.map(lambda x, y, i=i: np.testing.assert_array_equal(x[i], y), both, plan)


def test_a_scheduler_by_name_decides_at_once():
    setup, seen = start()
    scheduler = agents.make("hysteresis", setup, horizon=1e6)
    plan, _ = jax.jit(scheduler.decide)(jax.random.key(2), seen, scheduler.init(jax.random.key(1)))
    same = decide(made("hysteresis", horizon=1e6), setup, seen)
    jax.tree.map(np.testing.assert_array_equal, plan, same)


def test_a_scheduler_for_a_world_is_bound_to_a_scenario_where_one_is_given():
    world = types.SimpleNamespace(table=TABLE, problem=start()[0].problem)
    assert agents.make("best_static", world).setup is None
    scheduler = agents.make("best_static", world, params())
    assert scheduler.setup is not None and scheduler.row.shape == ()


def test_names_and_flags_say_what_there_is():
    assert agents.names(oracle=True) == ("replan_oracle", "clairvoyant")
    assert agents.names(learned=True) == ("hi_ppo",)
    assert set(jobs_names()) == {
        *("random", "static_even_split", "single_domain", "best_static", "mast"),
        *("hysteresis", "smoothed_hysteresis", "shrinkage_hysteresis", "self_tuning_hysteresis"),
        "rollout",
        *("replan_oracle", "hi_ppo", "ray", "bace_pipe"),
    }
    brought = {e.name for e in ENTRIES if e.rules is not None}
    assert set(plan_rules(agents.names())) == brought
    assert set(rivals_with_rules()) == brought - {"diloco", "streaming_diloco", "halos"}
    for entry in ENTRIES:
        if not entry.learned:
            assert made(entry.name).oracle == entry.oracle, entry.name


def test_an_unknown_name_is_one_line_with_the_names_and_the_one_that_may_be_meant():
    with pytest.raises(InputError) as error:
        agents.make("hysterisis", start()[0])
    text = str(error.value)
    assert "did you mean 'hysteresis'" in text and "\n" not in text
    assert all(name in text for name in agents.names())
    with pytest.raises(ValueError, match=r"hysteresis: .*'horizn'.*did you mean 'horizon'"):
        agents.make("hysteresis", start()[0], horizn=3.0)


def test_the_example_in_the_protocol_works():
    text = inspect.getdoc(Scheduler)
    code = textwrap.dedent(re.search(r"( {4}class Greedy.*\n(?: {4}.*\n|\n)+)", text)[1])
    assert len(code.strip().splitlines()) <= 10
    space = {"jnp": jnp, "TableScheduler": TableScheduler}
    exec(code, space)
    greedy = space["Greedy"](1.2)
    seen = EvaluatedTable(
        row=jnp.int32(0),
        idle=jnp.array(False),
        may_switch=jnp.array(True),
        now=Estimate(jnp.array([1.0, 1.1, 0.5]), jnp.zeros(3, jnp.int32)),
        switch_s=jnp.zeros(3),
        view=None,
        t=jnp.int32(3),
    )
    assert int(greedy.choose(jax.random.key(0), seen, ())[0]) == 0
    assert int(greedy.replace(margin=1.05).choose(jax.random.key(0), seen, ())[0]) == 1
    setup, observation = start()
    assert decide(space["Greedy"](), setup, observation).group.shape == (1, 2)


def test_importing_the_package_alone_loads_nothing():
    code = "import sys, agents; assert not {'jax', 'jaxsim'} & set(sys.modules); agents.names"
    subprocess.run([sys.executable, "-c", code], check=True)
