"""Measured collectives as a file that `hippo calibrate` and `hippo validate` recognise."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ddp_bench.microbench.collectives import Point

HEADER = "coll,log,ranks,bytes,time_us,algbw_GBps,busbw_GBps"


def profile_name(gpu: str) -> str:
    """Name of the file. Its readers know the type of the GPU by it: "NVIDIA H100 80GB HBM3" gives
    collectives_nvidia-h100-80gb-hbm3.csv."""
    plain = "".join(c if c.isalnum() else "-" for c in gpu.lower())
    return f"collectives_{plain}.csv"


def write_profile(path: Path, points: Sequence[Point]) -> None:
    """One row per all-reduce, in the columns of nccl-tests; all ranks share one node."""
    lines = [HEADER]
    for point in points:
        if point.collective == "all_reduce":
            rates = f"{point.algbw / 1e9:.6g},{point.busbw / 1e9:.6g}"
            numbers = f"{point.ranks},{point.size},{1e6 * point.timed.median:.6g}"
            lines.append(f"all_reduce_perf,toolbox_N1_,{numbers},{rates}")
    path.write_text("\n".join(lines) + "\n")
