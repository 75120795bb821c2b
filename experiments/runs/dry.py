"""What a dry run tells: that the files are good, how much there is to do, and how long the finished run
took that is most like it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from analysis import provenance
from analysis.records import RecordError, RunRecord, RunWriter, load, to_jsonable
from experiments.common import put_result
from experiments.runs.listing import differences, shown

OUTPUTS = "outputs"  # where run folders go that no --out names
MEANS = ("out", "resume", "json", "dry_run", "given", "processes")  # nothing takes longer for them
MACHINE = ("processor", "cores", "accelerator")  # by which times are comparable
MOST_NAMED = 6  # settings in which another run differs


def tell_dry(
    kind: str, config: Mapping[str, Any], work: Mapping[str, Any], json: str | None = None
) -> None:
    """Say what a run of this `kind` and `config` would have to do (`work`: counts by what is counted),
    and how long the most alike of the finished runs beside it took; write nothing but `json`. Raises
    RecordError where its run folder cannot be made."""
    body = to_jsonable(dict(config), "config")
    RunWriter.check(kind, body.get("out"))
    result = {"kind": kind, "work": dict(work), **compared(kind, body)}
    if put_result(result, json):
        print(dry_text(result))


def compared(kind: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """`root`, the folder beside --out, and of the runs in it `nearest`, the most alike."""
    root = Path(config["out"]).parent if config.get("out") else Path(OUTPUTS)
    return {"root": str(root), "nearest": most_alike(kind, config, root)}


def most_alike(kind: str, config: Mapping[str, Any], root: Path) -> dict[str, Any] | None:
    """Of the finished runs of a `kind` on a machine like this one, below a folder, the last of those
    that differ in fewest settings: {folder, seconds, differs: {key: [there, here]}}."""
    here = provenance.machine()
    found: list[tuple[int, str, dict[str, Any]]] = []
    for record in _finished(kind, root):
        machine = record.run.get("machine", {})
        if any(machine.get(key) != here[key] for key in MACHINE):
            continue
        there = {k: v for k, v in record.run["config"].items() if k not in MEANS}
        asked = {k: v for k, v in config.items() if k in there}
        differs = differences({k: there[k] for k in asked}, asked)
        told = {"folder": str(record.dir), "seconds": record.seconds, "differs": differs}
        found.append((-len(differs), record.run["started"], told))
    return max(found, key=lambda one: one[:2])[2] if found else None


def _finished(kind: str, root: Path) -> Iterator[RunRecord]:
    """Runs below a folder that came to their end without a break, whose time therefore counts."""
    for file in sorted(root.rglob("run.json")):
        try:
            record = load(file.parent)
        except (RecordError, OSError):
            continue  # `hippo runs` names what cannot be read
        run = record.run
        whole = run["status"] == "finished" and run.get("ended") and not run.get("resumed")
        if run["kind"] == kind and whole:
            yield record


def dry_text(result: Mapping[str, Any]) -> str:
    """What a dry run says."""
    counts = (f"{name} {_count(value)}" for name, value in result["work"].items())
    return "\n".join(
        [
            f"{result['kind']}: {', '.join(counts)}",
            how_long(result),
            "the files are good; nothing was computed and nothing written",
        ]
    )


def _count(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def how_long(result: Mapping[str, Any]) -> str:
    """What `compared` found, in words."""
    nearest = result["nearest"]
    if nearest is None:
        return (
            f"how long: no finished run in {result['root']} tells; --quick goes through all of it in "
            "small, and is timed"
        )
    pairs = list(nearest["differs"].items())
    named = [f"{k} {shown(there)} there, {shown(here)} here" for k, (there, here) in pairs]
    more = f", and {len(named) - MOST_NAMED} more" if len(named) > MOST_NAMED else ""
    how = "; ".join(named[:MOST_NAMED]) + more if named else "with the same settings"
    minutes, seconds = divmod(round(nearest["seconds"]), 60)
    return f"how long: {nearest['folder']} took {minutes}:{seconds:02d} min here, {how}"
