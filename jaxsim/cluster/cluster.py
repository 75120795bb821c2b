"""Clusters: domains, the wide-area network between them, and the YAML file that describes both."""

from __future__ import annotations

import dataclasses
import importlib.resources
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxsim.cluster.efficiency import Calibration
from jaxsim.cluster.fits import (
    EfficiencySource,
    MachineFit,
    default_calibration,
    efficiency_source,
    machine_fit,
)
from jaxsim.cluster.gpu import Gpu, GpuSpec, gpu_spec
from jaxsim.cluster.sites import (
    SMALLEST,
    GpuType,
    Intra,
    Site,
    merged_source,
    parse_gpu,
    parse_intra,
    parse_site,
    site_calibration,
    site_figures,
    site_gpus,
)
from jaxsim.cluster.spot import SpotOffer, parse_spot
from jaxsim.cluster.stack import POOLED, known_stack
from jaxsim.files import InputError, dump_yaml, listed, parse_yaml, read_yaml, shown, values
from jaxsim.pytree import Pytree

GBIT_PER_GBYTE = 8.0
EMBEDDED_CLUSTERS = (
    *("four-aws-regions", "eight-aws-regions"),
    *("mixed-aws-regions", "large-aws-regions"),
)
KIND = "a cluster file"


class Cluster(Pytree):
    """What the simulator knows of a cluster. Padded domains have mask False and no GPUs."""

    gpu: Gpu  # leaves [], or [K] where types differ
    mask: Bool[Array, "*batch K"]  # True for a real domain
    gpus: Int[Array, "*batch K"]
    gpus_per_node: Int[Array, "*batch K"]
    usd_per_gpu_hour: Float[Array, "*batch K"]  # [USD/h]
    # [GB/s] network bandwidth of one node inside a domain, and [s] the round trip between its nodes:
    # [], or [K] where domains differ
    intra_gb_per_s: Float[Array, "*batch"]
    intra_rtt_s: Float[Array, "*batch"]
    bandwidth_gb_per_s: Float[Array, "*batch K K"]  # [GB/s] base bandwidth, row = source
    rtt_s: Float[Array, "*batch K K"]  # [s] round trip
    egress_usd_per_gb: Float[Array, "*batch K K"]  # [USD/GB]

    def gpu_usd(self, gpus: Float[Array, " K"], seconds: Float[Array, ""]) -> Float[Array, ""]:
        """[] [USD] that traffic is set against, where `gpus` are held for a time: their price, that of
        one GPU where none is held, lest traffic in a standstill be infinitely dear."""
        price = self.usd_per_gpu_hour * (seconds / 3600.0)
        one = jnp.min(jnp.where(self.mask, price, jnp.inf))
        return jnp.maximum(jnp.maximum(jnp.vdot(gpus, price), one), 1e-9)

    def peak_tflops(self, gpus: Int[Array, " K"]) -> Float[Array, ""]:
        """[] [TFLOP/s] that these GPUs of the domains reach together at most."""
        peak, many = self.gpu.peak_tflops, gpus.astype(jnp.float32)
        return peak * jnp.sum(many) if peak.ndim == 0 else jnp.vdot(peak, many)


@dataclasses.dataclass(frozen=True)
class ClusterSpec:
    """A cluster as its YAML file states it (network rates in Gbit/s, RTT in ms)."""

    name: str
    gpu: GpuType
    domains: tuple[str, ...]
    gpus: tuple[int, ...]
    gpus_per_node: tuple[int, ...]
    usd_per_gpu_hour: tuple[float, ...]
    intra_bandwidth_gbps: float
    intra_rtt_ms: float
    bandwidth_gbps: np.ndarray  # [K, K]
    rtt_ms: np.ndarray  # [K, K]
    egress_usd_per_gb: np.ndarray  # [K, K]
    stack: str = POOLED  # software that its jobs run
    calibration_file: str | None = None  # where the fits of the GPUs are, None = those that ship
    # Of each domain what its GPUs cost on the spot market, None where they are not to be had there;
    # empty where nobody offers any
    spot: tuple[SpotOffer | None, ...] = ()
    sites: tuple[Site, ...] = ()  # what each domain has of its own; empty where none has anything

    def __post_init__(self):
        if self.sites and len(self.sites) != len(self.domains):
            raise ValueError(f"{len(self.sites)} sites for {len(self.domains)} domains")

    @property
    def gpu_of(self) -> tuple[GpuType, ...]:
        """[K] the GPU type of each domain."""
        own = self.sites or [Site()] * self.n_domains
        return tuple(self.gpu if site.gpu is None else site.gpu for site in own)

    @property
    def gpu_types(self) -> list[GpuType]:
        """Its GPU types, each once, in the order of its domains."""
        of_domains = self.gpu_of
        return [gpu for i, gpu in enumerate(of_domains) if gpu not in of_domains[:i]]

    @property
    def type_of(self) -> list[int]:
        """[K] the place of each domain's GPU type in `gpu_types`."""
        types = self.gpu_types
        return [types.index(gpu) for gpu in self.gpu_of]

    @property
    def gpu_words(self) -> tuple[str, ...]:
        """[K] the GPU type of each domain in words."""
        return tuple(x if isinstance(x, str) else "given by figures" for x in self.gpu_of)

    def fit_of(self, gpu: GpuType) -> MachineFit | None:
        """What is believed of a GPU type under its stack; None = the documented priors alone. Raises
        InputError for a calibration file that says nothing of it."""
        return machine_fit(gpu, self.stack, self.calibration_file)

    @property
    def calibration(self) -> Calibration:
        """Efficiency parameters of its GPUs under its stack: leaves [], or [K] where types differ.
        Raises InputError as `fit_of`."""
        args = (self.stack, self.calibration_file)
        of_types = [default_calibration(gpu, *args) for gpu in self.gpu_types]
        return site_calibration(of_types, self.type_of, default_calibration(self.gpu, *args))

    @property
    def efficiency_source(self) -> EfficiencySource:
        """Where `calibration` comes from."""
        args = (self.stack, self.calibration_file)
        return merged_source(self.gpu_types, lambda gpu: efficiency_source(gpu, *args))

    @property
    def n_domains(self) -> int:
        return len(self.domains)

    @property
    def gpu_specs(self) -> tuple[GpuSpec, ...]:
        """[K] the data sheet of each domain's GPUs."""
        return tuple(gpu_spec(gpu, self.name) for gpu in self.gpu_of)

    @property
    def peak_tflops(self) -> float:
        """Peak of all GPUs together [TFLOP/s]."""
        return sum(gpu.peak_tflops * n for gpu, n in zip(self.gpu_specs, self.gpus, strict=True))

    @property
    def intra(self) -> Intra:
        """The network inside domains that state none of their own."""
        return Intra(self.intra_bandwidth_gbps, self.intra_rtt_ms)

    @property
    def intra_of(self) -> tuple[Intra, ...]:
        """[K] the network inside each domain."""
        return tuple(site.intra or self.intra for site in self.sites or [Site()] * self.n_domains)

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
            gpu=site_gpus(self.gpu_specs, size),
            mask=vector([True] * k, bool, False),
            gpus=vector(self.gpus, jnp.int32, 0),
            gpus_per_node=vector(self.gpus_per_node, jnp.int32, 1),
            usd_per_gpu_hour=vector(self.usd_per_gpu_hour, jnp.float32, 0.0),
            intra_gb_per_s=site_figures(
                [intra.bandwidth_gbps / GBIT_PER_GBYTE for intra in self.intra_of], size
            ),
            intra_rtt_s=site_figures([intra.rtt_ms * 1e-3 for intra in self.intra_of], size),
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
            **({} if self.stack == POOLED else {"stack": self.stack}),
            **({} if self.calibration_file is None else {"calibration": self.calibration_file}),
            "domains": [
                {"name": n, "gpus": g, "gpus_per_node": p, "usd_per_gpu_hour": u}
                | ({} if offer is None else {"spot": offer.body()})
                | site.body()
                for n, g, p, u, offer, site in zip(
                    *(self.domains, self.gpus, self.gpus_per_node, self.usd_per_gpu_hour),
                    self.spot or [None] * self.n_domains,
                    self.sites or [Site()] * self.n_domains,
                    strict=True,
                )
            ],
            "intra_domain": self.intra.body(),
            "wan": {
                "bandwidth_gbps": rows(self.bandwidth_gbps),
                "rtt_ms": rows(self.rtt_ms),
                "egress_usd_per_gb": rows(self.egress_usd_per_gb),
            },
        }
        return dump_yaml(body, default_flow_style=None, width=100)


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
    return _cluster(read_yaml(path, KIND), str(path))


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
        spot=tuple(spec.spot[i] for i in index) if spec.spot else (),
        sites=tuple(spec.sites[i] for i in index) if spec.sites else (),
        bandwidth_gbps=tile(spec.bandwidth_gbps, spec.bandwidth_gbps.max()),
        rtt_ms=tile(spec.rtt_ms, nearest),
        egress_usd_per_gb=tile(spec.egress_usd_per_gb, spec.egress_usd_per_gb.max()),
    )


def parse_cluster(text: str, source: str) -> ClusterSpec:
    """Parse and check the text of a cluster file; `source` is what error lines name.

    Raises InputError with one line that names the key and the allowed values.
    """
    return _cluster(parse_yaml(text, source, KIND), source)


def _cluster(body: Any, source: str) -> ClusterSpec:
    top = ("name", "gpu", "domains", "intra_domain", "wan")
    body = values.mapping(body, f"{source}: the file", top, ("stack", "calibration"))
    keys = ("name", "gpus", "gpus_per_node", "usd_per_gpu_hour")
    domains = [
        (
            f"{source}: domains[{i}]",
            values.mapping(
                domain, f"{source}: domains[{i}]", keys, ["spot", "gpu", "intra_domain"]
            ),
        )
        for i, domain in enumerate(values.entries(body["domains"], f"{source}: domains", "domain"))
    ]
    names = tuple(values.name(d["name"], f"{where}.name") for where, d in domains)
    duplicates = sorted({n for n in names if names.count(n) > 1})
    if duplicates:
        raise InputError(f"{source}: domains: the name {shown(duplicates[0])} stands twice")
    gpus = tuple(values.count(d["gpus"], f"{where}.gpus") for where, d in domains)
    intra = parse_intra(body["intra_domain"], f"{source}: intra_domain")
    wan_keys = ("bandwidth_gbps", "rtt_ms", "egress_usd_per_gb")
    wan = values.mapping(body["wan"], f"{source}: wan", wan_keys)
    offers = tuple(parse_spot(d.get("spot"), f"{where}.spot") for where, d in domains)
    sites = tuple(parse_site(d, where) for where, d in domains)
    gpu = parse_gpu(body["gpu"], source)
    types = [gpu, *(site.gpu for site in sites if site.gpu is not None)]
    stack = known_stack(body.get("stack", POOLED), f"{source}: stack")
    return ClusterSpec(
        name=values.name(body["name"], f"{source}: name"),
        gpu=gpu,
        domains=names,
        gpus=gpus,
        gpus_per_node=tuple(
            _gpus_per_node(d["gpus_per_node"], f"{where}.gpus_per_node", total)
            for (where, d), total in zip(domains, gpus, strict=True)
        ),
        usd_per_gpu_hour=tuple(
            values.number(d["usd_per_gpu_hour"], f"{where}.usd_per_gpu_hour")
            for where, d in domains
        ),
        intra_bandwidth_gbps=intra.bandwidth_gbps,
        intra_rtt_ms=intra.rtt_ms,
        stack=stack,
        calibration_file=_calibration_file(body.get("calibration"), types, stack, source),
        spot=offers if any(offers) else (),
        sites=sites if any(site.body() for site in sites) else (),
        **{
            key: _matrix(wan[key], f"{source}: wan.{key}", names, key == "bandwidth_gbps")
            for key in wan_keys
        },
    )


def _calibration_file(value: Any, types: list[GpuType], stack: str, source: str) -> str | None:
    """The path of a calibration file that is named relative to the cluster file, once it is known to
    hold a fit of all GPU types."""
    if value is None:
        return None
    where = f"{source}: calibration"
    if not isinstance(value, str) or not value:
        raise InputError(f"{where}: expected a calibration file, got {shown(value)}")
    if not all(isinstance(gpu, str) for gpu in types):
        raise InputError(f"{where}: goes with a gpu that is a type, not with figures")
    path = str((Path(source).parent / value).resolve())
    for gpu in types:
        machine_fit(gpu, stack, path)
    return path


def _gpus_per_node(value: Any, where: str, gpus: int) -> int:
    per_node = values.count(value, where)
    if per_node > gpus:
        raise InputError(
            f"{where}: expected an integer from 1 to {gpus}, the domain's gpus, got {per_node}"
        )
    return per_node


def _matrix(value: Any, where: str, names: tuple[str, ...], positive: bool) -> np.ndarray:
    size = len(names)
    shaped = isinstance(value, list) and all(isinstance(row, list) for row in value)
    if not shaped or len(value) != size or any(len(row) != size for row in value):
        lengths = shown([len(row) for row in value]) if shaped else ""
        got = f"{len(value)} rows of {lengths}" if shaped else shown(value)
        raise InputError(
            f"{where}: expected a {size} x {size} matrix, one row and one column for each of "
            f"{listed(names)}; got {got}"
        )
    out = np.zeros((size, size))
    for i, row in enumerate(value):
        for j, entry in enumerate(row):
            place = f"{where}[{names[i]}][{names[j]}]"
            out[i, j] = values.number(entry, place, SMALLEST if positive and i != j else 0.0)
            if i == j and entry != 0:
                raise InputError(
                    f"{place}: expected 0, got {shown(entry)}: what a domain is to itself is "
                    "intra_domain's to say"
                )
    return out
