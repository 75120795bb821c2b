"""Trace CSV files: how the links of a cluster move over time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from jaxtyping import Float

from jaxsim.cluster import ClusterSpec
from jaxsim.files import InputError, known_names, numbers, read_text_table

MAX_INTERVALS = 100_000  # of a replayed file: its table [R, K, K] must fit into memory
COLUMNS = (("t_s", "src", "dst", "bandwidth_gbps"), ("t_s", "src", "dst", "factor"))
SMALLEST = 1e-9  # factor or Gbit/s: a link of bandwidth 0 would never finish a transfer


def read_network_trace(
    path: str | Path, cluster: ClusterSpec, interval_s: float
) -> Float[np.ndarray, "R K K"]:
    """Read `t_s,src,dst,bandwidth_gbps` or `t_s,src,dst,factor` into factors [R, K, K].

    A factor is relative to the cluster's base; each interval holds the mean of its samples, an
    interval without one keeps the last, a link without any keeps 1. Raises InputError that names
    the file, the line and the allowed values.
    """
    frame = read_text_table(path, "a trace CSV", "sample", COLUMNS)
    value = frame.columns[-1]
    for column in ("src", "dst"):
        known_names(frame[column], path, cluster.domains)
    t_s = numbers(frame["t_s"], path)
    factor = numbers(frame[value], path, above=0.0)
    if (factor < SMALLEST).any():
        line = frame.index[int(np.argmax(factor < SMALLEST))]
        raise InputError(f"{path}: line {line}: {value}: expected a number >= {SMALLEST:g}")
    loops = frame.index[frame["src"] == frame["dst"]]
    if len(loops):
        name, line = frame["src"][loops[0]], loops[0]
        raise InputError(f"{path}: line {line}: src and dst are both {name!r}; no link leads there")
    last = int(np.argmax(t_s))
    check_span(t_s[last], interval_s, f"{path}: line {frame.index[last]}: t_s")
    index = {name: k for k, name in enumerate(cluster.domains)}
    i = frame["src"].map(index).to_numpy()
    j = frame["dst"].map(index).to_numpy()
    if value == "bandwidth_gbps":
        factor = factor / cluster.bandwidth_gbps[i, j]
    return _bin(t_s, i, j, factor, cluster.n_domains, interval_s)


def check_span(stop_s: float, interval_s: float, where: str) -> None:
    """Raise InputError that begins with `where` for a time that is too many intervals away."""
    if stop_s > MAX_INTERVALS * interval_s:
        raise InputError(
            f"{where}: expected seconds from 0, at most {MAX_INTERVALS:,} intervals of "
            f"{interval_s:g} s, got {stop_s:.12g}"
        )


def _bin(t_s, i, j, factor, n_domains: int, interval_s: float) -> np.ndarray:
    row = np.floor(t_s / interval_s).astype(int)
    shape = (row.max() + 1, n_domains, n_domains)
    total, count = np.zeros(shape), np.zeros(shape)
    np.add.at(total, (row, i, j), factor)
    np.add.at(count, (row, i, j), 1)
    out = np.ones(shape, np.float32)
    last = np.ones(shape[1:])
    for r in range(shape[0]):
        last = np.where(count[r] > 0, total[r] / np.maximum(count[r], 1), last)
        out[r] = last
    return out
