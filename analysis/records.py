"""The one run-folder schema: every entry point writes a run here, every figure reads it from here.

A run folder holds

    run.json       what ran: schema version, kind, config, seed, commit, packages, machine, status
    summary.json   what came out (strict JSON; a value that was not measured is null)
    <table>.csv    one row per observation; an empty cell is a missing value
    figures/       pictures

JSON files and whole tables are replaced atomically. Appended rows reach the file at once, so a
run that is killed keeps everything up to its last row.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import io
import math
import os
import re
import secrets
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis import provenance
from analysis.folder_lock import FolderLock
from analysis.json_files import (
    RecordError,
    append_text,
    overwrite_json,
    read_json,
    replacing,
    to_jsonable,
    write_json,
)

if TYPE_CHECKING:
    import pandas

__all__ = [
    "RecordError",
    "RunRecord",
    "RunWriter",
    "load",
    "now",
    "replacing",
    "to_jsonable",
    "write_json",
]
SCHEMA_VERSION = 1
STATUSES = ("running", "finished", "interrupted", "failed", "incomplete")

# Read as text whatever they look like: a region or a run may be called "1" or "NA".
LABEL_COLUMNS = (
    *("scheduler", "src", "dst", "plan", "what", "dataset", "row_id", "gpu", "model"),
    *("scene", "cluster", "part", "rival"),
    *("from_level", "to_level"),  # of a factor
)
_RUN_KEYS = ("run_id", "kind", "config", "seed", "status")
_NAME = re.compile(r"[a-z][a-z0-9_]*")


def checked_name(what: str, name: str) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise RecordError(f"{what} {name!r}: allowed are lower-case letters, digits and '_'")
    return name


def now() -> str:
    """The time of day, as run.json has it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _cell(value: Any) -> Any:
    """A CSV cell: flags as 0/1, missing values as an empty cell, floats in full precision."""
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, bool):
        return int(value)
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return value


class RunWriter:
    """Writes one run folder; a context manager that records how the run ended.

    Leaving the block by an exception marks the run `failed` (`interrupted` for KeyboardInterrupt)
    and lets the exception pass; leaving it without `finish` marks it `incomplete`.
    """

    def __init__(self, directory: Path, run: dict) -> None:
        """Use `create`; this only binds a folder to its run.json content."""
        self.dir = directory
        self._run = run
        self._headers: dict[str, list[str]] = {}
        self._lock: FolderLock | None = None

    @staticmethod
    def check(kind: str, out: str | Path | None, resume: bool = False) -> None:
        """Raise the RecordError that `create` would raise for this folder, before the work that
        fills it; nothing is written."""
        if out is not None:
            _folder_state(Path(out), kind, resume)

    @classmethod
    def create(
        cls,
        kind: str,
        config: dict,
        seed: int | list[int],
        out: str | Path | None = None,
        resume: bool = False,
        started: str | None = None,
    ) -> RunWriter:
        """Make (or, with `resume`, reopen) a run folder and write its run.json.

        Args:
            kind: what ran, such as "train" or "evaluate".
            config: every setting of the run.
            seed: the seed or seeds that determine it.
            out: the folder; None gives outputs/<kind>-<date>-<time>-<4 hex>.
            resume: continue in a folder that holds a run of the same kind; its start stays, its
                tables are appended to, its summary is dropped.
            started: when the run began, as `now` says; now if None.

        Raises:
            RecordError: when the folder is not empty (without `resume`), holds another kind of
                run, cannot be made, is being written to by another process, or `config` holds
                something JSON cannot.
        """
        checked_name("kind", kind)
        if out is None:
            out = Path("outputs") / f"{kind}-{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
        directory = Path(out)
        body = {"config": to_jsonable(config, "config"), "seed": to_jsonable(seed, "seed")}
        _folder_state(directory, kind, resume)
        writer, is_new = cls(directory, {}), not directory.exists()
        try:
            directory.mkdir(parents=True, exist_ok=True)
            writer._lock = FolderLock(directory, writer)
            # What is there now, not what was there before another process let go of it.
            writer._run = _opening(kind, body, directory, resume)
            if started is not None and not resume:
                writer._run["started"] = started
            write_json(directory / "run.json", writer._run)
            (directory / "summary.json").unlink(missing_ok=True)  # no longer what came out
        except OSError as error:
            if is_new:
                with contextlib.suppress(OSError):  # it may hold something by now
                    directory.rmdir()
            raise RecordError(f"{directory}: cannot be written: {error.strerror}") from None
        return writer

    @property
    def figures(self) -> Path:
        """The folder for pictures, made on first use."""
        folder = self.dir / "figures"
        folder.mkdir(exist_ok=True)
        return folder

    def _path(self, table: str) -> Path:
        return self.dir / f"{checked_name('table', table)}.csv"

    def append(self, table: str, rows: dict | list[dict]) -> None:
        """Add rows to <table>.csv; the first row ever written fixes the columns and their order.

        Raises:
            RecordError: when a row's keys differ from the columns (nothing of the call is written).
        """
        rows = [rows] if isinstance(rows, Mapping) else list(rows)
        if not rows:
            return
        path = self._path(table)
        if table not in self._headers:
            self._headers[table] = _existing_header(path)
        header = self._headers[table] or [str(key) for key in rows[0]]
        for row in rows:
            if set(row) != set(header):
                odd = sorted(str(key) for key in set(row) ^ set(header))
                raise RecordError(
                    f"{path}: row has missing or unknown keys {odd}; allowed are {header}"
                )
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        if not self._headers[table]:
            writer.writerow(header)
        writer.writerows([_cell(row[key]) for key in header] for row in rows)
        append_text(path, text.getvalue())
        self._headers[table] = header

    def write_table(self, table: str, frame: pandas.DataFrame) -> None:
        """Write a whole table (its index is left out), replacing what was there atomically."""
        path = self._path(table)
        flags = frame.select_dtypes("bool").columns
        with replacing(path) as file:
            frame.astype(dict.fromkeys(flags, int)).to_csv(file, index=False, lineterminator="\n")
        self._headers[table] = [str(column) for column in frame.columns]

    def truncate(self, table: str, column: str, keep_below: float) -> None:
        """Drop the rows with `column` >= `keep_below`, so that a resumed run repeats none.

        The rows that stay are as they were written, digit for digit. No table: nothing to do.

        Raises:
            RecordError: when the table has no such column or a cell of it is no number.
        """
        path = self._path(table)
        header = _existing_header(path)
        if not header:
            return
        if column not in header:
            raise RecordError(f"{path}: no column {column!r}; it has {header}")
        at = header.index(column)
        with open(path, encoding="utf-8", newline="") as file:
            rows = list(csv.reader(file))[1:]
        try:
            staying = [row for row in rows if float(row[at]) < keep_below]
        except (ValueError, IndexError):
            raise RecordError(f"{path}: column {column!r} holds a cell that is no number") from None
        with replacing(path) as file:
            csv.writer(file, lineterminator="\n").writerows([header, *staying])

    def finish(self, summary: dict, status: str = "finished") -> None:
        """Write summary.json and close run.json.

        Raises:
            RecordError: when `status` is not one of STATUSES or `summary` holds what JSON cannot.
        """
        if status not in STATUSES:
            raise RecordError(f"status {status!r}: allowed are {', '.join(STATUSES)}")
        write_json(self.dir / "summary.json", summary)
        self._close(status)

    def _close(self, status: str) -> None:
        self._run.update(status=status, ended=now())
        try:
            overwrite_json(self.dir / "run.json", self._run)
        finally:
            if self._lock is not None:
                self._lock.release()

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: Any) -> None:
        if error is not None:
            with contextlib.suppress(OSError):  # `error` is what the user must see
                self._close("interrupted" if isinstance(error, KeyboardInterrupt) else "failed")
        elif self._run["status"] == "running":
            self._close("incomplete")


def _opening(kind: str, body: dict, directory: Path, resume: bool) -> dict:
    """run.json, with `body` in it, of a run that begins, or goes on, in `directory`. Raises
    RecordError."""
    before = _folder_state(directory, kind, resume)
    commit, dirty = provenance.git_state()
    run = {
        "schema_version": SCHEMA_VERSION,
        "run_id": before.get("run_id", directory.resolve().name),
        "kind": kind,
        **body,
        "git_commit": commit,
        "git_dirty": dirty,
        "packages": provenance.package_versions(),
        "machine": provenance.machine(),
        "argv": list(sys.argv),
        "started": before.get("started", now()),
        "ended": None,
        "status": "running",
    }
    if before:
        run["resumed"] = [*before.get("resumed", []), now()]
    return run


def _folder_state(directory: Path, kind: str, resume: bool) -> dict:
    """run.json of the run to resume, {} for a new one; RecordError where neither is allowed."""
    if directory.exists() and not directory.is_dir():
        raise RecordError(f"{directory}: is a file; allowed is a new or empty folder")
    above = next(p for p in (directory, *directory.absolute().parents) if p.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise RecordError(f"{directory}: cannot be written: {above} is no folder to write to")
    if not directory.exists() or not any(directory.iterdir()):
        return {}
    if not resume:
        raise RecordError(f"{directory}: is not empty; allowed is a new or empty folder, or resume")
    run = load(directory).run
    if run["kind"] != kind:
        raise RecordError(f"{directory / 'run.json'}: kind is {run['kind']!r}; allowed is {kind!r}")
    return run


def _existing_header(path: Path) -> list[str]:
    """Columns of a table on disk, [] without one; drops a last line torn by a killed process."""
    if not path.exists():
        return []
    content = path.read_bytes()
    if not content.endswith(b"\n"):
        whole = content[: content.rfind(b"\n") + 1]
        with replacing(path) as file:
            file.write(whole.decode("utf-8"))
        content = whole
    return next(csv.reader(io.StringIO(content.decode("utf-8"))), [])


@dataclasses.dataclass(frozen=True)
class RunRecord:
    """A run folder as read back: run.json, summary.json ({} when the run has none) and tables."""

    run: dict
    summary: dict
    dir: Path

    @property
    def seconds(self) -> float:
        """[s] from the start of a run that ended, or from its last resumption, to its end."""
        begun = [self.run["started"], *self.run.get("resumed", [])][-1]
        return (
            datetime.fromisoformat(self.run["ended"]) - datetime.fromisoformat(begun)
        ).total_seconds()

    def tables(self) -> list[str]:
        """Names of the tables present, sorted."""
        return sorted(path.stem for path in self.dir.glob("*.csv"))

    def table(self, name: str, columns: Sequence[str] = ()) -> pandas.DataFrame:
        """One table; empty cells are NaN, and names of schedulers, domains and plans are text.

        Args:
            name: the file's stem.
            columns: those that must be there.

        Raises:
            RecordError: naming the file when it is absent or broken, and the columns it lacks.
        """
        import pandas

        path = self.dir / f"{name}.csv"
        if not path.is_file():
            raise RecordError(f"{path}: no such table; this run has {self.tables()}")
        try:
            # "NA" is a name like any other here, so only these three spellings are missing values.
            frame = pandas.read_csv(
                path,
                keep_default_na=False,
                na_values=["", "nan", "NaN"],
                dtype=dict.fromkeys(LABEL_COLUMNS, str),
            )
        except (OSError, ValueError) as error:
            reason = str(error).strip().splitlines()[0]
            raise RecordError(f"{path}: not a readable CSV table: {reason}") from None
        missing = [column for column in columns if column not in frame.columns]
        if missing:
            raise RecordError(f"{path}: lacks the columns {missing}; it has {list(frame.columns)}")
        return frame


def load(path: str | Path) -> RunRecord:
    """Read a run folder.

    Raises:
        RecordError: when it is no run folder, its JSON is broken, keys are missing, or it was
            written by another version of the schema.
    """
    directory = Path(path)
    file = directory / "run.json"
    if not file.is_file():
        raise RecordError(f"{directory}: not a run folder (no run.json)")
    run = read_json(file)
    version = run.get("schema_version")
    if version != SCHEMA_VERSION:
        raise RecordError(f"{file}: schema_version is {version!r}; allowed is {SCHEMA_VERSION}")
    missing = [key for key in _RUN_KEYS if key not in run]
    if missing:
        raise RecordError(f"{file}: lacks the keys {missing}")
    for key in ("run_id", "kind", "status"):
        if not isinstance(run[key], str):
            raise RecordError(f"{file}: {key} is {run[key]!r}; allowed is text")
    checked_name(f"{file}: kind", run["kind"])
    if run["status"] not in STATUSES:
        allowed = ", ".join(STATUSES)
        raise RecordError(f"{file}: status is {run['status']!r}; allowed are {allowed}")
    if not isinstance(run["config"], dict):
        kind = type(run["config"]).__name__
        raise RecordError(f"{file}: config is a {kind}; allowed is a JSON object")
    summary = directory / "summary.json"
    return RunRecord(run, read_json(summary) if summary.exists() else {}, directory)
