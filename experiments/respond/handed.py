"""The same process in a world that another command has made already: `python -m
experiments.respond.handed FILE`. To make it anew takes a minute or two."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

from agents.protocol import Scheduler
from jaxsim.cluster import ClusterSpec
from jaxsim.scenario import World


def hand_over(
    path: Path, world: World, spec: ClusterSpec, scheduler: Scheduler, interval_s: float
) -> None:
    """Write the file for a process of one's own; it is read once."""
    path.write_bytes(pickle.dumps((world, spec, scheduler, interval_s)))


def main(path: str) -> None:
    """Answer measurements as `hippo respond` does, until the input ends."""
    from experiments.common import compile_for_evaluation
    from experiments.respond.responder import Responder, at_every_measurement, serve

    compile_for_evaluation()
    world, spec, scheduler, interval_s = pickle.loads(Path(path).read_bytes())
    serve(
        Responder(world, spec, at_every_measurement(scheduler), interval_s), sys.stdin, sys.stdout
    )


if __name__ == "__main__":
    main(sys.argv[1])
