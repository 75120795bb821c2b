"""Run folders: a row for each, and what differs between two of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from analysis.records import RecordError, RunRecord, load
from experiments.common import put_result
from experiments.runs.config import RunsConfig
from jaxsim.files import InputError

MOST_SHOWN = 40  # differences that are printed; JSON holds all


def tell(config: RunsConfig) -> None:
    """List or compare. Raises InputError for a folder that is not there, RecordError for one that is no
    run folder."""
    if config.compare is not None:
        result = compared(*(load(folder) for folder in config.folders))
        text = differences_text(result)
    else:
        result = listed(config.root, config.kind)
        text = list_text(result)
    if put_result(result, config.json):
        print(text)


def listed(root: str, kind: str | None = None) -> dict[str, Any]:
    """Every run below a folder, the oldest first; folders that cannot be read are named apart."""
    if not Path(root).is_dir():
        raise InputError(f"root: {root}: no such folder")
    runs, unreadable = [], []
    for file in sorted(Path(root).rglob("run.json")):
        try:
            record = load(file.parent)
        except (RecordError, OSError) as error:
            unreadable.append(str(error))
            continue
        if kind in (None, record.run["kind"]):
            runs.append(_row(record))
    runs.sort(key=lambda run: (run["started"] or "", run["folder"]))
    return {"runs": runs, "unreadable": unreadable}


def _row(record: RunRecord) -> dict[str, Any]:
    run, config = record.run, record.run["config"]
    about = {name: config.get(name) for name in ("cluster", "model", "seed", "suite")}
    return {
        "folder": str(record.dir),
        "kind": run["kind"],
        "status": run["status"],
        "started": run.get("started"),
        "ended": run.get("ended"),
        "tables": record.tables(),
        "about": {name: value for name, value in about.items() if value is not None},
    }


def compared(a: RunRecord, b: RunRecord) -> dict[str, Any]:
    """Settings and results, by dotted key, that two runs do not share; None where one has none."""
    return {
        "folders": [str(a.dir), str(b.dir)],
        "kinds": [a.run["kind"], b.run["kind"]],
        "config": differences(a.run["config"], b.run["config"]),
        "summary": differences(a.summary, b.summary),
    }


def differences(a: Any, b: Any) -> dict[str, list]:
    """What stands at other values in two nested mappings, by dotted key; None where one has nothing."""
    left, right = dict(_leaves(a)), dict(_leaves(b))
    keys = dict.fromkeys([*left, *right])
    return {k: [left.get(k), right.get(k)] for k in keys if left.get(k) != right.get(k)}


def _leaves(body: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of nested mappings and lists, with its dotted key."""
    if isinstance(body, dict | list):
        pairs = body.items() if isinstance(body, dict) else enumerate(body)
        for key, value in pairs:
            yield from _leaves(value, f"{path}.{key}" if path else str(key))
    else:
        yield path, body


def list_text(result: dict[str, Any]) -> str:
    """The list for the terminal."""
    if not result["runs"]:
        return "\n".join(["no runs", *result["unreadable"]])
    width = max(len(run["folder"]) for run in result["runs"])
    lines = [f"{'folder':<{width}}  {'kind':<10}{'status':<12}{'started':<27}about"]
    for run in result["runs"]:
        about = ", ".join(f"{name} {value}" for name, value in run["about"].items())
        lines.append(
            f"{run['folder']:<{width}}  {run['kind']:<10}{run['status']:<12}"
            f"{run['started'] or '-':<27}{about}".rstrip()
        )
    return "\n".join([*lines, *(f"not read: {why}" for why in result["unreadable"])])


def differences_text(result: dict[str, Any]) -> str:
    """The differences for the terminal; of two numbers also by how much."""
    a, b = result["folders"]
    lines = [f"A = {a}", f"B = {b}"]
    if result["kinds"][0] != result["kinds"][1]:
        lines.append("they are of different kinds: {} and {}".format(*result["kinds"]))
    for part in ("config", "summary"):
        found = result[part]
        lines.append(f"{part}: {len(found)} differences" if found else f"{part}: the same")
        for key, (left, right) in list(found.items())[:MOST_SHOWN]:
            lines.append(f"  {key}: {shown(left)} -> {shown(right)}{_by(left, right)}")
        if len(found) > MOST_SHOWN:
            lines.append(f"  and {len(found) - MOST_SHOWN} more; --json tells all")
    return "\n".join(lines)


def shown(value: Any) -> str:
    """A setting or a result, for people."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _by(left: Any, right: Any) -> str:
    numbers = all(isinstance(x, int | float) and not isinstance(x, bool) for x in (left, right))
    return f" ({100 * (right / left - 1):+.1f} %)" if numbers and left else ""
