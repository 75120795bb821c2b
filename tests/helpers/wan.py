"""Tests of emulated networks: who may run them, and what is there before and after."""

import os
import subprocess
from pathlib import Path

import pytest

from ddp_bench.wan import missing

needs_networks = pytest.mark.skipif(
    bool(missing()), reason=f"emulated networks cannot be made here: {missing()}"
)


def host_state():
    """Namespaces, devices, routes, processes of the emulator and files of state, as they are now."""

    def ip(*words):
        return subprocess.run(["ip", *words], capture_output=True, text=True, check=True).stdout

    processes = [
        pid.name
        for pid in Path("/proc").iterdir()
        if pid.name.isdigit() and b"ddp_bench.wan" in _command(pid)
    ]
    return {
        "namespaces": sorted(line.split()[0] for line in ip("netns", "list").splitlines()),
        "devices": ip("-br", "link"),
        "routes": ip("route"),
        "processes": sorted(processes),
        "files": sorted(os.listdir("/run/hippo-wan")) if os.path.isdir("/run/hippo-wan") else [],
    }


def _command(pid):
    try:
        return (pid / "cmdline").read_bytes()
    except OSError:
        return b""
