"""Which errors are tried: a fixed draw from every room."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from mutants.operators import Mutant, compiles, mutants_in
from mutants.rooms import ROOMS, files_of

SEED = 0


def draw(
    root: Path, seed: int = SEED, count: int | None = None, only: Iterable[str] = ()
) -> list[Mutant]:
    """The errors to try, room by room and in the order of the text.

    Every error has a place in a random order that its id and the seed alone decide, so that an edit
    of one function leaves the draw from all others as it is. At most one error a line.

    Args:
        root: of the repository.
        seed: of the order.
        count: of errors in all, spread over the rooms as ROOMS has them; None = as many.
        only: rooms, or parts of the paths of files; none = everything.
    """
    full = sum(room.count for room in ROOMS.values())
    wanted = tuple(only)
    parts = [word for word in wanted if word not in ROOMS]
    chosen = []
    for name, files in files_of(root).items():
        if wanted and name not in wanted and not any(p in file for p in parts for file in files):
            continue
        share = ROOMS[name].count if count is None else -(-ROOMS[name].count * count // full)
        mutants = mutants_in(root, name, files)
        order = sorted(mutants, key=lambda m: hashlib.sha256(f"{seed}:{m.id}".encode()).digest())
        lines: dict[tuple[str, int], Mutant] = {}
        sources = {file: (root / file).read_bytes() for file in files}
        for mutant in order:
            if len(lines) == share:
                break
            if compiles(mutant.apply(sources[mutant.file])):
                lines.setdefault((mutant.file, mutant.line), mutant)
        chosen += sorted(lines.values(), key=lambda m: (m.file, m.line))
    if not wanted:
        return chosen
    return [m for m in chosen if m.room in wanted or any(p in m.file for p in parts)]
