"""The emulator's process: what it asks of the kernel."""

import os
import struct

from ddp_bench.wan import emulator


def test_processors_are_asked_to_stay_awake_where_the_kernel_can_be_asked(tmp_path, monkeypatch):
    """No latency [us] is allowed while the file is open; where there is none, it does without."""
    file = tmp_path / "latency"
    monkeypatch.setattr(emulator, "CPU_LATENCY", str(file))
    assert emulator.stay_awake() is None
    file.touch()
    held = emulator.stay_awake()
    os.close(held)
    assert struct.unpack("=i", file.read_bytes()) == (0,)
