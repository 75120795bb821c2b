"""Several processes that train one policy: who may, and that it is the policy of one process."""

import socket
import subprocess
import sys
import types

import numpy as np
import pytest
from helpers.toy_world import two_sites_yaml

from agents.hi_ppo import TrainSettings
from agents.hi_ppo.exact import ExactTrainer
from analysis.records import load
from experiments.train.config import Processes, TrainConfig, recorded

TINY = "--epochs 2 --scenarios 8 --eval_scenarios 2 --eval_every 2 --table_size 8 --seeds [0,1]"
TINY += " --model gpt2-medium --global_batch 64 --seq 1024"
TINY += " --train.hidden 8 --train.exact.batch 4 --train.exact.updates 1 --scenario.horizon 8"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"count": 0}, "count: expected an integer >= 1"),
        (
            {"coordinator": "a:1", "count": 2, "index": 2},
            "index: expected an integer >= 0 and <= 1",
        ),
        ({"count": 2}, "coordinator: expected HOST:PORT"),
        ({"coordinator": "host", "count": 2}, "coordinator: expected HOST:PORT"),
        ({"coordinator": "host:99999", "count": 2}, "coordinator: expected HOST:PORT"),
    ],
)
def test_who_trains_is_checked(fields, said):
    with pytest.raises(ValueError, match=said):
        Processes(**fields)


def test_ppo_trains_in_one_process():
    two = Processes("localhost:1234", 2, 0)
    with pytest.raises(ValueError, match="processes: ppo trains in one"):
        TrainConfig(train=TrainSettings(algorithm="ppo"), processes=two)
    assert recorded(TrainConfig(processes=two)) == recorded(TrainConfig())


def test_a_batch_is_dealt_out_evenly():
    bank = types.SimpleNamespace(stayed=np.zeros((8, 4, 3)))
    three = types.SimpleNamespace(size=3)
    with pytest.raises(ValueError, match=r"train.exact.batch: expected a multiple of 3.* got 8"):
        ExactTrainer(TrainSettings(), [bank], 1, three)


def started(cluster, *words):
    argv = [
        sys.executable,
        "-m",
        "experiments.train",
        "--cluster",
        str(cluster),
        *TINY.split(),
        *words,
    ]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.nightly
def test_two_processes_train_the_policy_of_one(tmp_path):
    """The same draws and sums: what differs is the order in which scenarios are added."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        at = f"127.0.0.1:{free.getsockname()[1]}"
    cluster = tmp_path / "two-sites.yaml"
    cluster.write_text(two_sites_yaml(40.0, 30.0))
    many = ("--processes.coordinator", at, "--processes.count", "2", "--processes.index")
    runs = {
        "alone": started(cluster, "--out", str(tmp_path / "alone")),
        "first": started(cluster, "--out", str(tmp_path / "both"), *many, "0"),
        "other": started(cluster, "--out", str(tmp_path / "none"), *many, "1"),
    }
    try:
        for name, process in runs.items():
            _, said = process.communicate(timeout=900)
            assert process.returncode == 0, (name, said[-500:])
    finally:  # the others wait for one that failed
        for process in runs.values():
            process.kill()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alone", "both", cluster.name]
    alone, both = (load(tmp_path / name).table("metrics") for name in ("alone", "both"))
    for name in ("progress_rel", "gradient_norm", "prior_scale"):
        assert both[name].to_numpy() == pytest.approx(alone[name].to_numpy(), rel=1e-3), name
    first = alone["update"] == 1
    assert both["gradient_norm"][first].to_numpy() == pytest.approx(
        alone["gradient_norm"][first].to_numpy(), rel=1e-5
    )
