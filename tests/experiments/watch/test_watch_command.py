"""The command as a process: killed and started again, and for a very long time."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SMALL = ["--scheduler", "hysteresis", "--global_batch", "64", "--table_size", "4"]
SMALL += ["--layout_limit", "30"]
LINKS = ("virginia", "ohio", "oregon", "ireland")


def started(*words):
    command = [sys.executable, "-m", "experiments.watch", *SMALL, *words]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=env)


def line(of):
    return json.loads(of.stdout.readline())


def tell(to, *bodies):
    to.stdin.write("".join(json.dumps(body) + "\n" for body in bodies).encode())
    to.stdin.flush()


def dead(*names):
    return [
        {"src": a, "dst": b, "bandwidth_gbps": 0.001} for a in names for b in LINKS if a != b
    ] + [{"src": b, "dst": a, "bandwidth_gbps": 0.001} for a in names for b in LINKS if a != b]


@pytest.mark.nightly
def test_a_service_that_is_stopped_says_how_it_ended():
    watch = started()
    assert line(watch)["ready"]
    tell(watch, {"domain": "ohio", "gpus_available": 0}, {"domain": "nowhere"})
    assert line(watch)["decision"] == 1
    watch.terminate()
    assert watch.wait(20) == 0
    assert json.loads(watch.stdout.read().splitlines()[-1])["end"] is True


@pytest.mark.nightly
def test_after_a_kill_the_next_decision_is_that_of_a_process_that_was_not_killed(tmp_path):
    file, never = tmp_path / "state", ["--interval_s", "100000"]
    killed, witness = started("--state", str(file), *never), started(*never)
    for process in (killed, witness):
        assert line(process)["restored"] is False
        tell(process, {"domain": "ohio", "gpus_available": 0})
        moved = line(process)
        assert moved["decision"] == 1 and "ohio" not in moved["plan"]
    while not file.exists() or json.loads(file.read_text())["body"]["decisions"] < 1:
        pass
    killed.kill()
    assert killed.wait() == -signal.SIGKILL
    second = started("--state", str(file), *never)
    ready = line(second)
    assert ready["restored"] and ready["plan"] == moved["plan"]
    told = []
    for process in (second, witness):
        tell(process, *({"domain": x, "gpus_available": 0} for x in ("virginia", "oregon")))
        told.append(line(process))
        process.kill()
        process.wait()
        told[-1].pop("decision_ms"), told[-1].pop("latency_ms")
    assert told[0] == told[1] and told[0]["decision"] == 2 and told[0]["because"]


@pytest.mark.nightly
def test_a_million_lines_take_no_more_memory_than_the_first_ones(tmp_path):
    process = started("--state", str(tmp_path / "state"))
    assert line(process)["ready"]
    rest = []
    reader = threading.Thread(target=lambda: rest.extend(process.stdout.read().splitlines()))
    reader.start()
    block = "".join(
        json.dumps({"src": a, "dst": b, "bandwidth_gbps": 2.0 + 0.001 * n}) + "\n"
        for n in range(800)
        for a in LINKS
        for b in LINKS
        if a != b
    ).encode()
    block += b"broken\n" * (10_000 - block.count(b"\n"))
    sizes = []
    for _ in range(100):
        process.stdin.write(block)
        process.stdin.flush()
        sizes.append(resident_mb(process.pid))
    process.stdin.close()
    reader.join(timeout=600)
    assert process.wait(timeout=60) == 0
    end = json.loads(rest[-1])
    assert end["lines"] == 1_000_000 and end["refused"] == 100 * 400
    assert max(sizes[20:]) - sizes[19] < 16, sizes  # [MB]
    assert len(process.stderr.read().splitlines()) < 100


def resident_mb(pid):
    for text in Path(f"/proc/{pid}/status").read_text().splitlines():
        if text.startswith("VmRSS:"):
            return int(text.split()[1]) / 1024
    raise AssertionError("the process has ended")
