"""Fit processes of links to measured paths, and check them on what they were not fitted to."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from tqdm import tqdm

from analysis.records import RunWriter
from experiments.common import check_output, write_text
from jaxsim.files import InputError
from jaxsim.network import (
    COPIES,
    KINDS,
    LIMITS,
    REVERSED,
    STATISTICS,
    WIDE,
    Check,
    LinkProcesses,
    PathFit,
    Series,
    best_kind,
    ceiling,
    check_crossed,
    check_later,
    check_others,
    combine,
    fit_path,
    load_link_processes,
    own_rows,
    pooled_autocorrelation,
    random_halves,
    read_series,
    replicate,
)

LEVELS_SHOWN = (0.005, 0.01, 0.02, 0.05, *np.linspace(0.1, 0.9, 17), 0.95, 0.98, 0.99, 0.995)
LAGS_SHOWN = tuple(range(1, 11))
RESAMPLES = 500
HALVES = 50
SHARES = (0.5, 0.6, 0.7, 0.8)


def fit(options: argparse.Namespace) -> None:
    """Fit every kind of process, check each on what it was not fitted to, write file and run."""
    target = check_output(options.out)
    series, left_out = read_series(options.traces, options.interval)
    if len(series) < 2:
        raise InputError("--traces: one path can be used; 2 are needed to check one on the other")
    interval_s, seed = float(options.interval), options.seed
    config = {
        "traces": options.traces,
        "interval_s": interval_s,
        "fit_share": options.fit_share,
        "kind": options.kind,
        "out": str(options.out),
    }
    with RunWriter.create("network_fit", config, seed, options.run_dir) as writer:
        fits = {
            kind: [fit_path(one, interval_s, kind) for one in series]
            for kind in tqdm(KINDS, desc="fit", unit="kind")
        }
        checks = _checks(series, fits, interval_s, options.fit_share, seed)
        writer.append("checks", [row for kind in KINDS for row in _check_rows(kind, checks[kind])])
        halves = _halves(writer, series, fits, interval_s, seed)
        _parts(writer, series, interval_s, seed)
        _movement(writer, series, fits, interval_s, seed)
        kind = best_kind(checks) if options.kind == "best" else options.kind
        source = f"{', '.join(Path(t).name for t in options.traces)}, {len(series)} paths"
        links = {k: combine(fits[k], interval_s, k) for k in KINDS}
        made = LinkProcesses(interval_s, source, kind, links)
        write_text(target, made.to_yaml(), load_link_processes)
        writer.finish(
            {
                "kind": kind,
                "paths": len(series),
                "intervals": sum(len(one) for one in series),
                "left_out": left_out,
                "passed": {k: {c.name: c.passed for c in checks[k]} for k in KINDS},
                "random_halves": halves,
                "file": str(options.out),
            }
        )
    for line in _told(checks, kind):
        print(line)
    print(f"{options.out}: {len(series)} paths, {', '.join(KINDS)}; the file alone means {kind}")
    print(f"run folder: {writer.dir}")


def _checks(
    series: Sequence[Series],
    fits: Mapping[str, Sequence[PathFit]],
    interval_s: float,
    share: float,
    seed: int,
) -> dict[str, list[Check]]:
    """On the later part of every record; on groups of paths by the others; on every other path in
    order of name, both ways round."""
    even, odd = range(0, len(series), 2), range(1, len(series), 2)
    out = {}
    for kind in tqdm(KINDS, desc="check", unit="kind"):
        later = check_later(series, interval_s, kind, share, seed)
        args = (series, fits[kind], interval_s, kind)
        crossed = check_crossed(*args, seed)
        others = [check_others(*args, even, seed), check_others(*args, odd, seed, REVERSED)]
        out[kind] = [later, crossed, *others]
    return out


def _check_rows(kind: str, checks: Sequence[Check]) -> list[dict]:
    return [
        {
            "kind": kind,
            "check": one.name,
            "statistic": STATISTICS[i],
            "measured_pct": one.measured[i],
            "predicted_pct": one.predicted[i],
            "lo_pct": one.low[i],
            "hi_pct": one.high[i],
            "error_pp": one.error[i],
            "limit_pp": LIMITS[i],
        }
        for one in checks
        for i in range(len(STATISTICS))
    ]


def _halves(writer: RunWriter, series, fits, interval_s: float, seed: int) -> dict[str, float]:
    """Share of random halves of the paths whose fits pass on the other half, by kind; and of the
    pooled record of all paths, which no fit to a half can be expected to beat."""
    halves = random_halves(len(series), HALVES, seed)
    errors = {"all paths themselves": ceiling(series, halves)}
    for kind in tqdm(KINDS, desc="random halves", unit="kind"):
        args = (series, fits[kind], interval_s, kind)
        found = [check_others(*args, half, seed, copies=COPIES // 10) for half in halves]
        errors[kind] = np.array([one.error for one in found])
    rows = [
        {"forecast": name, "half": i, **dict(zip(STATISTICS, row.tolist(), strict=True))}
        for name, table in errors.items()
        for i, row in enumerate(table)
    ]
    writer.append("halves", rows)
    return {k: float((np.abs(v) <= LIMITS).all(axis=1).mean()) for k, v in errors.items()}


def _parts(writer: RunWriter, series: Sequence[Series], interval_s: float, seed: int) -> None:
    """Table of the errors on the later part of every record, by how much of it was fitted."""
    rows = []
    for share in tqdm(SHARES, desc="later parts", unit="share"):
        for kind in KINDS:
            one = check_later(series, interval_s, kind, share, seed)
            errors = dict(zip(STATISTICS, one.error.tolist(), strict=True))
            rows.append({"kind": kind, "fit_share": share, **errors, "passed": one.passed})
    writer.append("parts", rows)


def _movement(writer: RunWriter, series, fits, interval_s: float, seed: int) -> None:
    """Tables of quantiles, autocorrelation and share outside +-30 %: measured and every kind."""
    records = {"measured": resampled(series, seed)}
    for kind in KINDS:
        links = combine(fits[kind], interval_s, kind)
        copies = replicate(series, links, interval_s, own_rows(len(series)), seed)
        records[kind] = [(copy, series) for copy in copies]
    for name, copies in records.items():
        pools = [np.concatenate(factors) for factors, _ in copies]
        quantiles = np.array([100.0 * (np.quantile(p, LEVELS_SHOWN) - 1.0) for p in pools])
        memory = np.array([pooled_autocorrelation(f, s, LAGS_SHOWN)[0] for f, s in copies])
        outside = np.array([[_outside(f) for f in factors] for factors, _ in copies])
        factors = [one.factor for one in series]
        centre = {}
        if name == "measured":  # the estimate is the record itself, the copies say how sure it is
            centre["quantiles"] = 100.0 * (np.quantile(np.concatenate(factors), LEVELS_SHOWN) - 1.0)
            centre["memory"] = pooled_autocorrelation(factors, series, LAGS_SHOWN)[0]
            centre["outside"] = np.array([_outside(f) for f in factors])
        paths = [one.path for one in series]
        lags = [lag * interval_s for lag in LAGS_SHOWN]
        _append(writer, "quantiles", name, "level", LEVELS_SHOWN, quantiles, centre)
        _append(writer, "memory", name, "lag_s", lags, memory, centre)
        _append(writer, "outside", name, "path", paths, outside, centre)


def _outside(factors: np.ndarray) -> float:
    return 100.0 * float(np.mean(np.abs(factors - 1.0) > WIDE))


def _append(writer, table: str, source: str, key: str, at, copies: np.ndarray, centre: dict):
    low, high = np.nanquantile(copies, [0.025, 0.975], axis=0)
    middle = centre.get(table, np.nanmean(copies, axis=0))
    rows = zip(at, middle.tolist(), low.tolist(), high.tolist(), strict=True)
    writer.append(
        table,
        [{"source": source, key: k, "value": v, "lo": lo, "hi": hi} for k, v, lo, hi in rows],
    )


def resampled(series: Sequence[Series], seed: int) -> list[tuple[list[np.ndarray], list[Series]]]:
    """The measured paths with their bursts of tests drawn again, with replacement.

    Tests of one burst are not independent, bursts are as close to it as there is. A redrawn burst
    is set apart from its neighbours, so that no pair of intervals is made up.
    """
    generator = np.random.default_rng(seed)
    out = []
    for _ in range(RESAMPLES):
        drawn = [_redrawn(one, generator) for one in series]
        out.append(([one.factor for one in drawn], drawn))
    return out


def _redrawn(series: Series, generator: np.random.Generator) -> Series:
    bursts = np.split(np.arange(len(series)), np.flatnonzero(np.diff(series.bursts())) + 1)
    index, row, end = [], [], 0
    for pick in generator.integers(len(bursts), size=len(bursts)):
        burst = bursts[pick]
        index.append(burst)
        row.append(end + series.row[burst] - series.row[burst[0]])
        end = row[-1][-1] + 10 * max(LAGS_SHOWN)
    return Series(series.path, np.concatenate(row), series.factor[np.concatenate(index)], None)


def _told(checks: Mapping[str, Sequence[Check]], kind: str) -> list[str]:
    lines = ["worst error of pooled p5/p25/p75/p95 | of the share outside +-30 %, in points:"]
    for name in checks:
        parts = [
            f"{c.name} {np.abs(c.error[:4]).max():.1f} | {abs(c.error[4]):.1f}"
            f"{'' if c.passed else ' (too far)'}"
            for c in checks[name]
        ]
        lines.append(f"  {name + (' *' if name == kind else ''):10} {'; '.join(parts)}")
    return lines
