"""From measured paths to a trace in which every link of a cluster replays one path's movement.

The level of a measured path is that of its own two machines; what carries over to another network
is how it moves around its median. So each path becomes a series of factors: the mean of the tests
that fall in an interval over the median of these means. Intervals without a test are dropped and
the rest joined, because a 10 s test held over a gap would stand for time in which nobody looked.

Paths differ in length. Cutting all to the shortest, or repeating the shorter ones up to the
longest, counts some intervals up to twice as often as others of the same path, and on measured
paths moves the share of samples outside +-30 % by up to 7 points. Therefore every link repeats its
path cyclically up to `ROUNDS` times the longest path: the weights of two intervals of one path then
differ by at most one in `ROUNDS`, and links of different length do not keep meeting in step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from jaxsim.files import InputError, check_names, listed, numbers, read_text_table

ROUNDS = 5
MIN_INTERVALS = 5  # below this a median says little about a path
FLOOR = 0.01  # a stalled interval: a link of bandwidth 0 would never finish a transfer
WIDE = 0.3  # the +-30 % that samples are compared with

# The two kinds of measurement files: seconds and rate of one test, or of one sample in a test.
TESTS = ("path", "unix_s", "received_mbps")
SAMPLES = ("path", "t_s", "mbps")


@dataclasses.dataclass(frozen=True)
class Movement:
    """How measured paths move, in intervals of one length."""

    factors: dict[str, np.ndarray]  # path -> [n] mean of the interval over the path's median
    n_measured: dict[str, int]  # path -> measurements behind its factors
    n_stalled: dict[str, int]  # path -> intervals raised to FLOOR
    left_out: dict[str, str]  # path -> why it is not used


@dataclasses.dataclass(frozen=True)
class LinkTrace:
    """What every directed link replays."""

    links: tuple[tuple[str, str], ...]  # E directed links
    paths: tuple[str, ...]  # [E] measured path behind each link
    factors: np.ndarray  # [R, E] relative to the link's base
    interval_s: int

    def to_csv(self) -> str:
        """Return the text of the trace file, `t_s,src,dst,factor`, in order of time."""
        n_rows, n_links = self.factors.shape
        source, destination = zip(*self.links, strict=True)
        frame = pd.DataFrame(
            {
                "t_s": np.repeat(np.arange(n_rows) * self.interval_s, n_links),
                "src": np.tile(source, n_rows),
                "dst": np.tile(destination, n_rows),
                "factor": self.factors.ravel(),
            }
        )
        return frame.to_csv(index=False, float_format="%.6g", lineterminator="\n")


def read_measurements(path: str | Path) -> pd.DataFrame:
    """Read a file of tests or of samples (.gz included) into path, t_s [s], mbps [Mbit/s].

    Raises InputError that names the file, the line and the column.
    """
    frame = read_text_table(path)
    columns = next((c for c in (TESTS, SAMPLES) if set(c) <= set(frame.columns)), None)
    if columns is None:
        raise InputError(
            f"{path}: expected the columns {', '.join(TESTS)} or {', '.join(SAMPLES)}; "
            f"the file has: {listed(frame.columns)}"
        )
    name, time, rate = columns
    check_names(frame[name], path)
    return pd.DataFrame(
        {
            "path": frame[name].to_numpy(),
            "t_s": numbers(frame[time], path),
            "mbps": numbers(frame[rate], path),
        }
    )


def interval_means(t_s: np.ndarray, mbps: np.ndarray, interval_s: int) -> np.ndarray:
    """Return [n] the mean of the tests in each interval that has one, in order of time.

    Intervals are counted from the first test; those without a test are dropped.
    """
    row = np.floor((t_s - t_s.min()) / interval_s).astype(np.int64)
    return pd.Series(mbps).groupby(row).mean().to_numpy()


def relative_movement(measurements: pd.DataFrame, interval_s: int) -> Movement:
    """Turn measurements (path, t_s, mbps) into factors around each path's median."""
    factors, n_measured, n_stalled, left_out = {}, {}, {}, {}
    for path, tests in measurements.groupby("path"):
        means = interval_means(tests["t_s"].to_numpy(), tests["mbps"].to_numpy(), interval_s)
        median = np.median(means)
        if len(means) < MIN_INTERVALS:
            left_out[path] = f"tests in {len(means)} intervals, {MIN_INTERVALS} are needed"
        elif median <= 0:
            left_out[path] = "nothing received in most intervals"
        else:
            relative = means / median
            factors[path] = np.maximum(relative, FLOOR)
            n_measured[path] = len(tests)
            n_stalled[path] = int((relative < FLOOR).sum())
    return Movement(factors, n_measured, n_stalled, left_out)


def draw_paths(
    lengths: Mapping[str, int], n_links: int, seed: int
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Draw a path for each link, without replacement until the paths run out.

    A path starts at its first interval; where it is drawn again, at a drawn one, so that two links
    of one path do not move in step.

    Returns:
        [E] paths and [E] the interval at which each link enters its path.
    """
    generator = np.random.default_rng(seed)
    names = sorted(lengths)
    paths, starts = [], []
    while len(paths) < n_links:
        again = bool(paths)
        for index in generator.permutation(len(names))[: n_links - len(paths)]:
            name = names[index]
            paths.append(name)
            starts.append(int(generator.integers(lengths[name])) if again else 0)
    return tuple(paths), tuple(starts)


def build_trace(
    movement: Movement, domains: Sequence[str], interval_s: int, seed: int
) -> LinkTrace:
    """Let every directed link of `domains` replay a measured path; see the module for how.

    Raises InputError where there is no link or no path to replay.
    """
    links = tuple((a, b) for a in domains for b in domains if a != b)
    if not links:
        raise InputError("--cluster: has one domain, so there is no link to make a trace for")
    if not movement.factors:
        why = "; ".join(f"{path}: {reason}" for path, reason in movement.left_out.items())
        raise InputError(f"--measurements: no path can be replayed: {why}")
    lengths = {path: len(series) for path, series in movement.factors.items()}
    paths, starts = draw_paths(lengths, len(links), seed)
    n_rows = ROUNDS * max(lengths[path] for path in paths)
    columns = [
        np.resize(np.roll(movement.factors[path], -start), n_rows)
        for path, start in zip(paths, starts, strict=True)
    ]
    return LinkTrace(links, paths, np.stack(columns, axis=1), interval_s)


def summarise(trace: LinkTrace, movement: Movement, source: str) -> str:
    """Say in one paragraph what the trace was made from and how far it moves."""
    used = sorted(set(trace.paths))
    lengths = [len(movement.factors[path]) for path in used]
    measured = sum(movement.n_measured[path] for path in used)
    stalled = sum(movement.n_stalled[path] for path in used)
    n_rows, n_links = trace.factors.shape
    outside = np.mean(np.abs(trace.factors - 1.0) > WIDE)
    low, high = np.percentile(trace.factors, [5, 95])
    n_paths = len(movement.factors) + len(movement.left_out)
    parts = [
        f"{n_links} links replay {len(used)} of {n_paths} measured paths in {source} ({measured} "
        f"measurements in {sum(lengths)} intervals of {trace.interval_s} s, {min(lengths)} to "
        f"{max(lengths)} a path, gaps dropped), repeated cyclically to {n_rows} intervals "
        f"({n_rows * trace.interval_s / 3600:.3g} h).",
        f"{outside:.1%} of the samples lie outside +-{WIDE:.0%} of the link's base; p5 {low:.2f}, "
        f"p95 {high:.2f}, lowest {trace.factors.min():.2f}, highest {trace.factors.max():.2f}.",
    ]
    if len(used) < n_links:
        parts.append(f"Links that repeat another's path from elsewhere: {n_links - len(used)}.")
    if stalled:
        parts.append(f"Stalled intervals raised to {FLOOR:g} of the base: {stalled}.")
    if movement.left_out:
        reasons = "; ".join(f"{path} ({why})" for path, why in movement.left_out.items())
        parts.append(f"Left out: {reasons}.")
    return " ".join(parts)
