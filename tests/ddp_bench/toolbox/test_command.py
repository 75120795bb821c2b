"""What a room's command says when the machine fails it."""

import os
import resource
import subprocess
import sys

import pytest

pytest.importorskip("torch")

from ddp_bench.toolbox.launch import ROOT


def _no_file_may_grow():
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))


def test_a_full_disk_ends_a_room_with_one_line(tmp_path):
    """A limit on the size of files, as a full disk would be. Python ignores the signal of it."""
    options = ("--what", "copy", "--repeats", "2", "--limit_s", "0", "--out", tmp_path / "run")
    done = subprocess.run(
        [sys.executable, "-m", "ddp_bench.microbench", *map(str, options)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        cwd=tmp_path,
        preexec_fn=_no_file_may_grow,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2 and "File too large" in done.stderr
    assert len(done.stderr.splitlines()) == 1
