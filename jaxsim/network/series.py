"""Measured paths as series of factors: what the processes are fitted to and the predictors tried on.

A series holds one value per interval that has a measurement and the interval's number, so that a
gap stays a gap: a burst of tests, an hour of nothing and another burst are not one record.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Int

from jaxsim.files import InputError, numbers, read_text_table, require_columns
from jaxsim.network.replay import FLOOR, MIN_INTERVALS, read_measurements

RTT_COLUMN = "median_rtt_ms"
TRACE = ("t_s", "src", "dst")
MIN_FIT = 4 * MIN_INTERVALS  # below this a path's tails and memory cannot be fitted


@dataclasses.dataclass(frozen=True)
class Series:
    """One path: how its rate and its round trip move around their medians."""

    path: str
    row: np.ndarray  # [n] int, number of the interval, ascending
    factor: np.ndarray  # [n] mean of the interval over the median of these means, > 0
    rtt: np.ndarray | None  # [n] the same of the round trip

    def __len__(self) -> int:
        return len(self.row)

    def part(self, keep: slice) -> Series:
        """A part of the record, around its own medians."""
        rtt = None if self.rtt is None else _relative(self.rtt[keep])
        return Series(self.path, self.row[keep], _relative(self.factor[keep]), rtt)

    def first(self, share: float) -> Series:
        """The first `share` of the intervals."""
        return self.part(slice(0, round(share * len(self))))

    def rest(self, share: float) -> Series:
        """What `first` leaves."""
        return self.part(slice(round(share * len(self)), None))

    def bursts(self, gap: int = 3) -> Int[np.ndarray, " N"]:
        """[n] number of the burst: intervals with fewer than `gap` intervals between them."""
        return np.cumsum(np.diff(self.row, prepend=self.row[:1]) > gap)


def _relative(values: np.ndarray) -> np.ndarray:
    return values / np.median(values)


def read_series(files: Sequence[str | Path], interval_s: float) -> tuple[list[Series], dict]:
    """Read measurements and trace files into series, in order of the paths' names.

    A file holds tests (path,unix_s,received_mbps; with median_rtt_ms also the round trip), samples
    (path,t_s,mbps), or a trace (t_s,src,dst,bandwidth_gbps or factor); .gz included.

    Returns:
        the series, and for each path left out the reason.

    Raises:
        InputError: that names the file, the line and the column, or says that no path is usable.
    """
    frames: dict[str, pd.DataFrame] = {}
    for file in files:
        for path, frame in _read(file).groupby("path"):
            if path in frames:
                raise InputError(f"{file}: path {path!r} is in another of the files too")
            frames[path] = frame
    series, left_out = [], {}
    for path in sorted(frames):
        one = _series(path, frames[path], interval_s)
        if isinstance(one, str):
            left_out[path] = one
        else:
            series.append(one)
    if not series:
        why = "; ".join(f"{path}: {reason}" for path, reason in left_out.items())
        raise InputError(f"{', '.join(map(str, files))}: no path can be used: {why}")
    return series, left_out


def _read(file: str | Path) -> pd.DataFrame:
    """path, t_s, rate and, where every row has one, rtt."""
    text = read_text_table(file)
    if set(TRACE) <= set(text.columns):
        value = "factor" if "factor" in text.columns else "bandwidth_gbps"
        require_columns(text, (*TRACE, value), file)
        columns = {"t_s": numbers(text["t_s"], file), "rate": numbers(text[value], file)}
        return pd.DataFrame({"path": (text["src"] + ">" + text["dst"]).to_numpy(), **columns})
    frame = read_measurements(file).rename(columns={"mbps": "rate"})
    if RTT_COLUMN in text.columns and (text[RTT_COLUMN] != "").all():
        frame["rtt"] = numbers(text[RTT_COLUMN], file, above=0.0)
    return frame


def _series(path: str, frame: pd.DataFrame, interval_s: float) -> Series | str:
    """The series of a path, or why there is none."""
    row = np.floor((frame["t_s"] - frame["t_s"].min()) / interval_s).astype(np.int64)
    means = frame.drop(columns=["path", "t_s"]).groupby(row.to_numpy()).mean()
    if len(means) < MIN_FIT:
        return f"measured in {len(means)} intervals, {MIN_FIT} are needed"
    rate = means["rate"].to_numpy()
    if np.median(rate) <= 0:
        return "nothing received in most intervals"
    factor = np.maximum(_relative(rate), FLOOR)
    rtt = _relative(means["rtt"].to_numpy()) if "rtt" in means else None
    return Series(path, means.index.to_numpy(), factor, rtt)
