"""A cluster file from grids of measurements, and the trace that moves its links."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from experiments.common import check_output, write_text
from jaxsim.cluster import (
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

    types = " and ".join(dict.fromkeys(spec.gpu_words))
    return (
        f"{spec.n_domains} regions, {sum(spec.gpus)} {types} GPUs; {links.sum()} directed "
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
