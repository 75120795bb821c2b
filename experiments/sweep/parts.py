"""Rows on disk: one parquet file a batch, written whole or not at all, and the table of them all.

A sweep that is killed keeps the batches that were finished. The whole table is written from the parts
in the order of their numbers, so that it is the same however often the sweep was interrupted and
whoever played which batch.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.sweep.config import CATEGORIES
from experiments.sweep.contents import changed
from jaxsim.files import InputError

if TYPE_CHECKING:
    import pyarrow

FOLDER, WHOLE = "parts", "scenarios.parquet"
TEXT = ("scheduler", *CATEGORIES)
COUNTS = ("domains", "jobs")
# Of a part's metadata: the fingerprint of the settings, and what the files held that they name.
SWEEP_KEY, CONTENTS_KEY = b"sweep", b"contents"


def load_pyarrow() -> Any:
    """The package that reads and writes parquet. Raises InputError that says how to get it."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise InputError(
            "sweep: rows are written as parquet, which needs pyarrow: "
            "pip install 'hippo-sched[scale]'"
        ) from None
    return pyarrow


class Parts:
    """The parts of a sweep in its run folder."""

    def __init__(self, folder: Path, fingerprint: str, contents: dict[str, str]):
        """`fingerprint`: of the settings, parts of another sweep are refused; `contents`: digests of
        the files that they name, parts that were played from others are refused."""
        self._arrow = load_pyarrow()
        self.folder, self.fingerprint, self.contents = folder / FOLDER, fingerprint, contents
        self.whole = folder / WHOLE

    def path(self, number: int) -> Path:
        return self.folder / f"{number:06d}.parquet"

    def finished(self, count: int) -> list[int]:
        """Numbers below `count` of the batches whose parts are there; what a killed process left beside
        them is removed. Raises InputError for a part that is not this sweep's or cannot be read."""
        if not self.folder.is_dir():
            return []
        for torn in self.folder.glob(".*.tmp"):
            torn.unlink(missing_ok=True)
        done = [number for number in range(count) if self.path(number).is_file()]
        for number in done:
            self._check(self.path(number))
        return done

    def _check(self, path: Path) -> None:
        try:
            schema = self._arrow.parquet.read_schema(path)
        except (OSError, self._arrow.ArrowException):
            raise InputError(
                f"{path}: not a readable part of a sweep; remove it to have it played again"
            ) from None
        kept = schema.metadata or {}
        if kept.get(SWEEP_KEY) != self.fingerprint.encode() or CONTENTS_KEY not in kept:
            raise InputError(f"{path}: a part of another sweep; remove it to have it played again")
        if other := changed(json.loads(kept[CONTENTS_KEY]), self.contents):
            more = f" (and {len(other) - 1} more)" if len(other) > 1 else ""
            raise InputError(
                f"sweep: {other[0]} since {path.name} was played{more}; put it back, or begin another "
                "sweep"
            )

    def write(self, number: int, columns: dict[str, Any]) -> None:
        """Write a batch's rows."""
        self.folder.mkdir(exist_ok=True)
        table = self._table(columns)
        contents = json.dumps(self.contents, sort_keys=True).encode()
        about = {SWEEP_KEY: self.fingerprint.encode(), CONTENTS_KEY: contents}
        table = table.replace_schema_metadata(about)
        self._put(table, self.path(number))

    def _table(self, columns: dict[str, Any]) -> pyarrow.Table:
        """Names as a dictionary of text, so that files stay small; floats and counts as they are."""
        arrow, arrays = self._arrow, {}
        for name, values in columns.items():
            if name in TEXT and name not in COUNTS:
                kind = arrow.dictionary(arrow.int32(), arrow.string())
                arrays[name] = arrow.array(values, arrow.string()).cast(kind)
            elif name in COUNTS:
                arrays[name] = arrow.array(values, arrow.int32())
            elif isinstance(values, list):
                arrays[name] = arrow.array(values, arrow.float64())
            else:
                arrays[name] = arrow.array(values)
        return arrow.table(arrays)

    def _put(self, table: pyarrow.Table, path: Path) -> None:
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            self._arrow.parquet.write_table(table, temporary, compression="zstd")
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)

    def join(self, count: int) -> pyarrow.Table:
        """Write the whole table from all `count` parts and return it."""
        read = self._arrow.parquet.read_table
        tables = [read(self.path(number)) for number in range(count)]
        whole = self._arrow.concat_tables(tables).unify_dictionaries().combine_chunks()
        self._put(whole, self.whole)
        return whole
