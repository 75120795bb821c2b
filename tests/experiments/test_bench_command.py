"""bench: what it reports, what it refuses, and that what it times is not compiled away."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from analysis.records import load
from experiments import bench, bench_closed, bench_decision, bench_episodes, bench_plans
from jaxsim.plan import check_plan
from jaxsim.workload import MODEL_PRESETS, JobSpec, build_workload

ROOT = Path(__file__).parents[2]
KEYS = {"what", "domains", "envs", "per_s", "compile_s", "flops_per_step", "peak_memory_gb"}


def run(folder, *argv):
    """A process of its own: bench chooses the devices before JAX starts."""
    command = [sys.executable, "-m", "experiments.bench", *argv]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)


def test_the_json_has_every_promised_key_and_stands_alone(tmp_path):
    argv = ["--what", "env", "--domains", "2", "--envs", "4", "--repeats", "1"]
    done = run(tmp_path, *argv, "--json", "-", "--out", "run")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert set(result) >= KEYS | {"device", "peers"}
    assert (result["what"], result["domains"], result["envs"]) == ("env", 2, 4)
    for name in ("per_s", "compile_s", "peak_memory_gb"):
        assert result[name] > 0, name
    assert result["flops_per_step"] is None or result["flops_per_step"] > 100
    record = load(tmp_path / "run")
    assert record.run["status"] == "finished" and len(record.summary["rows"]) == 1
    assert record.summary["rows"][0]["per_s"] == result["per_s"]


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["--what", "plan"], "what"),
        (["--what", "plans", "--fidelity", "exact"], "fidelity"),
        (["--domains", "1"], "domains"),
        (["--envs", "0"], "envs"),
        (["--env", "4"], "env"),
        (["--json", "nowhere/result.json"], "--json nowhere/result.json: the folder"),
    ],
)
def test_bad_input_is_one_line(tmp_path, monkeypatch, capsys, argv, named):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench, "bench_env", lambda *_: pytest.fail("work has started"))
    # What every bench sets before it measures is not for the tests after this one.
    monkeypatch.setattr(jax.config, "update", lambda *_: None)
    assert bench.main(argv) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and named in err
    assert not list(tmp_path.iterdir())


def flops():
    """Compiled FLOPs of a reset and a step, as `bench` counts them."""
    keys = jax.random.split(jax.random.key(0), 2)
    # A function of its own, or JAX would remember the trace of an earlier checksum.
    episodes = jax.jit(lambda *args: bench_episodes.env_episodes(*args))
    compiled = episodes.lower(bench_episodes.bench_params(2), keys).compile()
    return compiled.cost_analysis().get("flops", 0.0)


def test_what_a_learner_would_read_is_really_computed(monkeypatch):
    """Every part that the checksum leaves out takes compiled FLOPs away."""
    everything = flops()
    monkeypatch.setattr(bench_episodes, "checksum", lambda timestep: timestep.reward)
    reward_alone = flops()
    assert everything > 1.05 * reward_alone
    monkeypatch.setattr(bench_episodes, "checksum", lambda timestep: jnp.float32(0.0))
    assert flops() < 0.1 * reward_alone


def test_plans_are_measured_beside_the_simulator(tmp_path):
    argv = ["--what", "plans", "--fidelity", "event", "--envs", "4", "--repeats", "1"]
    done = run(tmp_path, *argv, "--json", "-", "--out", "run")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert set(result) >= KEYS | {"device", "peers", "fidelity"}
    assert (result["what"], result["fidelity"]) == ("plans", "event")
    assert (result["domains"], result["envs"]) == (8, 4)
    for name in ("per_s", "compile_s", "recurrence_per_s", "recurrence_bound_per_s"):
        assert result[name] > 0, name
    # The slowest way of all, in the same run.
    assert 0 < result["peers"]["simpy"] < result["recurrence_per_s"]


def test_the_closed_form_is_measured_beside_its_peers(tmp_path):
    argv = ["--what", "plans", "--domains", "4", "--envs", "64", "--repeats", "1"]
    done = run(tmp_path, *argv, "--json", "-", "--out", "run")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["what"], result["fidelity"], result["envs"]) == ("plans", "closed", 64)
    for name in ("per_s", "compile_s", "table_build_s", "flops_per_step"):
        assert result[name] > 0, name
    assert result["table_bytes_per_plan"] > 4 * result["lookups_per_plan"] > 0
    assert result["lookups_bound_per_s"] > 0 and result["bytes_bound_per_s"] > 0
    peers = result["peers"]
    assert set(peers) == {
        "closed form without a table, one core",
        "numpy, one core",
        "simpy, one core",
    }
    assert all(rate is None or rate > 0 for rate in peers.values())
    assert peers["numpy, one core"] > 0


def test_the_closed_form_s_plans_are_many_and_legal():
    spec = bench_episodes.bench_cluster(8)
    work = build_workload([JobSpec(MODEL_PRESETS["llama-7b"], 1024, 4096)]).job(0)
    plans = bench_closed.random_plans(spec, 200, work)
    used = np.asarray(plans.group) >= 0
    assert set(used.sum(axis=1)) == set(range(1, 9))
    assert set(plans.group.max(axis=1) + 1) >= {1, 2, 3, 4}
    assert set(plans.schedule[used]) == {0, 1, 2}
    one = [jax.tree.map(lambda x, i=i: x[i], plans) for i in range(200)]
    for plan in one:
        share = plan.batch_share * plan.micro_batch * plan.dp
        assert 0.5 * 1024 < share.sum() <= 1024
        # What is left over of the batch by the even split is all that check_plan may mind.
        total = work.replace(global_batch=np.int32(share.sum()))
        check_plan(plan, total, np.asarray(spec.gpus), spec.domains)


def test_the_measured_plan_has_the_promised_size():
    for domains in (2, 3, 8, 16):
        plan = bench_plans.bench_plan(domains)
        assert int(plan.pp.sum()) == bench_plans.STAGES == 16
        assert int(plan.batch_share[0]) == bench_plans.MICRO_BATCHES == 64


@pytest.mark.slow
def test_decisions_are_timed_level_by_level_beside_the_exact_search():
    result = bench_decision.decision(
        bench_episodes.bench_cluster(2), repeats=1, gpus=4, model="gpt2-small"
    )
    for name in ("per_s", "compile_s", "table_prepare_s", "search_prepare_s", "plans_in_table"):
        assert result[name] > 0, name
    for name in ("upper_p99_ms", "lower_p99_ms"):
        assert result[name] > 0, name
    assert 0 < result["p50_ms"] <= result["p99_ms"]
    assert 0 < result["search_p50_ms"] <= result["search_p99_ms"]
    assert result["search_plans_covered"] == result["search_plans_in_family"] > 100
    assert 0 < result["search_plans_scored_most"] < result["search_plans_covered"]
    assert set(result["peers"]) == {*bench_decision.RIVALS, "exact search"}
