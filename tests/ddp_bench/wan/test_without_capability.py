"""Without the capability: one line, nothing made."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from ddp_bench.errors import ConfigError
from ddp_bench.wan import capability, check, lifecycle
from ddp_bench.wan.__main__ import main


@pytest.fixture
def powerless(monkeypatch):
    monkeypatch.setattr(capability, "_effective", lambda: 0)
    monkeypatch.setattr(capability.shutil, "which", lambda name: f"/sbin/{name}")
    monkeypatch.setattr(capability.os, "access", lambda *_: True)


def test_the_check_is_skipped_with_the_reason(powerless, capsys):
    assert main(["check"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("skipped: ") and "CAP_NET_ADMIN" in out and out.count("\n") == 1


def test_a_network_is_refused_with_the_reason(powerless):
    with pytest.raises(ConfigError, match="lacks CAP_NET_ADMIN"):
        lifecycle.serve(check.pair_network(20, 10))


def test_a_machine_without_the_tools_says_which(monkeypatch):
    monkeypatch.setattr(capability.shutil, "which", lambda name: None)
    assert "iproute2" in capability.missing()


def test_what_is_missing_is_told_for_scripts(powerless, capsys, monkeypatch):
    assert main(["capability"]) == 0
    assert capsys.readouterr().out == "the process lacks CAP_NET_ADMIN\n"
    monkeypatch.setattr(capability, "_effective", lambda: -1)
    monkeypatch.setattr(capability.sys, "platform", "linux")
    assert main(["capability"]) == 0
    assert capsys.readouterr().out == "\n"


def test_make_wan_is_one_line_and_no_failure():
    root = Path(__file__).parents[3]
    drop = ["setpriv", "--bounding-set", "-net_admin", "--inh-caps", "-net_admin"]
    if os.geteuid() != 0 or not shutil.which("setpriv") or not (root / ".venv" / "ddp").exists():
        pytest.skip("needs root, setpriv, and what `make install .venv/ddp` installs")
    words = [*drop, "make", "--no-print-directory", "-o", ".venv/core", "-o", ".venv/ddp", "wan"]
    done = subprocess.run(words, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("skipped: ") and done.stdout.count("\n") == 1
