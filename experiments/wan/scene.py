"""What an end-to-end run plays: links, model, schedulers, and which stretch of a trace."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
from jaxtyping import Float

from jaxsim.files import InputError, read_yaml, shown, values

SHIPPED = Path(__file__).parents[1] / "configs" / "wan" / "end-to-end.yaml"
KEYS = (
    "domains",
    "rate_mbps",
    "rtt_ms",
    "model",
    "global_batch",
    "seq",
    "pace_ms",
    "rows",
    "row_s",
)
KEYS += ("restart_s", "schedulers")


@dataclasses.dataclass(frozen=True)
class Scene:
    """What is trained over which links, and who decides."""

    domains: tuple[str, ...]
    rate_mbps: float
    rtt_ms: float
    model: str
    global_batch: int
    seq: int
    pace_ms: float
    rows: int
    row_s: float
    restart_s: float
    schedulers: tuple[str, ...]

    @property
    def seconds(self) -> float:
        """[s] of the stretch in real time."""
        return self.rows * self.row_s


def read_scene(path: str | Path) -> Scene:
    """Read a scene. Raises InputError, one line: file, key, allowed values."""
    body = values.mapping(read_yaml(path, "a scene"), f"{path}: the file", KEYS)
    names = {
        key: tuple(
            values.name(one, f"{path}: {key}")
            for one in values.entries(body[key], f"{path}: {key}", key[:-1])
        )
        for key in ("domains", "schedulers")
    }
    counts = {
        key: values.count(body[key], f"{path}: {key}") for key in ("global_batch", "seq", "rows")
    }
    figures = {
        key: values.number(body[key], f"{path}: {key}", 1e-3)
        for key in ("rate_mbps", "rtt_ms", "pace_ms", "row_s", "restart_s")
    }
    if not isinstance(body["model"], str):
        raise InputError(f"{path}: model: expected a file, got {shown(body['model'])}")
    return Scene(**names, **counts, **figures, model=str(Path(path).parent / body["model"]))


def busiest(factors: Float[np.ndarray, "R K K"], rows: int) -> int:
    """The first row of the stretch in which links move most: the largest sum of their variances."""
    flat = factors.reshape(len(factors), -1).astype(np.float64)
    begins = range(len(flat) - rows + 1)
    return max(begins, key=lambda at: float(flat[at : at + rows].var(axis=0).sum()))
