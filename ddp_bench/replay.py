"""Schedules without training: the arms in lockstep in one process, their cost from a fitted model.

    python -m ddp_bench.replay --run_dir RUN

reads the fitted cost and the length distribution of a finished run and writes modelled.csv into
it: the slowest rank's modelled compute time for several global batches, a longer-tailed length
distribution, every cost type and every solver. Modelled, not measured: noise, stragglers and
communication are not in it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ddp_bench.arms import Arm, Share, make_arm
from ddp_bench.config import ARMS, ArmSpec, Settings, parse_arm
from ddp_bench.errors import ConfigError
from ddp_bench.scheduler import FIT_COLUMNS

if TYPE_CHECKING:
    import pandas as pd

VARIANTS = (
    "dynamic@tokens",
    "dynamic@tokens_sq",
    "dynamic@greedy",
    "pooled@tokens",
    "pooled@tokens_sq",
)
BATCHES = (32, 64, 128)
TAIL = 4.0  # lengths beyond the 90th centile are stretched by this


class _Lazy:
    """A message read when it is waited for."""

    def __init__(self, read: Any) -> None:
        self.wait = read


class Lockstep:
    """The scheduler's messages between arms that one process drives phase by phase."""

    def __init__(self, rank: int, ranks: int, board: dict) -> None:
        self.rank, self.ranks, self._board = rank, ranks, board
        self._rows = self._counts = 0

    def post_rows(self, row: np.ndarray) -> _Lazy:
        """See `comm.Control.post_rows`."""
        serial = self._rows = self._rows + 1
        self._board["rows", serial, self.rank] = row
        names = [("rows", serial, rank) for rank in range(self.ranks)]
        return _Lazy(lambda: np.stack([self._board[name] for name in names]))

    def post_counts(self, counts: list[int] | None) -> _Lazy:
        """See `comm.Control.post_counts`."""
        serial = self._counts = self._counts + 1
        if counts is not None:
            self._board["counts", serial] = np.array(counts)
        return _Lazy(lambda: self._board["counts", serial])


def make_team(
    spec: ArmSpec,
    settings: Settings,
    lengths: np.ndarray,
    ranks: int,
    caps: list[int] | None = None,
) -> list[Arm]:
    """One arm on all its ranks, in this process."""
    board: dict = {}
    return [
        make_arm(spec, settings, lengths, Lockstep(rank, ranks, board), caps)
        for rank in range(ranks)
    ]


def advance_one(team: list[Arm]) -> list[Share]:
    """One step of all ranks."""
    for arm in team:
        arm.post()
    for arm in team:  # rank 0 first: it solves, the others read
        arm.overlap()
    return [arm.next() for arm in team]


def modelled_times(
    team: list[Arm], steps: int, coefficients: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float]:
    """(slowest rank's time [steps], mean over ranks [steps], share of padding) under a true cost.

    Args:
        coefficients: (a, b, c) [ms] of a + b T + c T2, which the arms' own fit also sees.
    """
    times = np.empty((steps, len(team)))
    padded = real = 0.0
    for step in range(steps):
        shares = advance_one(team)
        pieces = [[share.ids] if len(share.ids) else [] for share in shares]
        features = np.array([arm.features(p) for arm, p in zip(team, pieces, strict=True)])
        times[step] = coefficients[0] + features @ coefficients[1:]
        padded += features[:, 0].sum()
        real += sum(team[0].lengths[share.ids].sum() for share in shares)
        for arm in team:
            arm.observe(features, times[step])
    return times.max(axis=1), times.mean(axis=1), 1 - real / padded


def stretched(lengths: np.ndarray, tail: float, longest: int) -> np.ndarray:
    """Lengths with those beyond the 90th centile stretched, cut at `longest`."""
    knee = np.percentile(lengths, 90)
    long = lengths > knee
    result = np.where(long, knee + (lengths - knee) * tail, lengths)
    return np.minimum(result.round().astype(int), longest)


def _fitted(table: pd.DataFrame, kernels: str) -> np.ndarray | None:
    """(a, b, c) that the run fitted to all its steps for padded or packed arms, if it could."""
    rows = table[(table["steps"] == "all") & (table["kernels"] == kernels)]
    return None if rows.empty else rows[list(FIT_COLUMNS[4:])].iloc[0].to_numpy(float)


def replay_run(folder: Path, steps: int = 120) -> list[dict]:
    """Rows of modelled.csv for a finished run.

    Raises:
        ConfigError: when the folder is no finished run of this package.
    """
    from analysis.records import RecordError, load

    try:
        record = load(folder)
        fits = record.table("cost_fit", FIT_COLUMNS)
        counts = json.loads((folder / "lengths.json").read_text())["count"]
    except (RecordError, OSError, KeyError, ValueError) as error:
        raise ConfigError(f"{folder}: not a finished run: {error}") from None
    lengths = np.repeat(np.arange(len(counts)), counts)
    config = {k: v for k, v in record.run["config"].items() if k in Settings.__dataclass_fields__}
    settings = Settings(**config)
    truth = {kernels: _fitted(fits, kernels) for kernels in ("padded", "packed")}
    if truth["padded"] is None:
        raise ConfigError(f"{folder}: too few measured steps to fit a cost")
    rows = []
    for name, pool in (
        ("as run", lengths),
        (f"tail x {TAIL:g}", stretched(lengths, TAIL, settings.max_length)),
    ):
        for batch in BATCHES:
            here = dataclasses.replace(settings, global_batch=batch, cost="fitted")
            for label in (*ARMS, *VARIANTS):
                spec = parse_arm(label, here)
                true = truth["packed" if spec.name == "packed" else "padded"]
                if true is None:
                    continue
                team = make_team(spec, here, pool, record.run["config"]["ranks"])
                worst, mean, waste = modelled_times(team, steps, true)
                rows.append(
                    {
                        "lengths": name,
                        "global_batch": batch,
                        "arm": label,
                        "max_compute_ms_mean": worst.mean(),
                        "max_compute_ms_p95": np.percentile(worst, 95),
                        "imbalance": (worst / mean).mean(),
                        "padding_waste": waste,
                    }
                )
    return rows


def main(argv: list[str] | None = None) -> int:
    """Write modelled.csv; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m ddp_bench.replay", description=__doc__)
    parser.add_argument("--run_dir", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=120, help="steps per arm")
    options = parser.parse_args(argv)
    try:
        rows = replay_run(options.run_dir, options.steps)
    except ConfigError as error:
        print(f"ddp_bench: {error}", file=sys.stderr)
        return 2
    import pandas as pd

    from analysis.records import RunWriter

    RunWriter(options.run_dir, {}).write_table("modelled", pd.DataFrame(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
