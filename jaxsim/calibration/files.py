"""Finding measured runs, profiles and syncs among files: what validate and calibrate work on."""

from __future__ import annotations

import dataclasses
import importlib.resources
from pathlib import Path

from jaxsim.calibration.measured import MeasuredRun, is_measured_table, load_measured
from jaxsim.calibration.profiles import Profile, UnknownModel, load_profile
from jaxsim.calibration.shaped_links import SyncRun, is_sync_table, load_sync_runs
from jaxsim.files import InputError

PUBLISHED = "published_runs.csv"


@dataclasses.dataclass(frozen=True)
class Measurements:
    """All that was found, and a line for every row or profile that was not usable."""

    runs: list[MeasuredRun]
    syncs: dict[str, list[SyncRun]]  # by data set
    profiles: list[Profile]
    left_out: list[str]

    @property
    def datasets(self) -> list[str]:
        """Names of the data sets, in the order of their files."""
        return [*dict.fromkeys(r.dataset for r in self.runs), *self.syncs]


def published_table() -> Path:
    """The table of published runs that ships with the package."""
    return Path(str(importlib.resources.files("jaxsim.presets") / PUBLISHED))


def find_measurements(path: str | Path | None, strict: bool = False) -> Measurements:
    """Read a file, or every table and profile under a folder; None = the published runs.

    Raises InputError where there is nothing to read, or (strict) names the first bad row.
    """
    root = published_table() if path is None else Path(path)
    if root.is_dir():
        files = sorted(f for f in root.rglob("*") if f.is_file())
    elif root.is_file():
        files = [root]
    else:
        raise InputError(f"{root}: no such file or folder")
    found = Measurements([], {}, [], [])
    for file in files:
        _read(file, found, strict, alone=root.is_file())
    if not (found.runs or found.syncs or found.profiles):
        why = "holds no table of measured runs, syncs or profiles that can be used"
        faults = found.left_out
        why += f"; the first of {len(faults)} faults: {faults[0]}" if faults else ""
        raise InputError(f"{root}: {why}")
    return found


def _read(file: Path, found: Measurements, strict: bool, alone: bool) -> None:
    try:
        profile = None if alone and file.suffix == ".csv" else load_profile(file)
    except UnknownModel as error:
        found.left_out.append(str(error))
        return
    if profile is not None:
        found.profiles.append(profile)
        return
    if file.suffix != ".csv":
        return
    try:
        syncs, runs = is_sync_table(file), is_measured_table(file)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: cannot be read: {' '.join(str(error).split())}") from None
    if syncs:
        rows, bad = load_sync_runs(file, strict)
        if rows:
            found.syncs[file.stem] = rows
    elif runs or alone:
        rows, bad = load_measured(file, strict)
        found.runs.extend(rows)
    else:
        return
    found.left_out.extend(bad)
