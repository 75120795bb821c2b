"""The cluster file and the trace of what was measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from experiments.common import write_text
from experiments.probe.rounds import Sample
from jaxsim.cluster import ClusterSpec, load_cluster, parse_cluster
from jaxsim.files import InputError
from jaxsim.network import read_network_trace


@dataclasses.dataclass(frozen=True)
class Machines:
    """What no probe can see: GPUs and prices; `cluster` is a file that says them."""

    cluster: str | None
    gpu: str
    gpus: Sequence[int]
    usd_per_gpu_hour: float
    egress_usd_per_gb: float
    intra_gbps: float


def spec_of(samples: Sequence[Sample], machines: Machines, name: str) -> ClusterSpec:
    """The cluster with the mean bandwidth and the median round trip of each link. Raises InputError."""
    names = tuple(dict.fromkeys(x for sample in samples for x in (sample.src, sample.dst)))
    base = base_of(names, machines, name)
    rate, rtt = np.zeros((2, base.n_domains, base.n_domains))
    for i, src in enumerate(base.domains):
        for j, dst in enumerate(base.domains):
            if i != j:
                found = [(x.bandwidth_gbps, x.rtt_ms) for x in samples if x[1:3] == (src, dst)]
                if not found:
                    raise InputError(f"{src} to {dst}: was not measured; expected every pair")
                rate[i, j] = np.mean([x[0] for x in found])
                rtt[i, j] = np.median([x[1] for x in found])
    return dataclasses.replace(base, bandwidth_gbps=rate, rtt_ms=rtt)


def base_of(names: tuple[str, ...], machines: Machines, name: str) -> ClusterSpec:
    """The cluster of these domains but for its links. Raises InputError where the cluster file has
    others, or another number of GPU counts is given."""
    if machines.cluster is None:
        return _stated(names, machines, name)
    base = load_cluster(machines.cluster)
    if set(base.domains) != set(names):
        raise InputError(
            f"{machines.cluster}: domains: has {', '.join(base.domains)}; measured are "
            f"{', '.join(names)}"
        )
    return base


def _stated(names: tuple[str, ...], machines: Machines, name: str) -> ClusterSpec:
    gpus = tuple(machines.gpus) * (len(names) if len(machines.gpus) == 1 else 1)
    if len(gpus) != len(names):
        raise InputError(f"gpus: expected one number, or {len(names)}, got {len(gpus)}")
    apart = 1.0 - np.eye(len(names))
    return ClusterSpec(
        name=name,
        gpu=machines.gpu,
        domains=names,
        gpus=gpus,
        gpus_per_node=tuple(min(8, n) for n in gpus),
        usd_per_gpu_hour=(machines.usd_per_gpu_hour,) * len(names),
        intra_bandwidth_gbps=machines.intra_gbps,
        intra_rtt_ms=0.05,
        bandwidth_gbps=apart,
        rtt_ms=apart,
        egress_usd_per_gb=machines.egress_usd_per_gb * apart,
    )


def write_cluster(target: Path, samples: Sequence[Sample], machines: Machines) -> ClusterSpec:
    """Write the cluster file. Raises InputError."""
    spec = spec_of(samples, machines, target.stem)
    rounds = len(samples) // (spec.n_domains * (spec.n_domains - 1))
    head = f"# Written by `hippo probe`: links measured {rounds} times each; the rest was given.\n"
    text = head + spec.to_yaml()
    parse_cluster(text, str(target))
    write_text(target, text, check=load_cluster)
    return load_cluster(target)


def write_trace(target: Path, samples: Sequence[Sample], spec: ClusterSpec) -> None:
    """Write the trace, as jaxsim reads it. Raises InputError."""
    rows = [f"{x.t_s:.3f},{x.src},{x.dst},{x.bandwidth_gbps:.9g}" for x in samples]
    text = "\n".join(["t_s,src,dst,bandwidth_gbps", *rows]) + "\n"
    write_text(target, text, check=lambda path: read_network_trace(path, spec, 60.0))
