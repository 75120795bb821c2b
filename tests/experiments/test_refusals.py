"""Bad input to training and evaluation: one line that names it, status 2, nothing left behind."""

from pathlib import Path

import pytest
from helpers.refusals import refused
from helpers.tiny_training import WORLD, compiled_pieces

from agents.registry import names


@pytest.fixture(scope="module", autouse=True)
def pieces():
    with compiled_pieces():
        yield


CLUSTER = """
name: two
gpu: A100-80GB
domains:
  - {name: a, gpus: 4, gpus_per_node: 4, usd_per_gpu_hour: 1.0}
  - {name: b, gpus: 4, gpus_per_node: 4, usd_per_gpu_hour: 1.0}
intra_domain: {bandwidth_gbps: 80.0, rtt_ms: 0.1}
wan:
  bandwidth_gbps: [[0, 8], [9, 0]]
  rtt_ms: [[0, 40], [44, 0]]
  egress_usd_per_gb: [[0, 0.02], [0.03, 0]]
"""
FILES = {
    "extra_key.yaml": "epochs: 3\nepoch: 4\n",
    "nested.yaml": "train: {hiden: 8}\n",
    "broken.yaml": "epochs: [1\n",
    "negative.yaml": CLUSTER.replace("[0, 8]", "[0, -8]"),
    "nan.yaml": CLUSTER.replace("[0, 40]", "[0, .nan]"),
    "shape.yaml": CLUSTER.replace("[[0, 8], [9, 0]]", "[[0, 8]]"),
    "gpu.yaml": CLUSTER.replace("A100-80GB", "H9000"),
    "region.csv": "t_s,src,dst,factor\n0,virginia,atlantis,1.0\n",
    "nan.csv": "t_s,src,dst,factor\n0,virginia,ohio,nan\n",
    "cut.msgpack": "hippo-checkpoint\n{",
    "other.msgpack": "not one\n",
}
# Program, arguments, and what the one line must name.
BAD = [
    ("train", ["--epoch", "3"], ["epoch"]),  # no abbreviation either
    ("train", ["--config", "extra_key.yaml"], ["epoch"]),
    ("train", ["--config", "nested.yaml"], ["hiden"]),
    ("train", ["--config", "broken.yaml"], ["train"]),
    ("train", ["--config", "nowhere.yaml"], ["nowhere.yaml"]),
    ("train", ["--epochs", "many"], ["epochs"]),
    ("train", ["--epochs", "0"], ["epochs", ">= 1"]),
    ("train", ["--seeds", "[1,1]"], ["seeds", "different"]),
    ("train", ["--scenario.jitter", "brownian"], ["jitter"]),
    ("train", ["--scenario.horizon", "0"], ["scenario.horizon", ">= 1"]),
    *(
        ("train", [f"--scenario.{name}", value], [f"scenario.{name}", value.strip(".")])
        for name in ("uniform", "base_spread", "latency", "load_share", "load_swing", "interval_s")
        for value in (".inf", ".nan", "1e+30")
    ),
    *(
        ("evaluate", [f"--scenario.{name}", value], [f"scenario.{name}", "low <= high", "inf"])
        for name in ("white", "ou_sigma", "ou_tau")
        for value in ("[.inf,.inf]", "[0,.inf]")
    ),
    ("evaluate", ["--scenario.ou_tau", "[.nan,1]"], ["scenario.ou_tau", "nan"]),
    *(
        ("train", ["--scenario.movement", value], ["scenario.movement", "0 < low <= high <= 10"])
        for value in ("[0,1]", "[2,1]", "[1,.nan]", "[1,11]")
    ),
    ("evaluate", ["--scenario.interval_s", "0"], ["scenario.interval_s", "> 0"]),
    ("train", ["--worlds", "load,heavy"], ["worlds", "heavy", "heavy-tail"]),
    ("train", ["--worlds", "load,drift"], ["global_batch", "worlds"]),
    ("train", ["--weights", "[1,0,0]"], ["weights"]),
    ("train", ["--weights", "[.nan,0,0,0]"], ["weights", "four numbers >= 0", "nan"]),
    ("train", ["--weights", "[-1,0,0,0]"], ["weights", "-1"]),
    ("train", ["--weights", "[1,.inf,0,0]"], ["weights", "inf"]),
    ("train", ["--train.rollout", "0"], ["rollout", ">= 1"]),
    ("train", ["--train.every", "0"], ["every", ">= 1"]),
    ("train", ["--train.hidden", "0"], ["hidden", ">= 1"]),
    ("train", ["--train.envs", "0"], ["train.envs", ">= 1"]),
    ("train", ["--train.envs", "-4"], ["envs", ">= 1"]),
    ("train", ["--train.upper_discount", "1.5"], ["upper_discount", "from 0 to 1"]),
    ("train", ["--train.shaping", ".nan"], ["shaping", "nan"]),
    ("train", ["--train.upper.minibatches", "0"], ["train.upper.minibatches", ">= 1"]),
    ("train", ["--train.lower.epochs", "0"], ["train.lower.epochs", ">= 1"]),
    ("train", ["--train.upper.learning_rate", ".nan"], ["learning_rate", "> 0", "nan"]),
    ("train", ["--train.lower.learning_rate", "-1"], ["learning_rate", "> 0"]),
    ("train", ["--train.upper.clip", ".inf"], ["clip", "inf"]),
    ("train", ["--train.upper.trace_decay", "2"], ["trace_decay", "from 0 to 1"]),
    ("train", ["--train.upper.entropy_weight", "-1"], ["entropy_weight", ">= 0"]),
    ("train", ["--model", "llama-8t"], ["llama-8t", "llama-7b"]),
    ("train", ["--cluster", "nowhere.yaml"], ["nowhere.yaml"]),
    ("train", ["--cluster", "gpu.yaml"], ["gpu.yaml", "H9000", "A100-80GB"]),
    (
        "evaluate",
        ["--schedulers", "hysteria"],
        ["hysteria", *names()],
    ),
    ("evaluate", ["--schedulers", "diloco"], ["schedulers", "beside diloco"]),
    ("evaluate", ["--schedulers", ","], ["schedulers"]),
    ("evaluate", ["--weights", "1,0,0"], ["weights", "1,0,0"]),
    ("evaluate", ["--weights", "1,0,0,-1"], ["weights", ">= 0"]),
    ("evaluate", ["--weights", "1,0,0,nan"], ["weights"]),
    ("evaluate", ["--seeds", "0"], ["seeds", ">= 1"]),
    ("evaluate", ["--steps", "0"], ["steps"]),
    ("evaluate", ["--jitter", "wild"], ["jitter", "uniform", "regime", "heavy", "outage"]),
    ("evaluate", ["--jitter", "nowhere.yaml"], ["nowhere.yaml"]),
    ("evaluate", ["--jitter", "extra_key.yaml"], ["extra_key.yaml", "interval_s"]),
    ("train", ["--scenario.jitter", "nowhere.yaml:ou"], ["nowhere.yaml"]),
    ("evaluate", ["--global-batch", "0"], ["global_batch"]),
    ("evaluate", ["--scedulers", "random"], ["scedulers"]),
    ("evaluate", ["--model", "llama-8t"], ["llama-8t", "llama-7b"]),
    ("evaluate", ["--cluster", "negative.yaml"], ["negative.yaml", "bandwidth_gbps"]),
    ("evaluate", ["--cluster", "nan.yaml"], ["nan.yaml", "rtt_ms"]),
    ("evaluate", ["--cluster", "shape.yaml"], ["shape.yaml", "bandwidth_gbps"]),
    ("evaluate", ["--json", "nowhere/result.json"], ["--json", "nowhere", "does not exist"]),
    ("evaluate", ["--json", "."], ["--json", "not a file"]),
    ("evaluate", ["--trace", "nowhere.csv"], ["nowhere.csv"]),
    ("evaluate", ["--trace", "region.csv"], ["region.csv", "atlantis", "virginia"]),
    ("evaluate", ["--trace", "nan.csv"], ["nan.csv"]),
    ("evaluate", ["--load", "nowhere.csv"], ["nowhere.csv"]),
    ("evaluate", ["--schedulers", "cut.msgpack"], ["cut.msgpack", "truncated"]),
    ("evaluate", ["--schedulers", "other.msgpack"], ["other.msgpack", "not a Hi-PPO"]),
    (
        "evaluate",
        ["--schedulers", "hi_ppo", "--checkpoint", "nowhere.msgpack"],
        ["nowhere.msgpack", "no checkpoint"],
    ),
]


# What only a world that was built and played tells.
LATE = [("train", ["--scenario.load_share", "1", "--scenarios", "1"], ["load_share", "1 of 1"])]


@pytest.mark.parametrize(
    ("program", "argv", "named"),
    [*BAD, *(pytest.param(*bad, marks=pytest.mark.nightly) for bad in LATE)],
    ids=[" ".join(b[1]) for b in (*BAD, *LATE)],
)
def test_bad_input_is_one_line_that_names_it_and_leaves_nothing(
    tmp_path, capsys, monkeypatch, program, argv, named
):
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).write_text(text)
    schedulers = [] if program == "train" or "--schedulers" in argv else ["--schedulers", "random"]
    world = WORLD[:4]
    json_file = ["--json", "result.json"] if program == "evaluate" and "--json" not in argv else []
    line = refused(capsys, program, [*world, *schedulers, *argv, "--out", "run", *json_file])
    for text in named:
        assert text in line, line
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(FILES)
