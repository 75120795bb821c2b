r"""Make a cluster, and the trace that moves its links, from measurements.

    python -m experiments.cluster from-grid --throughput CSV --latency CSV --cost CSV \
        --regions a,b,c --gpu A100-80GB --gpus 16,16,8 --out FILE
    python -m experiments.cluster trace --measurements CSV --cluster FILE --seed N --out FILE
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from experiments.common import (
    Parser,
    check_output,
    number,
    parse_command,
    run_command,
    seed,
    whole_seconds,
    write_text,
)
from jaxsim.cluster import (
    GPU_PRESETS,
    ClusterSpec,
    cluster_file,
    cluster_from_grids,
    load_cluster,
    parse_cluster,
)
from jaxsim.network import (
    build_trace,
    read_measurements,
    read_network_trace,
    relative_movement,
    summarise,
)


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    return run_command(lambda: _run(argv))


def _run(argv: list[str] | None) -> None:
    options = parse_command(*_parser(), argv)
    options.run(options)


def from_grid(options: argparse.Namespace) -> None:
    """Write a cluster file from the three grids and say what it holds."""
    target = check_output(options.out)
    spec, origin = cluster_from_grids(
        options.throughput,
        options.latency,
        options.cost,
        options.regions,
        options.gpu,
        options.gpus,
        name=options.name or target.stem,
        usd_per_gpu_hour=options.usd_per_gpu_hour,
        gpus_per_node=options.gpus_per_node,
        intra_gbps=options.intra_gbps,
        intra_rtt_ms=options.intra_rtt_ms,
    )
    text = cluster_file(spec, origin)
    parse_cluster(text, options.out)  # so that an error names the file asked for
    write_text(target, text, check=load_cluster)
    print(f"{options.out}: {describe(spec)}")


def describe(spec: ClusterSpec) -> str:
    """Say in one line how large a cluster is and how far its links reach."""
    links = ~np.eye(spec.n_domains, dtype=bool)

    def spread(matrix: np.ndarray) -> str:
        low, middle, high = np.percentile(matrix[links], [0, 50, 100])
        return f"{low:.3g} to {high:.3g} (median {middle:.3g})"

    return (
        f"{spec.n_domains} regions, {sum(spec.gpus)} {spec.gpu} GPUs; {links.sum()} directed "
        f"links: {spread(spec.bandwidth_gbps)} Gbps, round trip {spread(spec.rtt_ms)} ms, "
        f"egress {spread(spec.egress_usd_per_gb)} USD/GB"
    )


def trace(options: argparse.Namespace) -> None:
    """Write a trace file from measured paths and say what it holds."""
    target = check_output(options.out)
    cluster = load_cluster(options.cluster)
    movement = relative_movement(read_measurements(options.measurements), options.interval)
    made = build_trace(movement, cluster.domains, options.interval, options.seed)

    def check(path: Path) -> None:
        read_network_trace(path, cluster, float(options.interval))

    write_text(target, made.to_csv(), check)
    print(f"{options.out}: {summarise(made, movement, Path(options.measurements).name)}")


def _parser() -> tuple[Parser, dict[str, Parser]]:
    parser = Parser(prog="hippo cluster", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True, metavar="from-grid | trace")
    grid = commands.add_parser("from-grid", help="grids of throughput, RTT and price -> cluster")
    add = grid.add_argument
    add("--throughput", metavar="CSV", required=True, help="recv_gbps by pair of regions [Gbit/s]")
    add("--latency", metavar="CSV", required=True, help="avg_rtt by pair of regions [ms]")
    add("--cost", metavar="CSV", required=True, help="price of egress by pair [USD/GB]")
    add("--regions", metavar="A,B,...", type=_names, required=True, help="as the grids name them")
    add("--gpu", required=True, help=" | ".join(GPU_PRESETS))
    each = "one for all regions or one for each"
    add("--gpus", metavar="N,N,...", type=_list_of(_count), required=True, help=f"GPUs: {each}")
    add("--usd-per-gpu-hour", type=_list_of(_amount), default=[2.0], help=f"{each} (default 2.0)")
    nodes = f"{each} (default 8, or all of a smaller region)"
    add("--gpus-per-node", type=_list_of(_count), help=nodes)
    add("--name", help="of the cluster (default: the name of the file written)")
    add("--intra-gbps", type=_rate, default=400.0, help="one node inside a region (default 400)")
    recorded = "inside a region, on record only: no step pays it (default 0.05)"
    add("--intra-rtt-ms", type=_amount, default=0.05, help=recorded)
    add("--out", metavar="FILE", required=True, help="cluster YAML to write")
    grid.set_defaults(run=from_grid)

    replay = commands.add_parser("trace", help="measured paths + cluster -> trace of its links")
    add = replay.add_argument
    add("--measurements", metavar="CSV", required=True, help="tests or samples of paths, .gz too")
    add("--cluster", metavar="FILE", required=True, help="cluster YAML whose links shall move")
    add("--interval", type=whole_seconds, default=60, help="whole seconds (default 60)")
    add("--seed", type=seed, default=0, help="draws which link replays which path (default 0)")
    add("--out", metavar="FILE", required=True, help="trace CSV to write")
    replay.set_defaults(run=trace)
    return parser, {"from-grid": grid, "trace": replay}


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise argparse.ArgumentTypeError(f"expected names joined by commas, got {text!r}")
    return names


def _list_of(read: Callable[[str], float]) -> Callable[[str], list]:
    return lambda text: [read(part.strip()) for part in text.split(",")]


def _count(text: str) -> int:
    return int(number(text, lambda x: x >= 1 and x == int(x), "a whole number >= 1"))


def _amount(text: str) -> float:
    return number(text, lambda x: x >= 0, "a number >= 0")


def _rate(text: str) -> float:
    return number(text, lambda x: x > 0, "a number > 0")


if __name__ == "__main__":
    sys.exit(main())
