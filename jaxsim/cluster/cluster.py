"""Clusters: domains, the wide-area network between them, and the YAML file that describes both."""

from __future__ import annotations

import dataclasses
import importlib.resources
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import yaml
from flax import struct
from jax import Array

from jaxsim.cluster.gpu import LARGEST_FIGURE, Gpu, GpuSpec, gpu_spec
from jaxsim.files import InputError, load_yaml

GBIT_PER_GBYTE = 8.0
EMBEDDED_CLUSTERS = ("four-aws-regions", "eight-aws-regions")
MOST_GPUS = 2**24  # of a domain: float32 counts them one by one


@struct.dataclass
class Cluster:
    """What the simulator knows of a cluster. Padded domains have mask False and no GPUs."""

    gpu: Gpu
    mask: Array  # [K] bool, True for a real domain
    gpus: Array  # [K] int32
    gpus_per_node: Array  # [K] int32
    usd_per_gpu_hour: Array  # [K] [USD/h]
    intra_gb_per_s: Array  # [] [GB/s] network bandwidth of one node inside a domain
    intra_rtt_s: Array  # [] [s] on record: what a step pays inside a domain is the calibration's
    bandwidth_gb_per_s: Array  # [K, K] [GB/s] base bandwidth, row = source
    rtt_s: Array  # [K, K] [s] round trip
    egress_usd_per_gb: Array  # [K, K] [USD/GB]


@dataclasses.dataclass(frozen=True)
class ClusterSpec:
    """A cluster as its YAML file states it (network rates in Gbit/s, RTT in ms)."""

    name: str
    gpu: str | Mapping[str, float]
    domains: tuple[str, ...]
    gpus: tuple[int, ...]
    gpus_per_node: tuple[int, ...]
    usd_per_gpu_hour: tuple[float, ...]
    intra_bandwidth_gbps: float
    intra_rtt_ms: float
    bandwidth_gbps: np.ndarray  # [K, K]
    rtt_ms: np.ndarray  # [K, K]
    egress_usd_per_gb: np.ndarray  # [K, K]

    @property
    def n_domains(self) -> int:
        return len(self.domains)

    @property
    def gpu_spec(self) -> GpuSpec:
        return gpu_spec(self.gpu, self.name)

    def to_arrays(self, pad_to: int | None = None) -> Cluster:
        """Return the pytree, padded by mask to `pad_to` domains."""
        k = self.n_domains
        size = k if pad_to is None else pad_to
        if size < k:
            raise InputError(f"{self.name}: cannot pad {k} domains to {size}")

        def vector(values, dtype, fill):
            return jnp.asarray(list(values) + [fill] * (size - k), dtype)

        def matrix(values, scale, fill):
            out = np.full((size, size), fill, np.float32)
            out[:k, :k] = np.asarray(values, np.float64) * scale
            return jnp.asarray(out)

        return Cluster(
            gpu=self.gpu_spec.to_arrays(),
            mask=vector([True] * k, bool, False),
            gpus=vector(self.gpus, jnp.int32, 0),
            gpus_per_node=vector(self.gpus_per_node, jnp.int32, 1),
            usd_per_gpu_hour=vector(self.usd_per_gpu_hour, jnp.float32, 0.0),
            intra_gb_per_s=jnp.float32(self.intra_bandwidth_gbps / GBIT_PER_GBYTE),
            intra_rtt_s=jnp.float32(self.intra_rtt_ms * 1e-3),
            bandwidth_gb_per_s=matrix(self.bandwidth_gbps, 1 / GBIT_PER_GBYTE, 0.0),
            rtt_s=matrix(self.rtt_ms, 1e-3, 0.0),
            egress_usd_per_gb=matrix(self.egress_usd_per_gb, 1.0, 0.0),
        )

    def to_yaml(self) -> str:
        """Return the text of a cluster file that loads back to the same cluster."""

        def rows(values):
            return [[round(float(x), 6) for x in row] for row in values]

        body = {
            "name": self.name,
            "gpu": self.gpu if isinstance(self.gpu, str) else dict(self.gpu),
            "domains": [
                {"name": n, "gpus": g, "gpus_per_node": p, "usd_per_gpu_hour": u}
                for n, g, p, u in zip(
                    self.domains, self.gpus, self.gpus_per_node, self.usd_per_gpu_hour, strict=True
                )
            ],
            "intra_domain": {
                "bandwidth_gbps": self.intra_bandwidth_gbps,
                "rtt_ms": self.intra_rtt_ms,
            },
            "wan": {
                "bandwidth_gbps": rows(self.bandwidth_gbps),
                "rtt_ms": rows(self.rtt_ms),
                "egress_usd_per_gb": rows(self.egress_usd_per_gb),
            },
        }
        return yaml.safe_dump(body, sort_keys=False, default_flow_style=None, width=100)


def list_clusters() -> tuple[str, ...]:
    """Names of the embedded clusters, which `load_cluster` takes in place of a file."""
    return EMBEDDED_CLUSTERS


def load_cluster(path: str | Path | None = None) -> ClusterSpec:
    """Load and check a cluster file or an embedded cluster by name; None = the four regions.

    Raises InputError with one line that names the file, the key and the allowed values.
    """
    path = EMBEDDED_CLUSTERS[0] if path is None else path
    if path in EMBEDDED_CLUSTERS:
        preset = importlib.resources.files("jaxsim.presets") / f"{path}.yaml"
        return parse_cluster(preset.read_text(), str(path))
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as a cluster file: {error}") from None
    return parse_cluster(text, str(path))


def repeat_regions(spec: ClusterSpec, n_domains: int) -> ClusterSpec:
    """The first `n_domains` of a cluster's regions, taken again from the start where it has fewer.

    Twins of one region are joined by the cluster's fastest, nearest and dearest figures: a way to
    ask how anything grows with the number of domains, not a place on earth. Raises InputError for a
    cluster of one region, which has no link to repeat.
    """
    if spec.n_domains == 1 < n_domains:
        raise InputError(f"{spec.name}: domains: one region cannot be repeated: it has no links")
    index = np.arange(n_domains) % spec.n_domains
    twins = (index[:, None] == index[None, :]) & ~np.eye(n_domains, dtype=bool)

    def tile(matrix, fill):
        return np.where(twins, fill, matrix[np.ix_(index, index)])

    nearest = spec.rtt_ms[spec.rtt_ms > 0].min() if (spec.rtt_ms > 0).any() else 0.0
    return dataclasses.replace(
        spec,
        name=f"{spec.name}-{n_domains}",
        domains=tuple(f"{spec.domains[i]}-{k}" for k, i in enumerate(index)),
        gpus=tuple(spec.gpus[i] for i in index),
        gpus_per_node=tuple(spec.gpus_per_node[i] for i in index),
        usd_per_gpu_hour=tuple(spec.usd_per_gpu_hour[i] for i in index),
        bandwidth_gbps=tile(spec.bandwidth_gbps, spec.bandwidth_gbps.max()),
        rtt_ms=tile(spec.rtt_ms, nearest),
        egress_usd_per_gb=tile(spec.egress_usd_per_gb, spec.egress_usd_per_gb.max()),
    )


def parse_cluster(text: str, source: str) -> ClusterSpec:
    """Parse and check the text of a cluster file; `source` is what error lines name."""
    try:
        body = load_yaml(text)
    except yaml.YAMLError as error:
        line = str(error).replace("\n", " ")
        raise InputError(f"{source}: not valid YAML: {line}") from None
    top = ("name", "gpu", "domains", "intra_domain", "wan")
    body = _mapping(body, source, "the file", required=top)
    domains = body["domains"]
    if not isinstance(domains, list) or not domains:
        raise InputError(f"{source}: domains: expected a list of at least one domain")
    keys = ("name", "gpus", "gpus_per_node", "usd_per_gpu_hour")
    domains = [_mapping(d, source, f"domains[{i}]", required=keys) for i, d in enumerate(domains)]
    names = tuple(str(d["name"]) for d in domains)
    duplicates = sorted({n for n in names if names.count(n) > 1})
    if duplicates:
        raise InputError(f"{source}: domains: the name {duplicates[0]!r} stands twice")

    def each(key, check, **bounds):
        return tuple(
            check(d[key], source, f"domains[{i}].{key}", **bounds) for i, d in enumerate(domains)
        )

    intra = _mapping(body["intra_domain"], source, "intra_domain", ("bandwidth_gbps", "rtt_ms"))
    wan_keys = ("bandwidth_gbps", "rtt_ms", "egress_usd_per_gb")
    wan = _mapping(body["wan"], source, "wan", required=wan_keys)
    gpu_spec(body["gpu"], source)
    matrices = {
        key: _matrix(wan[key], source, f"wan.{key}", names, positive=key == "bandwidth_gbps")
        for key in wan_keys
    }
    return ClusterSpec(
        name=str(body["name"]),
        gpu=body["gpu"],
        domains=names,
        gpus=each("gpus", _integer, low=1),
        gpus_per_node=each("gpus_per_node", _integer, low=1),
        usd_per_gpu_hour=each("usd_per_gpu_hour", _number, low=0.0),
        intra_bandwidth_gbps=_number(
            intra["bandwidth_gbps"], source, "intra_domain.bandwidth_gbps", low=1e-9
        ),
        intra_rtt_ms=_number(intra["rtt_ms"], source, "intra_domain.rtt_ms", low=0.0),
        **matrices,
    )


def _mapping(value: Any, source: str, key: str, required: tuple[str, ...]) -> Mapping:
    if not isinstance(value, Mapping):
        raise InputError(f"{source}: {key}: expected a mapping with {', '.join(required)}")
    for name in required:
        if name not in value:
            raise InputError(f"{source}: {key}: missing key {name!r}")
    for name in value:
        if name not in required:
            allowed = ", ".join(required)
            raise InputError(f"{source}: {key}: unknown key {name!r}; allowed: {allowed}")
    return value


def _number(value: Any, source: str, key: str, low: float) -> float:
    bad = isinstance(value, bool) or not isinstance(value, int | float)
    # Compared, not converted: an integer may be longer than any float. No NaN passes either.
    if bad or not low <= value <= LARGEST_FIGURE:
        bounds = f">= {low:g} and at most {LARGEST_FIGURE:g}"
        raise InputError(f"{source}: {key}: expected a number {bounds}, got {reprlib.repr(value)}")
    return float(value)


def _integer(value: Any, source: str, key: str, low: int) -> int:
    bad = isinstance(value, bool) or not isinstance(value, int)
    if bad or not low <= value <= MOST_GPUS:
        bounds = f">= {low} and at most {MOST_GPUS}"
        raise InputError(
            f"{source}: {key}: expected an integer {bounds}, got {reprlib.repr(value)}"
        )
    return value


def _matrix(value: Any, source: str, key: str, names: tuple[str, ...], positive: bool):
    size = len(names)
    shaped = isinstance(value, list) and all(isinstance(row, list) for row in value)
    if not shaped or len(value) != size or any(len(row) != size for row in value):
        got = f"{len(value)} rows of {[len(r) for r in value]}" if shaped else repr(value)
        raise InputError(
            f"{source}: {key}: expected a {size} x {size} matrix, one row and one column for each "
            f"of {', '.join(names)}; got {got}"
        )
    out = np.zeros((size, size))
    for i, row in enumerate(value):
        for j, entry in enumerate(row):
            low, where = 1e-9 if positive and i != j else 0.0, f"{key}[{names[i]}][{names[j]}]"
            out[i, j] = _number(entry, source, where, low)
            if i == j and entry != 0:
                raise InputError(
                    f"{source}: {where}: expected 0, got {entry!r}: what a domain is to itself is "
                    "intra_domain's to say"
                )
    return out
