"""How a study of real training ends, in a run folder or with one line; how far a run came."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

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


def steps_done(
    links: pd.DataFrame, steps: pd.DataFrame, ends: Float[np.ndarray, " R"]
) -> Float[np.ndarray, " R"]:
    """Steps that were done since the trace began anew by the moments `ends` [s]; of the step that was
    under way then, what was left of it."""
    links = links.drop_duplicates("step")
    at = links["at_s"].to_numpy()
    back = np.flatnonzero(np.diff(at) < 0)
    kept = slice(back[-1] + 1 if len(back) else 0, None)
    at, first = at[kept], links["step"].to_numpy()[kept][0]
    took = steps.loc[steps["step"] == first, "wall_s"].max()
    part = min(at[0] / took, 1.0)
    return np.interp(
        ends, np.concatenate([[0.0], at]), np.concatenate([[0.0], part + np.arange(len(at))])
    )
