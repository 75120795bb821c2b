"""bench: what it reports, what it refuses, and that what it times is not compiled away."""

import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.plan_check import check_plan

from analysis.records import load
from experiments.bench import __main__ as command
from experiments.bench import closed as bench_closed
from experiments.bench import decision as bench_decision
from experiments.bench import episodes as bench_episodes
from experiments.bench import jobs as bench_jobs
from experiments.bench import measure as bench
from experiments.bench import plans as bench_plans
from experiments.bench.roofline import flops_per_step
from experiments.common.errors import CheckError
from jaxsim.trees import take
from jaxsim.workload.workload import MODEL_PRESETS, JobSpec, build_workload

pytestmark = pytest.mark.nightly  # as a whole: its tests share what takes long to compile

ROOT = Path(__file__).parents[3]
KEYS = {"what", "domains", "envs", "per_s", "compile_s", "flops_per_step", "peak_memory_gb"}


def run(folder, *argv):
    """A process of its own: bench chooses the devices before JAX starts."""
    command = [sys.executable, "-m", "experiments.bench", *argv]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)


def figures_of(folder, what):
    """What a small benchmark prints as JSON, and nothing else."""
    argv = ["--what", what, "--domains", "2", "--envs", "4", "--repeats", "1"]
    done = run(folder, *argv, "--json", "-", "--out", "run")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.nightly
def test_the_json_has_every_promised_key_and_stands_alone(tmp_path):
    result = figures_of(tmp_path, "env")
    assert set(result) >= KEYS | {"device", "peers"}
    assert (result["what"], result["domains"], result["envs"]) == ("env", 2, 4)
    for name in ("per_s", "compile_s", "peak_memory_gb"):
        assert result[name] > 0, name
    assert result["actions"] == "rows" and result["peers"]["actions that are plans"] > 0
    assert result["draws_per_step"] == 3 * 2**2 + 2
    bounds = [result[f"{name}_bound_per_s"] for name in ("flops", "draws", "bytes")]
    assert (
        result["per_s"] / min(bounds) == pytest.approx(result["roofline_share"]) and min(bounds) > 0
    )
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
        (["--jobs", "0"], "jobs: expected an integer >= 1, got 0"),
        (["--jobs", "65"], "jobs: at most 64"),
        (["--jobs", "missing.csv"], "missing.csv: cannot be read"),
        (["--jobs", "4", "--cluster", "missing.yaml"], "missing.yaml"),
        (["--jobs", "4", "--what", "train"], "jobs: more than one are for --what env"),
        (["--steps", "8"], "steps: is for more than one job"),
        (["--json", "nowhere/result.json"], "--json nowhere/result.json: the folder"),
    ],
)
def test_bad_input_is_one_line(tmp_path, monkeypatch, capsys, argv, named):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench, "bench_env", lambda *_: pytest.fail("work has started"))
    # What every bench sets before it measures is not for the tests after this one.
    monkeypatch.setattr(jax.config, "update", lambda *_: None)
    assert command.main(argv) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and named in err
    assert not list(tmp_path.iterdir())


def flops():
    """Compiled FLOPs of a step, as `bench` counts them."""
    case = bench_episodes.env_case(2, prepared=True)
    # A function of its own, or JAX would remember the trace of an earlier checksum.
    return flops_per_step(case, 2, lambda *args: bench_episodes.env_episodes(*args))


def test_what_a_learner_would_read_is_really_computed(monkeypatch):
    """Every part that the checksum leaves out takes compiled FLOPs away."""
    everything = flops()
    monkeypatch.setattr(bench_episodes, "checksum", lambda timestep: timestep.reward)
    reward_alone = flops()
    assert everything > 1.05 * reward_alone
    monkeypatch.setattr(bench_episodes, "checksum", lambda timestep: jnp.float32(0.0))
    assert (flops() or 0.0) < 0.1 * reward_alone  # None: nothing is left to count


@pytest.fixture(scope="module")
def many_jobs():
    """Three jobs on two regions: the case, and what two environments come to."""
    jobs = ("0,llama-7b,512,4096,1e7", "60,llama-7b,512,4096,1e7", "120,llama-7b,512,4096,1e9")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "jobs.csv"
        path.write_text("\n".join(["arrival_s,model,global_batch,seq,tokens", *jobs]) + "\n")
        case = bench_jobs.jobs_case(None, 2, str(path), steps=24)
    keys = jax.random.split(jax.random.key(0), 2)
    episodes = functools.partial(bench_jobs.jobs_episodes, steps=24)
    return case, jax.jit(episodes)(case, keys)


@pytest.mark.nightly
def test_jobs_of_a_benchmark_arrive_wait_train_and_finish(many_jobs):
    case, tally = many_jobs
    assert case.plans.group.shape == (3, 2, 2) and int(case.params.horizon) == 24
    used = np.asarray(case.plans.group) >= 0
    np.testing.assert_array_equal(
        used[0], np.eye(2, dtype=bool), "inside one region, then the next"
    )
    assert used[1].all(), "over both"
    row = bench_jobs.figures([tally])
    assert row["overcommitted"] == 0
    assert 0 < row["jobs_training"] < 3 and row["jobs_waiting"] > 0
    assert 0 < row["jobs_finished"] < 3, "the last has too much to do"
    first, second = np.asarray(tally.checksum)
    assert np.isfinite([first, second]).all() and first != second


@pytest.mark.nightly
def test_gpus_that_a_benchmark_gives_away_twice_end_it(many_jobs):
    leak = many_jobs[1].replace(overcommitted=jnp.array([0, 2], jnp.int32))
    with pytest.raises(CheckError, match="held 2 GPUs more in a region than it had"):
        bench_jobs.figures([many_jobs[1], leak])


@pytest.mark.nightly
def test_a_benchmark_of_many_jobs_says_what_they_did(tmp_path, monkeypatch, many_jobs, capsys):
    """The command, with a list that is drawn; building and timing are given."""
    case, tally = many_jobs
    asked = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(jax.config, "update", lambda *_: None)
    monkeypatch.setattr(bench, "add_options", lambda *_: None)
    monkeypatch.setattr(bench_jobs, "jobs_case", lambda *args: asked.append(args) or case)
    result = {"compile_s": 1.0, "best_s": 2.0, "flops": None, "outputs": [tally]}
    monkeypatch.setattr(bench, "timed", lambda *_: result)
    argv = ["--what", "env", "--jobs", "3", "--domains", "2", "--envs", "2", "--out", "run"]
    assert command.main([*argv, "--json", "result.json"]) == 0
    assert asked == [(None, 2, 3, None)]
    body = json.loads(Path("result.json").read_text())
    assert set(body) >= KEYS | {"device", "peers", "jobs_training", "jobs_waiting", "jobs_finished"}
    assert (body["jobs"], body["steps"], body["overcommitted"]) == (3, 24, 0)
    assert body["per_s"] == 2 * 24 / 2.0
    assert "jobs_waiting" in capsys.readouterr().out


@pytest.mark.nightly
def test_training_is_timed_by_both_algorithms(tmp_path):
    result = figures_of(tmp_path, "train")
    assert result["per_s"] > 0 and result["peers"]["exact gradient"] > 0


def test_drawn_jobs_bring_the_work_that_keeps_a_cluster_busy():
    spec = bench_episodes.bench_cluster(4)
    drawn = [bench_jobs.drawn_jobs(spec, count) for count in (2, 64)]
    for jobs in drawn:
        tflop = sum(
            6e-12 * job.spec.model.params * job.spec.step_budget * 512 * 4096 for job in jobs
        )
        whole = sum(spec.gpus) * spec.gpu_specs[0].peak_tflops * 60 * bench_jobs.EPISODE / 2
        assert 0.1 < tflop / whole < 2.0


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
    one = [take(plans, i) for i in range(200)]
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


@pytest.mark.nightly
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
