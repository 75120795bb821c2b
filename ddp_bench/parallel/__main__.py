"""Real training over an emulated network, from a resolved JSON file.

    python -m ddp_bench.parallel JOB.json [--out DIR] [--owner PID]

`hippo wan run` writes JOB.json from a cluster, a model and a plan. With an owner, the process that
started it, it ends when that one ends. Without a job it is `python -m ddp_bench.layouts`, as
`hippo parallel` is.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import NoReturn

from analysis.records import RecordError
from ddp_bench.errors import ConfigError
from ddp_bench.layouts import ROOM
from ddp_bench.parallel.job import read_job
from ddp_bench.toolbox import run_room


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"command line: {message}")


def main(argv: list[str] | None = None) -> int:
    """Train; the exit status: 2 with one line for bad input, 1 with one line where a rank ended."""
    words = sys.argv[1:] if argv is None else argv
    parser = _Parser(prog="python -m ddp_bench.parallel", description=__doc__, allow_abbrev=False)
    parser.add_argument("job", type=Path, nargs="?", help="resolved job")
    parser.add_argument("--out", help="run folder (default: outputs/wan-...)")
    parser.add_argument("--owner", type=int, help="the process with which it ends")
    try:
        options, others = parser.parse_known_args(words)
        if options.job is None or (others and words[0].startswith("-")):
            return run_room(ROOM, words)
        options = parser.parse_args(words)
        job = read_job(options.job)

        from ddp_bench.parallel.launch import RankEnded, checked, end_with, run

        if options.owner is not None:
            end_with(options.owner)
        try:
            print(run(checked(job), options.out))
        except RankEnded as error:
            print(f"parallel: {error}", file=sys.stderr)
            return 1
    except (ConfigError, RecordError) as error:
        print(f"parallel: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
