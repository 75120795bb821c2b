"""What was found, as tables."""

from __future__ import annotations

from typing import Any

from rich.markup import escape
from rich.table import Table

from experiments.cli import COMMANDS
from experiments.common import as_text, put_result
from experiments.doctor.checks import examined
from experiments.doctor.config import DoctorConfig


def tell(config: DoctorConfig) -> None:
    """Examine, say it, write it."""
    result = examined(COMMANDS)
    if put_result(result, config.json):
        print(screen(result), end="")


def screen(result: dict[str, Any]) -> str:
    """The tables, one below the other."""
    machine = result["machine"]
    memory = "" if machine["memory_gb"] is None else f", {machine['memory_gb']:g} GB of memory"
    head = (
        f"Python {result['python']}, {machine['system']}, {machine['cpu_cores']} CPU cores{memory}"
    )
    return "\n".join(
        (
            head,
            _table("packages", ("package", "extra", "wanted", "installed"), _packages(result)),
            _table("devices of JAX", ("platform", "kind", "memory"), _devices(result)),
            _table("folders", ("for", "path", "state"), _folders(result)),
            _table("commands", ("command", "ready", "what is missing"), _commands(result)),
            _table("checks of exported plans", ("format", "possible", "why not"), _exports(result)),
        )
    )


def _table(title: str, columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*map(escape, row))
    return as_text(table)


def _packages(result: dict[str, Any]) -> list[tuple[str, ...]]:
    def state(row: dict[str, Any]) -> str:
        version = row["version"] or "missing"
        why = "not all of it" if "[" in row["name"] else "does not fit"
        return version if row["fits"] or not row["version"] else f"{version}, {why}"

    return [(r["name"], r["extra"], r["wanted"], state(r)) for r in result["packages"]]


def _devices(result: dict[str, Any]) -> list[tuple[str, ...]]:
    return [
        (
            d["platform"] or "none",
            d["kind"],
            "" if d["memory_gb"] is None else f"{d['memory_gb']} GB",
        )
        for d in result["devices"]
    ]


def _folders(result: dict[str, Any]) -> list[tuple[str, ...]]:
    def state(row: dict[str, Any]) -> str:
        size = f"{row['mb']:g} MB" if row["exists"] else "not there yet"
        return size if row["writable"] else f"{size}, cannot be written"

    return [(row["for"], row["path"], state(row)) for row in result["folders"]]


def _commands(result: dict[str, Any]) -> list[tuple[str, ...]]:
    return [
        (name, "yes" if row["ready"] else "no", "; ".join([*row["missing"], *row["parts"]]))
        for name, row in result["commands"].items()
    ]


def _exports(result: dict[str, Any]) -> list[tuple[str, ...]]:
    return [
        (
            name,
            "yes" if row["ready"] else "no",
            "; ".join([*row["missing"], *row["other_releases"]]),
        )
        for name, row in result["export_checks"].items()
    ]
