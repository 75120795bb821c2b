"""How a study of real training ends: a run folder, or one line that says why there is no result."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from analysis.records import RunWriter


class RunFailed(RuntimeError):
    """A training run of the study did not end as it should; its own line has been printed."""


def carried_out(
    kind: str,
    config: dict[str, Any],
    seed: int,
    out: str | None,
    work: Callable[[RunWriter], dict[str, Any]],
) -> int:
    """Do `work`, which returns the summary, in a run folder; the exit status. Raises RecordError for a
    folder that cannot be used."""
    RunWriter.check(kind, out)
    with RunWriter.create(kind, config, seed, out) as writer:
        try:
            writer.finish(work(writer))
        except RunFailed as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        print(writer.dir)
    return 0
