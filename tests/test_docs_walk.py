"""Documentation: a new user's walk through its commands, word for word but for sizes.

The commands stand in the pages as they are listed here; what is added makes them small. Later ones
work on what earlier ones wrote, so the walk is one test.
"""

import functools
import io
import itertools
import json
import os
import shlex
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from helpers.docs_pages import ROOM_OF, ROOMS, ROOT, blocks, commands

from analysis.records import load
from experiments.cli import main
from experiments.plan import policy
from jaxsim.cluster import load_cluster
from jaxsim.network import load_link_processes

pytestmark = pytest.mark.usefixtures("scoring_is_optimised")

DATA = ROOT.parent / "shared" / "data"
GRIDS = {  # as the pages call them -> as they are published
    "skyplane_throughput.csv": "wan/skyplane_throughput_2022-01-30.csv",
    "skyplane_latency.csv": "wan/skyplane_latency_2022-04-16.csv",
    "skyplane_egress_cost.csv": "wan/skyplane_egress_cost_usd_per_gb_2022-05.csv",
    "cloudpilot_iperf3_tests.csv": "traces/cloudpilot_iperf3_tests.csv",
    "philly_vc_jobs_gavel.csv.gz": "load/philly_vc_jobs_gavel.csv.gz",
}
WORLD = "--global_batch 64 --table_size 4 --layout_limit 30"
SMALL = {
    "evaluate": f"{WORLD} --seeds 2 --steps 4 --tuning_scenarios 0 --schedulers best_static,hysteresis",
    "train": f"{WORLD.partition(' --layout')[0]} --scenario.horizon 4 --scenarios 2 --seeds [0,1] "
    "--eval_scenarios 2 --epochs 1 --train.envs 4 --train.rollout 4 --train.hidden 8",
    "respond": WORLD,
    "watch": f"{WORLD} --seconds 3",
    "plan": "--quick --global_batch 64",
    "sweep": "--points 2 --scenarios 4 --steps 4 --global_batch 64 --batch 2 "
    "--schedulers best_static,hysteresis",
    "fidelity": "--samples 1 --micro_batches 4",
    "parallel": "--cases 2:tiny:8x16 --layouts dp2,pp2-1f1b-m2 --adapt_steps 2 --move_steps 1",
    "memory": "--settings 1 --capacity_mb 8 --repeats 1",
    "microbench": "--repeats 2 --limit_s 0 --largest_kb 512 --what collectives,copy,gemm",
    "communication": "--steps 10 --links 2 --played_steps 50 --methods fp16,int8",
    "comparative": "--frameworks pytorch_ddp,pytorch_pp",
    "bench": "--envs 2 --repeats 1",
    "ddp": "--ranks 2 --dataset synthetic --model small --steps 20",
}
WRITTEN = {  # the commands as the pages have them
    " ".join(command.words): command.where for command in commands() if command.words[0] == "hippo"
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder with the cluster file of the README."""
    readme = next(b for b in blocks("yaml") if b.page == ROOT / "README.md")
    (tmp_path / "three-sites.yaml").write_text(readme.text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def small(line):
    """A command of the pages with what makes it small: subcommand and options."""
    assert line in WRITTEN, f"no page says: {line}"
    _, name, *words = shlex.split(line)
    return [name, *words, *shlex.split(SMALL.get(name, ""))]


def walk(*lines):
    """Run commands of the pages in the small."""
    for line in lines:
        assert main(small(line)) == 0, f"{WRITTEN[line]}: {line}"


@pytest.mark.nightly
def test_your_own_cluster_in_three_commands(folder, monkeypatch, capsys):
    walk(
        "hippo evaluate --cluster three-sites.yaml --model llama-13b --schedulers all",
        "hippo train --cluster three-sites.yaml --model llama-13b --seeds [0,1] --epochs 20 "
        "--out outputs/my-policy",
        "hippo report outputs/my-policy",
    )
    assert (folder / "outputs" / "my-policy" / "report.md").stat().st_size > 500
    capsys.readouterr()
    measured = {"src": "north", "dst": "south", "bandwidth_gbps": 2.1}
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(measured) + "\n"))
    walk("hippo respond --cluster three-sites.yaml --model llama-13b --scheduler outputs/my-policy")
    ready, answer = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert ready["ready"] and answer["plan"] and "error" not in answer


@pytest.mark.nightly
def test_a_plan_is_made_questioned_and_exported(folder, capsys):
    walk(
        "hippo plan --cluster three-sites.yaml --model llama-13b --global-batch 512 --seq 4096 "
        "--tokens 300e9",
        "hippo plan --cluster three-sites.yaml --model llama-13b --tokens 300e9 --figure --pareto",
        "hippo plan --cluster three-sites.yaml --model llama-13b --what-if link=north:west,factor=0.5 "
        "--what-if domain=south,gpus=0",
        "hippo plan --cluster three-sites.yaml --model llama-13b --what-if "
        "domain=south,gpu=H100-80GB",
        "hippo plan --cluster three-sites.yaml --model llama-13b --tokens 300e9 --deadline 60 "
        "--budget 70 --pareto --figure",
        "hippo plan --cluster three-sites.yaml --model llama-13b --global-batch 512 --seq 4096 "
        "--figure --export launch --format torchtitan",
        "hippo plan --model llama-7b --quick --json plan.json",
    )
    told = capsys.readouterr().out
    assert told.count("fullest GPU") == 7 and told.count("What if") == 2
    assert (folder / "launch" / "README.md").is_file()
    assert json.loads((folder / "plan.json").read_text())["step_s"] > 0
    assert len(list((folder / "outputs").glob("plan-*/figures/plan.png"))) == 3


@pytest.mark.nightly
def test_a_plan_takes_as_long_as_was_predicted(folder):
    walk(
        "hippo plan --cluster three-sites.yaml --model llama-13b --allow synchronous --json three.json",
        "hippo evaluate --cluster three-sites.yaml --model llama-13b --plan three.json --schedulers "
        "best_static --jitter none --scenario.base_spread 0",
    )
    predicted = json.loads((folder / "three.json").read_text())["step_s"]
    (run,) = (folder / "outputs").glob("evaluate-*")
    rows = load(run).table("scenarios").set_index("scheduler")
    np.testing.assert_allclose(rows.loc["plan", "step_s"], predicted, rtol=1e-3)


@pytest.mark.nightly
def test_a_sweep_is_tried_played_taken_up_and_reported(folder, monkeypatch):
    (folder / "experiments").symlink_to(ROOT / "experiments")
    walk(
        "hippo sweep --config experiments/configs/sweep.yaml --dry-run",
        "hippo sweep --config experiments/configs/sweep.yaml --out outputs/sweep",
        "hippo report outputs/sweep",
    )
    run = folder / "outputs" / "sweep"
    assert (run / "report.md").stat().st_size > 500
    whole = (run / "scenarios.parquet").read_bytes()
    assert len(pd.read_parquet(run / "scenarios.parquet")) == 2 * 4 * 2
    parts = sorted((run / "parts").glob("*.parquet"))
    assert len(parts) >= 2
    for lost in (*parts[1:], run / "scenarios.parquet"):  # as if it had been interrupted
        lost.unlink()
    monkeypatch.setitem(SMALL, "sweep", "")  # the run folder knows how small it is
    walk("hippo sweep --resume outputs/sweep")
    assert (run / "scenarios.parquet").read_bytes() == whole


@pytest.mark.nightly
def test_a_policy_is_asked_beside_the_search(folder, monkeypatch, capsys):
    few = functools.partial(policy.RespondConfig, table_size=4, layout_limit=30)
    monkeypatch.setattr(policy, "RespondConfig", few)  # of its own table no option tells the size
    walk("hippo plan --cluster mixed-aws-regions --model llama-70b --policy hi_ppo+search")
    assert "hi_ppo+search would " in capsys.readouterr().out
    assert list((folder / "outputs").glob("plan-*"))


@pytest.mark.nightly
def test_live_links_are_watched_and_a_plan_is_put_into_force(folder, monkeypatch, capsys):
    dead = [
        f"{a},{b},0.001" for a in ("north", "south", "west") for b in ("north", "south", "west")
    ]
    rows = [row for row in dead if len(set(row.split(",")[:2])) == 2]
    (folder / "measurements").mkdir()
    (folder / "measurements" / "1.csv").write_text(
        "\n".join(["src,dst,bandwidth_gbps", *rows, "domain,gpus_available", "north,0", ""])
    )
    (folder / "launch.sh").write_text('#!/bin/sh\ncp "$1" launched.json\n')
    (folder / "launch.sh").chmod(0o755)
    measured = {"src": "north", "dst": "south", "bandwidth_gbps": 2.1}
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(measured) + "\n"))
    monkeypatch.setitem(SMALL, "watch", f"{SMALL['watch']} --metrics 0")  # any free port
    walk(
        "hippo watch --cluster three-sites.yaml --model llama-13b --scheduler hysteresis",
        "hippo watch --cluster three-sites.yaml --model llama-13b --scheduler hysteresis --folder "
        "measurements --state watch.state --apply ./launch.sh --metrics 9464",
    )
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    first = next(n for n, line in enumerate(lines) if "end" in line)
    assert lines[0]["ready"] and lines[first]["lines"] == 1
    decision = next(line for line in lines[first:] if "decision" in line)
    assert "north" not in decision["plan"] and any(x.get("in_force") for x in lines[first:])
    assert json.loads((folder / "launched.json").read_text())["pipelines"]
    assert (folder / "watch.state").is_file()


@pytest.mark.nightly
def test_plans_of_any_kind_are_watched_and_the_embedded_cluster_is(folder, monkeypatch, capsys):
    (folder / "measurements").mkdir()
    measured = {"src": "ohio", "dst": "oregon", "bandwidth_gbps": 2.1}
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(measured) + "\n"))
    walk("hippo respond --scheduler hysteresis")
    walk("hippo watch --scheduler hysteresis --folder measurements --seconds 3600")
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    walk(
        "hippo watch --cluster three-sites.yaml --model llama-13b --allow any --scheduler hysteresis"
    )
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert sum("ready" in line for line in lines) == 3
    assert not [line for line in lines if "error" in line]


def test_links_are_probed_between_hosts(folder, capsys):
    (folder / "token.txt").write_text("a token of the tests")
    sites = ("north", "south", "west")
    (folder / "iperf3-results").mkdir()
    for a, b in itertools.permutations(sites, 2):
        end = {"streams": [{"sender": {"min_rtt": 30_000}}]}
        end["sum_received"] = {"bits_per_second": 3e9}
        body = {"start": {"timestamp": {"timesecs": 1_700_000_000}}, "end": end}
        (folder / "iperf3-results" / f"{a}--{b}.json").write_text(json.dumps(body))
    walk("hippo probe iperf3 --results iperf3-results --gpus 16,16,8 --out three-sites.yaml")
    assert load_cluster("three-sites.yaml").rtt_ms[0, 1] == 30.0
    # The same commands on loopback: the last of two options of one name counts.
    serve = small("hippo probe serve --token token.txt --bind 10.0.0.1")
    two = small(
        "hippo probe run --token token.txt --hosts north=10.0.0.1:5410,south=10.1.0.1:5410 --gpus 16 "
        "--out two-sites.yaml"
    )
    run = small(
        "hippo probe run --token token.txt --hosts north=10.0.0.1:5410,south=10.1.0.1:5410,"
        "west=10.2.0.1:5410 --gpus 16,16,8 --rounds 10 --out three-sites.yaml --trace "
        "three-sites.csv"
    )
    command = [
        sys.executable,
        "-m",
        "experiments.cli",
        *serve,
        "--bind",
        "127.0.0.1",
        "--port",
        "0",
    ]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as server:
        try:
            where = server.stdout.readline().split()[-1]
            hosts = ",".join(f"{name}={where}" for name in sites)
            tiny = "--mbytes 0.1 --seconds 0.5 --pings 1 --flows 1 --every 0.01 --rounds 2"
            assert main([*run, "--hosts", hosts, *shlex.split(tiny)]) == 0
            hosts = ",".join(f"{name}={where}" for name in sites[:2])
            assert main([*two, "--hosts", hosts, *shlex.split(tiny)]) == 0
        finally:
            server.kill()
    assert load_cluster("three-sites.yaml").domains == sites
    assert load_cluster("two-sites.yaml").domains == sites[:2]
    assert len((folder / "three-sites.csv").read_text().splitlines()) == 1 + 12


def test_the_doctor_finds_what_is_here(folder, capsys):
    walk("hippo doctor --json doctor.json", "hippo doctor")
    found = json.loads((folder / "doctor.json").read_text())
    assert found["commands"]["plan"]["ready"] and "commands" in capsys.readouterr().out


def test_jobs_are_drawn(folder):
    walk(
        "hippo jobs --count 16 --out jobs.csv",
        "hippo jobs --count 8 --span_hours 2 --burst 2 --out jobs.csv",
        "hippo jobs --count 16 --burst 4 --data_gb 500 --data_at north,west --out bursts.csv",
    )
    assert len((folder / "jobs.csv").read_text().splitlines()) == 1 + 8
    assert "data_at" in (folder / "bursts.csv").read_text()


@pytest.mark.slow
def test_the_published_runs_are_predicted(folder, capsys):
    walk("hippo validate")
    assert "published_runs" in capsys.readouterr().out


@pytest.mark.nightly
@pytest.mark.parametrize("room", ROOMS)
def test_a_room_of_the_toolbox_runs(folder, room):
    walk(f"hippo {room} --quick")
    (run,) = (folder / "outputs").iterdir()
    assert load(run).run["kind"] == ROOM_OF.get(room, room) and load(run).summary


@pytest.mark.nightly
def test_a_run_is_listed_and_reported_in_chinese(folder, capsys):
    sized = shlex.split(SMALL["evaluate"])
    assert main(["evaluate", *sized, "--out", "outputs/my-evaluation"]) == 0
    walk("hippo runs --kind evaluate", "hippo report outputs/my-evaluation --language zh --html")
    assert "my-evaluation" in capsys.readouterr().out
    assert "<html" in (folder / "outputs" / "my-evaluation" / "report.zh.html").read_text()


@pytest.mark.nightly
def test_a_sweep_by_latin_hypercube_a_large_one_and_one_that_is_tried(folder):
    walk(
        "hippo sweep --jitter [uniform,ou] --strength [0.1,0.3] --scenarios 8 --dry-run",
        "hippo sweep --design latin_hypercube --points 200 --scenarios 16 --strength [0.05,0.4] "
        "--load [0,0.5]",
        "hippo sweep --jitter [uniform,ou] --strength [0.1,0.3] --scenarios 25000 --schedulers "
        "best_static,hysteresis,hi_ppo --steps 200",
    )
    runs = (folder / "outputs").iterdir()
    rows = sorted(len(pd.read_parquet(run / "scenarios.parquet")) for run in runs)
    assert rows == [2 * 4 * 2, 4 * 4 * 2], "points, scenarios, schedulers"


@pytest.mark.nightly
def test_real_training_is_compared_and_reported(folder):
    walk(
        "hippo ddp --ranks 2 --out outputs/mine --mode compare --arms static,pooled --dataset "
        "synthetic --model small --steps 20",
    )
    for run in (folder / "outputs").iterdir():
        run.rename(run.with_name(f"{run.name}-of-two"))
    walk(
        "hippo ddp --ranks 4 --out outputs/mine --mode compare --arms static,pooled",
        "hippo report outputs/mine",
    )
    assert list((folder / "outputs" / "mine").rglob("report.md"))


@pytest.mark.nightly
def test_this_machine_is_measured_fitted_and_predicted(folder, monkeypatch):
    monkeypatch.setitem(
        SMALL, "microbench", "--repeats 2 --limit_s 0 --largest_kb 512"
    )  # all that is fitted
    walk(
        "hippo microbench --what collectives,gemm,attention,optimizer,copy,steps --ranks 2,4 "
        "--smallest_kb 64 --json machine.json",
        "hippo calibrate --data machine.json --out machine.yaml",
        "hippo validate --data machine.json --calibration machine.yaml --leave_one_out true",
    )
    assert (folder / "machine.yaml").is_file()


@pytest.mark.slow
def test_fidelity_is_drawn(folder):
    walk("hippo fidelity --samples 5")
    (run,) = (folder / "outputs").iterdir()
    assert (run / "figures" / "fidelity.png").is_file()


FEWER = {
    "eight-aws-regions": "--cluster four-aws-regions --steps 4",
    "--jobs 16": "--jobs 2",
    "decision": "--domains 3",
    "watch": "--domains 2 --repeats 1",
}
MEASURED = (
    "hippo bench --what env --domains 4 --envs 64 --repeats 2",
    "hippo bench --what env --domains 8 --envs 1024",
    "hippo bench --what env --jobs 16 --cluster eight-aws-regions --envs 1024",
    "hippo bench --what env --jobs jobs.csv --cluster eight-aws-regions --envs 1024",
    "hippo bench --what plans --fidelity event",
    "hippo bench --what train",
    "hippo bench --what decision --domains 8",
    "hippo bench --what watch",
)


@pytest.mark.nightly
@pytest.mark.parametrize("line", MEASURED)
def test_speed_is_measured_in_a_process_of_its_own(folder, line):
    """It makes every core a device, which a process can do once, before JAX computes."""
    assert main(shlex.split("jobs --count 2 --out jobs.csv")) == 0
    fewer = [word for text, few in FEWER.items() if text in line for word in shlex.split(few)]
    command = [sys.executable, "-m", "experiments.cli", *small(line), *fewer]
    # What is measured, and the world that it needs, is compiled with all optimisations.
    env = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_DISABLE_MOST_OPTIMIZATIONS": "0"}
    told = subprocess.run(command, env=env, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    (run,) = (folder / "outputs").iterdir()
    assert all(row["per_s"] > 0 for row in load(run).summary["rows"])


@pytest.mark.skipif(not DATA.is_dir(), reason=f"measurements are looked for in {DATA}")
def test_a_cluster_and_its_trace_come_from_measurements(folder):
    (folder / "DATA").mkdir()
    for name, published in GRIDS.items():
        (folder / "DATA" / name).symlink_to(DATA / published)
    walk(
        "hippo cluster from-grid --throughput DATA/skyplane_throughput.csv --latency "
        "DATA/skyplane_latency.csv --cost DATA/skyplane_egress_cost.csv --regions "
        "aws:us-east-2,aws:eu-south-1,azure:canadacentral,gcp:europe-west2-a --gpu A100-80GB --gpus 8 "
        "--gpus-per-node 2 --intra-gbps 100 --out four-regions.yaml",
        "hippo cluster trace --measurements DATA/cloudpilot_iperf3_tests.csv --cluster "
        "four-regions.yaml --interval 60 --seed 0 --out four-regions-trace.csv",
        "hippo jobs --trace DATA/philly_vc_jobs_gavel.csv.gz --count 16 --out philly-jobs.csv",
        "hippo jobs --trace DATA/philly_vc_jobs_gavel.csv.gz --count 16 --seed 1 --span_hours 8 "
        "--work_scale 2 --out jobs.csv",
    )
    assert load_cluster("four-regions.yaml").n_domains == 4
    assert len((folder / "philly-jobs.csv").read_text().splitlines()) == 1 + 16


@pytest.mark.nightly
@pytest.mark.skipif(not DATA.is_dir(), reason=f"measurements are looked for in {DATA}")
def test_links_are_fitted_and_their_predictors_compared(folder):
    (folder / "DATA").mkdir()
    name = "cloudpilot_iperf3_tests.csv"
    (folder / "DATA" / name).symlink_to(DATA / GRIDS[name])
    walk(
        "hippo network fit --traces DATA/cloudpilot_iperf3_tests.csv --kind heavy --out my-links.yaml",
        "hippo network predict --traces DATA/cloudpilot_iperf3_tests.csv --interval 20",
        "hippo network predict --traces DATA/cloudpilot_iperf3_tests.csv",
    )
    (folder / "my-links.yaml").unlink()
    walk("hippo network fit --traces DATA/cloudpilot_iperf3_tests.csv --out my-links.yaml")
    assert load_link_processes(folder / "my-links.yaml").processes


@pytest.mark.nightly
@pytest.mark.skipif(not DATA.is_dir(), reason=f"measurements are looked for in {DATA}")
def test_your_own_runs_are_predicted_and_fitted(folder, capsys):
    (folder / "DATA").mkdir()
    table = DATA / "measured_stacks" / "torchtitan_h100_parallel.csv"
    (folder / "DATA" / "measured.csv").symlink_to(table)
    (folder / "DATA" / "single.csv").symlink_to(DATA / "measured" / "korthikanti.csv")
    (folder / "mine.csv").symlink_to(table)
    walk(
        "hippo validate --data DATA",
        "hippo validate --data DATA --leave_one_out true",
        "hippo calibrate --data DATA --out my-calibration.yaml",
        "hippo calibrate --data mine.csv --adapt torchtitan --out my-torchtitan.yaml",
        "hippo validate --data mine.csv --calibration my-torchtitan.yaml",
    )
    (folder / "my-calibration.yaml").unlink()
    walk("hippo calibrate --data DATA --gpu A100-80GB --out my-calibration.yaml")
    assert "A100-80GB" in (folder / "my-calibration.yaml").read_text()
