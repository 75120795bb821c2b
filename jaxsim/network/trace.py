"""Trace CSV files: how the links of a cluster move over time."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pandas as pd

from jaxsim.cluster import ClusterSpec
from jaxsim.files import InputError

MAX_INTERVALS = 100_000  # of a replayed file: its table [R, K, K] must fit into memory


def read_network_trace(path: str | Path, cluster: ClusterSpec, interval_s: float) -> np.ndarray:
    """Read `t_s,src,dst,bandwidth_gbps` or `t_s,src,dst,factor` into factors [R, K, K].

    A factor is relative to the cluster's base; each interval holds the mean of its samples, an
    interval without one keeps the last, a link without any keeps 1. Raises InputError that names
    the file, the line and the allowed values.
    """
    frame = _read_table(path)
    value = "factor" if "factor" in frame.columns else "bandwidth_gbps"
    if list(frame.columns) != ["t_s", "src", "dst", value]:
        raise InputError(f"{path}: expected the columns t_s,src,dst,bandwidth_gbps or ...,factor")
    if frame.empty:
        raise InputError(f"{path}: holds no sample")
    for column in ("src", "dst"):
        unknown = frame.index[~frame[column].isin(cluster.domains)]
        if len(unknown):
            name, line = frame[column][unknown[0]], unknown[0] + 2
            known = ", ".join(cluster.domains)
            raise InputError(f"{path}: line {line}: {column} {name!r} is unknown; known: {known}")
    numbers = frame[["t_s", value]].apply(pd.to_numeric, errors="coerce")
    bad = frame.index[
        ~np.isfinite(numbers).all(axis=1) | (numbers["t_s"] < 0) | (numbers[value] <= 0)
    ]
    if len(bad):
        raise InputError(
            f"{path}: line {bad[0] + 2}: t_s >= 0 and {value} > 0 are needed, got "
            f"{frame['t_s'][bad[0]]}, {frame[value][bad[0]]}"
        )
    loops = frame.index[frame["src"] == frame["dst"]]
    if len(loops):
        name, line = frame["src"][loops[0]], loops[0] + 2
        raise InputError(f"{path}: line {line}: src and dst are both {name!r}; no link leads there")
    last = int(numbers["t_s"].idxmax())
    check_span(numbers["t_s"][last], interval_s, f"{path}: line {last + 2}: t_s")
    index = {name: k for k, name in enumerate(cluster.domains)}
    i = frame["src"].map(index).to_numpy()
    j = frame["dst"].map(index).to_numpy()
    factor = numbers[value].to_numpy(float)
    if value == "bandwidth_gbps":
        factor = factor / cluster.bandwidth_gbps[i, j]
    return _bin(numbers["t_s"].to_numpy(float), i, j, factor, cluster.n_domains, interval_s)


def check_span(stop_s: float, interval_s: float, where: str) -> None:
    """Raise InputError that begins with `where` for a time that is too many intervals away."""
    if stop_s > MAX_INTERVALS * interval_s:
        raise InputError(
            f"{where}: expected seconds from 0, at most {MAX_INTERVALS:,} intervals of "
            f"{interval_s:g} s, got {stop_s:.12g}"
        )


def _read_table(path: str | Path) -> pd.DataFrame:
    """The cells as text: a domain may be called NA or 1."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # a row longer than the header
            return pd.read_csv(path, dtype=str, keep_default_na=False, index_col=False)
    except (OSError, ValueError, pd.errors.ParserWarning) as error:
        why = " ".join(str(error).split())
        raise InputError(f"{path}: cannot be read as a trace CSV: {why}") from None


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
