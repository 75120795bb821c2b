"""What it costs to go on in another layout: saved by one entry, loaded by another."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ddp_bench.comparative.group import Group
from ddp_bench.comparative.judge import disagreement, global_losses
from ddp_bench.comparative.outcome import Outcome
from ddp_bench.toolbox import RanksFailed

STEPS = 2  # that both train after a move, to be compared


def move_all(
    alive: Mapping[str, tuple[Outcome, Group]],
    outcomes: Mapping[str, Outcome],
    tolerance: float,
    say: Callable[[str], None],
) -> None:
    """Move every framework's state to the layout that its entry names; what it took, or why it was
    not done, goes into `Outcome.move`."""
    for name, (outcome, group) in alive.items():
        to = outcome.entry.moves_to
        if to is None:
            why = outcome.entry.why_no_move or "no other layout of it is compared"
            outcome.move = {"why_not": why}
        elif to not in alive:
            why = outcomes[to].why_not if to in outcomes else "it is not among the frameworks"
            outcome.move = {"to": to, "why_not": f"{to}: {why}"}
        else:
            outcome.move = {"to": to, **_moved(group, alive[to][1], tolerance)}
        if "save_s" in outcome.move:
            both = outcome.move["save_s"] + outcome.move["load_s"]
            say(f"{name} -> {to}: {both:.2f} s")


def _moved(source: Group, target: Group, tolerance: float) -> dict[str, Any]:
    """Save, load, and train on from there on both sides: losses must be equal again."""
    with tempfile.TemporaryDirectory(prefix="layout-") as folder:
        place = str(Path(folder) / "state")
        try:
            saved = source.ask("save", folder=place)
            if why := _why_not(saved):
                return {"why_not": why}
            size = sum(f.stat().st_size for f in Path(folder).rglob("*") if f.is_file())
            loaded = target.ask("load", folder=place, at=saved[0]["at"])
            if why := _why_not(loaded):
                return {"why_not": why}
            there, here = (
                global_losses(group.ask("losses", steps=STEPS)) for group in (target, source)
            )
        except RanksFailed as error:
            return {"why_not": str(error)}
    error, wrong = disagreement(there, here, tolerance)
    if wrong:
        return {"why_not": f"after the move {wrong}", "losses_equal": False, "loss_error": error}
    took = {k: max(one["seconds"] for one in v) for k, v in (("save_s", saved), ("load_s", loaded))}
    return {**took, "bytes": size, "losses_equal": True, "loss_error": error, "why_not": None}


def _why_not(answers: list[dict[str, Any]]) -> str | None:
    return next((answer["why_not"] for answer in answers if "why_not" in answer), None)
