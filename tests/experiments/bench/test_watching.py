"""bench --what watch: how the figures come about."""

import json

import pytest

from experiments.bench import watching
from experiments.bench.episodes import bench_cluster
from experiments.common.errors import CheckError


def said(monkeypatch, text):
    """Instead of the command, a process that prints `text`, reads its input and prints its end."""
    end = '{"lines": %d, "within_ms": {"p50": 2.0, "p99": 4.0, "all": 8.0}}'
    program = f"import sys; print({text!r}, flush=True); print({end!r} % len(list(sys.stdin)))"
    real = watching.subprocess.Popen

    def started(command, **kwargs):
        assert "experiments.watch" in command
        return real([command[0], "-c", program], **kwargs)

    monkeypatch.setattr(watching.subprocess, "Popen", started)
    monkeypatch.setattr(watching, "MEASUREMENTS", 5)
    monkeypatch.setattr(watching, "EVERY_S", 0.001)


def test_every_measurement_is_sent_and_the_last_line_is_the_result(monkeypatch):
    said(monkeypatch, json.dumps({"ready": True}))
    found = watching.watching(bench_cluster(2), repeats=2)
    assert found["measurements"] == 10
    assert found["hi_ppo_within_ms"] == {"p50": 2.0, "p99": 4.0, "all": 8.0}
    assert (found["per_s"], found["p99_ms"], found["peers"]) == (500.0, 4.0, {"hysteresis": 500.0})
    assert found["compile_s"] > 0


def test_a_process_that_ends_early_is_an_error(monkeypatch):
    real = watching.subprocess.Popen
    monkeypatch.setattr(
        watching.subprocess,
        "Popen",
        lambda command, **kwargs: real([command[0], "-c", "raise SystemExit(3)"], **kwargs),
    )
    with pytest.raises(CheckError, match="ended before it was ready"):
        watching.watching(bench_cluster(2), repeats=1)
