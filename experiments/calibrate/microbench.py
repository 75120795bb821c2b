"""What `hippo microbench --json FILE` measured of a machine, read and refused."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from jaxsim.cluster import GpuSpec
from jaxsim.files import InputError, is_file, meant, read_json, shown, values
from jaxsim.workload import ModelConfig

KIND = "a result of hippo microbench"
TALKS = ("none", "message", "beside", "ddp")  # what ranks say to each other while a step is timed
SHORTEST_S, LONGEST_S = 1e-9, 1e6
MOST_RANKS = 64
SMALLEST_SUM = 64 * 1024  # [B]; below, a sum's time is that of the scheduler of threads
FEWEST_MODELS = 3  # of which steps tell apart what a layer, a number and a token take
ADAMW_BYTES = 28.0  # weight, gradient and two states read, weight and states written, 4 B each
NO_LIMIT_GB = 1e6  # of memory: what a rank may take is not measured
SHAPE = {"layers": "layers", "width": "hidden", "heads": "heads", "kv_heads": "kv_heads"}
SHAPE |= {"hidden": "ffn", "vocab": "vocab"}
PRODUCT = re.compile(r"(\d+)x(\d+)x(\d+) float32")
ATTENTION = re.compile(r"(\d+)x(\d+)x(\d+)x(\d+) flash forward")


@dataclasses.dataclass(frozen=True)
class Step:
    """A training step of a model, or the message that sums its gradients, on ranks at once."""

    model: str
    ranks: int
    talk: str
    seconds: float
    interval: tuple[float, float]  # 95 %, of the median


@dataclasses.dataclass(frozen=True)
class Bench:
    """A machine as it was measured, float32 on its cores."""

    name: str  # of the file, without its ending
    cores: int
    sheet: GpuSpec  # the best rates that were seen of products, copies and sums
    products: Float[np.ndarray, "N 4"]  # rows, columns, depth, [s]
    attentions: Float[np.ndarray, "N 4"]  # heads of all sequences, tokens, width of a head, [s]
    copies: Float[np.ndarray, "N 2"]  # [B] read and written, [s]
    update_s: float  # [s] of AdamW for one parameter
    sums: Float[np.ndarray, "N 3"]  # ranks, [B], [s]
    models: Mapping[str, ModelConfig]
    rows: int  # [sequences] of a step of one rank
    length: int  # [tokens]
    steps: tuple[Step, ...]

    @property
    def groups(self) -> tuple[int, ...]:
        """Numbers of ranks that trained together."""
        return tuple(sorted({step.ranks for step in self.steps if step.talk == "ddp"}))

    def of(self, talk: str, ranks: int | None = None) -> list[Step]:
        """The steps of one of TALKS, of all or of one number of ranks."""
        return [s for s in self.steps if s.talk == talk and ranks in (None, s.ranks)]

    def without(self, model: str) -> Bench:
        """What was measured, as if there had been no such model."""
        left = tuple(step for step in self.steps if step.model != model)
        return dataclasses.replace(self, steps=left)


def is_microbench(path: str | None) -> bool:
    """Whether a file is a result of hippo microbench, by its keys. Raises InputError for a JSON file
    that cannot be read."""
    if path is None or not is_file(path) or Path(path).suffix != ".json":
        return False
    body = read_json(path, KIND)
    return isinstance(body, Mapping) and {"collective_models", "steps"} <= set(body)


def read_bench(path: str) -> Bench:
    """Read a result. Raises InputError, one line that names the file, the key and what is allowed."""
    body = read_json(path, KIND)
    values.choice(_get(body, "device", path), f"{path}: device", ("cpu",))
    batch, models = _get(body, "batch", path), _models(body, path)
    products = _table(body, "gemm", path, lambda row, at: _kernel(row, at, PRODUCT))
    attentions = _table(body, "attention", path, lambda row, at: _kernel(row, at, ATTENTION))
    copies = _table(body, "copy", path, _copy)
    sums = _table(body, "collectives", path, _sum)
    work = np.prod(products[:, :3], axis=1)
    busy = 2.0 * (sums[:, 0] - 1.0) / sums[:, 0] * sums[:, 1] / sums[:, 2]
    bench = Bench(
        name=Path(path).stem,
        cores=values.count(_get(body, "cores", path), f"{path}: cores"),
        sheet=GpuSpec(
            peak_tflops=float(np.max(2e-12 * work / products[:, 3])),
            memory_gb=NO_LIMIT_GB,
            memory_gb_per_s=float(np.max(1e-9 * copies[:, 0] / copies[:, 1])),
            nvlink_gb_per_s=float(np.max(1e-9 * busy)),
        ),
        products=products,
        attentions=np.stack([attentions[:, 0] * attentions[:, 1], *attentions[:, 2:].T], axis=1),
        copies=copies,
        update_s=_update_s(body, path),
        sums=sums,
        models=models,
        rows=values.count(_get(batch, "rows", f"{path}: batch"), f"{path}: batch.rows"),
        length=values.count(_get(batch, "length", f"{path}: batch"), f"{path}: batch.length"),
        steps=tuple(_step(row, at, models) for row, at in _rows(body, "steps", path)),
    )
    _check_complete(bench, path)
    return bench


def _check_complete(bench: Bench, path: str) -> None:
    """InputError for measurements that a fit has to do without."""
    again = "measure with hippo microbench --json FILE"
    if not bench.groups:
        raise InputError(f"{path}: steps: none of talk 'ddp' ({again})")
    held = {(step.model, step.ranks, step.talk) for step in bench.steps}
    if len(held) < len(bench.steps):
        raise InputError(f"{path}: steps: a model, number of ranks and talk stand twice")
    for ranks in bench.groups:
        names = {step.model for step in bench.of("ddp", ranks)}
        if len(names) < FEWEST_MODELS:
            raise InputError(
                f"{path}: steps: {len(names)} models with {ranks} ranks; at least {FEWEST_MODELS} tell "
                "what a layer, a number and a token take"
            )
        for talk in TALKS:
            gone = sorted(name for name in names if (name, ranks, talk) not in held)
            if gone:
                raise InputError(
                    f"{path}: steps: {gone[0]} with {ranks} ranks has no row of talk '{talk}' ({again})"
                )
        if not np.any(bench.sums[:, 0] == ranks):
            raise InputError(
                f"{path}: collectives: no all_reduce of {ranks} ranks of {SMALLEST_SUM} bytes or more"
            )


def _get(body: Any, key: str, where: str) -> Any:
    if not isinstance(body, Mapping):
        raise InputError(f"{where}: expected a mapping, as {KIND} holds it, got {shown(body)}")
    if key not in body:
        raise InputError(f"{where}: missing key {key!r}{meant(key, body)}")
    return body[key]


def _rows(body: Any, key: str, path: str) -> Iterator[tuple[Any, str]]:
    """The rows of a table, each with the place that error lines name."""
    table = values.entries(_get(body, key, path), f"{path}: {key}", "measurement")
    yield from ((row, f"{path}: {key}[{i}]") for i, row in enumerate(table))


def _seconds(row: Any, where: str) -> float:
    return values.number(_get(row, "median_s", where), f"{where}.median_s", SHORTEST_S, LONGEST_S)


Reader = Callable[[Any, str], tuple[float, ...] | None]


def _table(body: Any, key: str, path: str, read: Reader) -> np.ndarray:
    """The rows that a fit can use; `read` gives None for the others."""
    found = [row for row in (read(*one) for one in _rows(body, key, path)) if row is not None]
    if not found:
        raise InputError(f"{path}: {key}: no row that a fit can use")
    return np.array(found, np.float64)


def _kernel(row: Any, where: str, pattern: re.Pattern[str]) -> tuple[float, ...] | None:
    """Sizes in a kernel's name, and its time; None for a kernel that no model's step has."""
    matched = pattern.fullmatch(values.name(_get(row, "name", where), f"{where}.name"))
    if matched is None:
        return None
    sizes = [values.cell_count(text, f"{where}.name") for text in matched.groups()]
    return (*sizes, _seconds(row, where))


def _copy(row: Any, where: str) -> tuple[float, float]:
    rate = values.number(_get(row, "gb_per_s", where), f"{where}.gb_per_s", 1e-6)
    seconds = _seconds(row, where)
    return 1e9 * rate * seconds, seconds


def _sum(row: Any, where: str) -> tuple[float, ...] | None:
    kind = values.name(_get(row, "collective", where), f"{where}.collective")
    ranks = values.count(_get(row, "ranks", where), f"{where}.ranks", 2, MOST_RANKS)
    size = values.number(_get(row, "size_bytes", where), f"{where}.size_bytes", 1.0)
    if kind != "all_reduce" or size < SMALLEST_SUM:
        return None
    return ranks, size, _seconds(row, where)


def _update_s(body: Any, path: str) -> float:
    for row, where in _rows(body, "optimizer", path):
        if _get(row, "name", where) == "adamw loop":
            rate = values.number(_get(row, "gb_per_s", where), f"{where}.gb_per_s", 1e-6)
            return 1e-9 * ADAMW_BYTES / rate
    raise InputError(f"{path}: optimizer: no row 'adamw loop'")


def _models(body: Any, path: str) -> dict[str, ModelConfig]:
    shapes = values.names(_get(body, "models", path), f"{path}: models", "a name to its shape")
    found = {}
    for name, shape in shapes.items():
        where = f"{path}: models.{name}"
        sizes = {
            field: values.count(_get(shape, key, where), f"{where}.{key}")
            for key, field in SHAPE.items()
        }
        found[name] = ModelConfig(**sizes, ffn_matrices=3)
        try:
            found[name].check()
        except ValueError as error:
            raise InputError(f"{where}: {error}") from None
    return found


def _step(row: Any, where: str, models: Mapping[str, ModelConfig]) -> Step:
    ends = _get(row, "ci95_s", where)
    if not isinstance(ends, list) or len(ends) != 2:
        raise InputError(f"{where}.ci95_s: expected two numbers, got {shown(ends)}")
    low, high = (values.number(x, f"{where}.ci95_s", SHORTEST_S, LONGEST_S) for x in ends)
    return Step(
        model=values.choice(_get(row, "model", where), f"{where}.model", models),
        ranks=values.count(_get(row, "ranks", where), f"{where}.ranks", 1, MOST_RANKS),
        talk=values.choice(_get(row, "talk", where), f"{where}.talk", TALKS),
        seconds=_seconds(row, where),
        interval=(low, high),
    )
