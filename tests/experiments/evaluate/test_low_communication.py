"""Low-communication results: what a step is taken for, under both assumptions."""

import types

import jax.numpy as jnp
import numpy as np
import pytest
from helpers.toy_world import JOB, make_plan, two_sites_yaml

from agents.registry import find, names, rivals_with_rules
from analysis.records import load
from experiments.evaluate import __main__ as evaluate
from experiments.evaluate.contestants import requested
from experiments.evaluate.low_communication import ApartEvaluator, worth
from jaxsim.plan import Problem
from jaxsim.planning.family import stack_plans
from jaxsim.step_time import communication
from jaxsim.trees import take
from jaxsim.workload.workload import build_workload


@pytest.fixture
def world():
    groups = ([(0,), (1,)], [(8,), (8,)], [4, 4])
    plans = [
        make_plan(*groups, sync_period=h, wire_bits=b) for h, b in ((1, 16), (100, 32), (30, 4))
    ]
    table = types.SimpleNamespace(
        plans=stack_plans(plans),
        mask=jnp.ones(3, bool),
        single_domain=jnp.array([True, False, False]),
        even_split=jnp.array([False, True, False]),
        candidates_of={"diloco": jnp.array([[False] * 2, [True, False], [False] * 2])},
    )
    work, choices = build_workload([JOB]), types.SimpleNamespace(size=2)
    problem = Problem(work, None, None, choices)
    return types.SimpleNamespace(table=table, problem=problem, one=problem.job(0))


@pytest.mark.parametrize("name", ["best_static", "single_domain", "diloco"])
def test_everyone_deploys_the_plan_that_is_best_by_what_a_step_is_taken_for(world, name):
    evaluator = object.__new__(ApartEvaluator)
    evaluator.world, evaluator.no_loss = world, True
    scheduler = evaluator.static_scheduler(name)
    candidates = scheduler.candidates & world.table.mask[:, None]
    rows = {"best_static": [1, 1, 1], "single_domain": [1, 0, 0], "diloco": [0, 1, 0]}[name]
    np.testing.assert_array_equal(candidates.any(axis=1), rows)
    np.testing.assert_array_equal(scheduler.worth, worth(world.one, world.table.plans, True))
    assert np.all(scheduler.worth[1:] > 1)


def test_a_step_is_worth_what_the_default_says_or_all_of_it(world):
    plans, one = world.table.plans, world.one
    np.testing.assert_array_equal(worth(one, plans, False), 1.0)
    shares = [1 / float(x) for x in worth(one, plans, jnp.array(True))]
    # Two replicas, H = 100: the published formula's lower end, and 4 bits at H = 30 cost 5 % of theirs.
    worth_of = [one.learning.of(communication(take(plans, i), one.work)) for i in range(3)]
    np.testing.assert_allclose(shares, np.array(worth_of), rtol=1e-6)
    assert shares[0] == 1.0 and 0.5 < shares[1] < shares[2] < 0.95


@pytest.mark.nightly
def test_a_run_keeps_every_scenario_of_both_settings(tmp_path, monkeypatch, capsys):
    """On two sites over thin links: nobody beats clairvoyant, whoever syncs in every step gets the same
    either way, and whoever does not gets more where nothing is lost."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two.yaml").write_text(two_sites_yaml(1.0, 1.0))
    argv = ["--cluster", "two.yaml", "--schedulers", "best_static,diloco", "--model", "gpt2-medium"]
    argv += ["--global_batch", "64", "--seq", "1024", "--steps", "8", "--seeds", "8"]
    argv += ["--table_size", "8", "--tuning_scenarios", "0", "--out", "run"]
    assert evaluate.main(argv) == 0
    assert "every step taken for a full one" in capsys.readouterr().out
    record = load(tmp_path / "run")
    rows = record.table("low_communication")
    rows = rows.set_index(["setting", "scheduler", "scenario"]).sort_index()
    assert len(rows) == 2 * 4 * 8
    progress = rows["progress"].unstack("scheduler")
    assert np.all(progress.le(progress["clairvoyant"] * (1 + 1e-5), axis=0))
    default, no_loss = progress.loc["default"], progress.loc["no_loss"]
    np.testing.assert_allclose(no_loss["single_domain"], default["single_domain"], rtol=1e-5)
    assert np.all(no_loss["diloco"] > default["diloco"]) and np.all(default["diloco"] > 0)
    said = record.summary["low_communication"]
    for setting, of in said.items():
        kept = rows.loc[setting, "diloco"].query("headroom_pct >= 0")
        regret = kept["regret_pct"].mean()
        assert of["schedulers"]["diloco"]["regret_pct"] == pytest.approx(regret, rel=1e-6)
    assert set(said) == {"default", "no_loss"}


def test_all_means_everyone_and_low_communication_stands_apart():
    everyone, _ = requested("all")
    apart = names(low_communication=True)
    assert set(everyone) == set(names()) >= {*apart, "hi_ppo", "hysteresis"}
    assert apart and all(find(name).rules is not None for name in apart)
    assert not set(apart) & set(rivals_with_rules()), "none of them enters the common table"
