"""Make a cluster, and the trace that moves its links, from measurements."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

from experiments.common import (
    GPUS,
    Parser,
    number,
    parse_command,
    run_command,
    seed,
    whole,
    whole_seconds,
)

MOST_GPUS = 1_000_000  # of a region
EXAMPLES = {
    "from-grid": "hippo cluster from-grid --throughput gbps.csv --latency rtt.csv --cost usd.csv"
    " --regions aws:us-east-1,gcp:us-west1 --gpu A100-80GB --gpus 16,8 --out two.yaml",
    "trace": "hippo cluster trace --measurements iperf3-tests.csv --cluster two.yaml --out trace.csv",
}


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    return run_command(lambda: _prepare(argv))


def _prepare(argv: list[str] | None) -> Callable[[], object]:
    """Read the command line, then load what the work needs: that takes seconds."""
    options = parse_command(*_parser(), argv)

    from experiments.cluster.make import from_grid, trace

    return lambda: {"from-grid": from_grid, "trace": trace}[options.command](options)


def _parser() -> tuple[Parser, dict[str, Parser]]:
    """The parser, and those of its commands by name."""
    parser = Parser("\n  ".join(EXAMPLES.values()), prog="hippo cluster", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="from-grid | trace")
    about = "A cluster file from grids of throughput, round trip and price"
    example = EXAMPLES["from-grid"]
    grid = commands.add_parser("from-grid", help=about, description=f"{about}.", example=example)
    add = grid.add_argument
    add("--throughput", metavar="CSV", required=True, help="recv_gbps by pair of regions [Gbit/s]")
    add("--latency", metavar="CSV", required=True, help="avg_rtt by pair of regions [ms]")
    add("--cost", metavar="CSV", required=True, help="price of egress by pair [USD/GB]")
    add("--regions", metavar="A,B,...", type=_names, required=True, help="as the grids name them")
    each = "one for all regions or one for each"
    kinds = f"{each}, of {', '.join(GPUS)}"
    add("--gpu", metavar="NAME,...", type=_list_of(str), required=True, help=kinds)
    add("--gpus", metavar="N,N,...", type=_list_of(_count), required=True, help=f"GPUs: {each}")
    add("--usd-per-gpu-hour", type=_list_of(_amount), default=[2.0], help=f"{each} (default 2.0)")
    nodes = f"{each} (default 8, or all of a smaller region)"
    add("--gpus-per-node", type=_list_of(_count), help=nodes)
    add("--name", help="of the cluster (default: the name of the file written)")
    add("--intra-gbps", type=_rate, default=400.0, help="one node inside a region (default 400)")
    recorded = "inside a region, on record only: no step pays it (default 0.05)"
    add("--intra-rtt-ms", type=_amount, default=0.05, help=recorded)
    add("--out", metavar="FILE", required=True, help="cluster YAML to write")

    about = "Measured paths and a cluster: a trace of its links"
    example = EXAMPLES["trace"]
    replay = commands.add_parser("trace", help=about, description=f"{about}.", example=example)
    add = replay.add_argument
    add("--measurements", metavar="CSV", required=True, help="tests or samples of paths, .gz too")
    add("--cluster", metavar="FILE", required=True, help="cluster YAML whose links shall move")
    add("--interval", type=whole_seconds, default=60, help="whole seconds (default 60)")
    add("--seed", type=seed, default=0, help="draws which link replays which path (default 0)")
    add("--out", metavar="FILE", required=True, help="trace CSV to write")
    return parser, {"from-grid": grid, "trace": replay}


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise argparse.ArgumentTypeError(f"expected names joined by commas, got {text!r}")
    return names


def _list_of(read: Callable[[str], Any]) -> Callable[[str], list]:
    return lambda text: [read(part.strip()) for part in text.split(",")]


def _count(text: str) -> int:
    return whole(text, 1, MOST_GPUS)


def _amount(text: str) -> float:
    return number(text, lambda x: x >= 0, "a number >= 0")


def _rate(text: str) -> float:
    return number(text, lambda x: x > 0, "a number > 0")


if __name__ == "__main__":
    sys.exit(main())
