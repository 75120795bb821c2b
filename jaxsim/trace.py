"""Trace CSV files: how the links of a cluster move over time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from jaxsim.cluster import ClusterSpec
from jaxsim.errors import InputError


def read_network_trace(path: str | Path, cluster: ClusterSpec, interval_s: float) -> np.ndarray:
    """Read `t_s,src,dst,bandwidth_gbps` or `t_s,src,dst,factor` into factors [R, K, K].

    A factor is relative to the cluster's base; each interval holds the mean of its samples, an
    interval without one keeps the last, a link without any keeps 1. Raises InputError that names
    the file, the line and the allowed values.
    """
    try:
        frame = pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as a trace CSV: {error}") from None
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
    index = {name: k for k, name in enumerate(cluster.domains)}
    i = frame["src"].map(index).to_numpy()
    j = frame["dst"].map(index).to_numpy()
    factor = numbers[value].to_numpy(float)
    if value == "bandwidth_gbps":
        factor = factor / cluster.bandwidth_gbps[i, j]
    return _bin(numbers["t_s"].to_numpy(float), i, j, factor, cluster.n_domains, interval_s)


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
