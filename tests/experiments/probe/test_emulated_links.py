"""Probes over links whose rate and round trip are known: namespaces joined by the emulator."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.wan import needs_networks

from ddp_bench.wan import check, lifecycle, tun
from jaxsim.cluster.cluster import load_cluster

ROOT = Path(__file__).parents[3]
PROBE = (sys.executable, "-m", "experiments.probe")
pytestmark = needs_networks


@contextlib.contextmanager
def serving(domain, token, env):
    """`hippo probe serve` in the namespace of a domain; its address."""
    where = tun.address(domain)
    words = [*PROBE, "serve", "--token", token, "--bind", where, "--port", "0"]
    command = lifecycle.command(check.NAME, f"d{domain}", words)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
        try:
            yield process.stdout.readline().split()[-1]
        finally:
            process.kill()


@pytest.mark.nightly
@pytest.mark.parametrize("mbps", [50, 200, 800])
def test_bandwidth_within_a_tenth_and_round_trip_within_a_millisecond(tmp_path, mbps):
    (tmp_path / "token").write_text("a token of the tests")
    token, out, env = str(tmp_path / "token"), tmp_path / "two.yaml", {**os.environ}
    env["PYTHONPATH"] = str(ROOT)
    rtt_ms = 20.0
    with (
        check.brought_up(check.pair_network(mbps, rtt_ms)),
        serving(0, token, env) as zero,
        serving(1, token, env) as one,
    ):
        words = [*PROBE, "run", "--token", token, "--hosts", f"zero={zero},one={one}"]
        words += ["--seconds", "4", "--mbytes", "500", "--rounds", "1", "--out", str(out)]
        command = lifecycle.command(check.NAME, "d0", words)
        told = subprocess.run(command, capture_output=True, text=True, env=env, timeout=120)
        assert told.returncode == 0, told.stderr
    spec = load_cluster(out)
    for i, j in ((0, 1), (1, 0)):
        assert 1e3 * spec.bandwidth_gbps[i, j] == pytest.approx(mbps, rel=0.1)
        assert spec.rtt_ms[i, j] == pytest.approx(rtt_ms, abs=1.0)
