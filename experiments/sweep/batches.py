"""Scenarios of one shape side by side: one compiled program plays every batch of a group.

What changes the shape of a program parts groups: the cluster, the model, whether local jobs hold GPUs,
whether progress alone counts, how many jobs there are. Inside a group the kind of jitter parts
batches, because a course is drawn by the kind's own program; those who play see courses alone and share
theirs.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.sweep.config import SweepConfig, recorded
from experiments.sweep.design import Point

PROGRESS = (1.0, 0.0, 0.0, 0.0)  # weights under which no objective is needed
MOST_WITH_JOBS = 8  # scenarios of a batch: they are played one after another


@dataclasses.dataclass(frozen=True)
class Group:
    """What the scenarios of a batch have in common."""

    cluster: str
    domains: int | None
    model: str
    loaded: bool  # local jobs hold GPUs
    weighted: bool  # other things than progress count
    jobs: int | None = None  # that arrive at random; None = one that stays


@dataclasses.dataclass(frozen=True)
class Batch:
    """Scenarios that are played side by side; `points` and `seeds` [S] say which."""

    number: int
    group: Group
    points: tuple[int, ...]
    seeds: tuple[int, ...]
    size: int  # scenarios of the compiled program, S or more

    @property
    def count(self) -> int:
        return len(self.seeds)


def group_of(point: Point) -> Group:
    """The group that a point belongs to."""
    weighted = tuple(float(w) for w in point.weights.split(","))[1:] != PROGRESS[1:]
    return Group(point.cluster, point.domains, point.model, point.load > 0, weighted, point.jobs)


def make_batches(config: SweepConfig, points: list[Point]) -> list[Batch]:
    """All batches, numbered; the same whoever plays them."""
    at_once = min(config.batch, MOST_WITH_JOBS) if config.jobs else config.batch
    members: dict[tuple[Group, str], list[int]] = {}
    for number, point in enumerate(points):
        members.setdefault((group_of(point), point.jitter), []).append(number)
    sizes: dict[Group, int] = {}
    for (group, _), numbers in members.items():
        most = min(at_once, len(numbers) * config.scenarios)
        sizes[group] = max(sizes.get(group, 1), most)
    batches: list[Batch] = []
    for (group, _), numbers in members.items():
        cells = [(p, s) for p in numbers for s in range(config.scenarios)]
        for start in range(0, len(cells), sizes[group]):
            part = cells[start : start + sizes[group]]
            of_point, seeds = zip(*part, strict=True)
            batches.append(Batch(len(batches), group, of_point, seeds, sizes[group]))
    return batches


def fingerprint(config: SweepConfig) -> str:
    """The settings that the rows of a sweep depend on, in short: parts of another one are not taken
    over. What the files say that the settings name is told by `contents.digests`."""
    text = json.dumps(recorded(config), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def padded(batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """[size] points and [size] seeds: the batch, filled up from its start."""
    index = np.arange(batch.size) % batch.count
    return np.asarray(batch.points)[index], np.asarray(batch.seeds)[index]


def identified(batch: Batch, points: Sequence[Point], names: Sequence[str]) -> dict[str, Any]:
    """The columns that say of which scenario a row is, and whose; [S] of each scheduler in turn."""
    mine, times = [points[number] for number in batch.points], len(names)
    return {
        "point": np.tile(np.asarray(batch.points, np.int32), times),
        "scenario": np.tile(np.asarray(batch.seeds, np.int32), times),
        "scheduler": [name for name in names for _ in mine],
        **{name: [getattr(p, name) for p in mine] * times for name in Point.__annotations__},
    }


def describe(batches: list[Batch]) -> dict[str, Any]:
    """How much there is to do."""
    return {
        "scenarios": sum(batch.count for batch in batches),
        "batches": len(batches),
        "groups": len({batch.group for batch in batches}),
    }
