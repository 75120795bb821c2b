"""Compute time of a rank: thread CPU time on CPUs (ranks share cores), CUDA events on GPUs."""

from __future__ import annotations

import time

import torch


class ComputeTimer:
    """Context manager; `ms` after leaving is the compute time of the block."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self.ms = 0.0

    def __enter__(self) -> ComputeTimer:
        if self._cuda:
            self._begin = torch.cuda.Event(enable_timing=True)
            self._end = torch.cuda.Event(enable_timing=True)
            self._begin.record()
        else:
            self._start = time.thread_time()
        return self

    def __exit__(self, *error: object) -> None:
        if self._cuda:
            self._end.record()
            self._end.synchronize()
            self.ms = self._begin.elapsed_time(self._end)
        else:
            self.ms = 1e3 * (time.thread_time() - self._start)


def peak_memory_mb(device: torch.device) -> float | None:
    """Peak of allocated GPU memory since the last call [MB]; None on a CPU, which counts none."""
    if device.type != "cuda":
        return None
    peak = torch.cuda.max_memory_allocated(device) / 1e6
    torch.cuda.reset_peak_memory_stats(device)
    return peak
