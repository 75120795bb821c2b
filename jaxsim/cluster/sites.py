"""What a domain may have of its own: the type of its GPUs, and the network of its nodes.

Where all domains have the same, GPU figures and efficiency parameters are scalars; else they are [K],
and every formula of a domain reads its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from jaxsim.cluster.efficiency import Belief, Calibration
from jaxsim.cluster.fits import EfficiencySource
from jaxsim.cluster.gpu import FABRICS, Gpu, GpuSpec, gpu_name, gpu_spec
from jaxsim.files import values

GpuType = str | Mapping[str, float]
SMALLEST = 1e-9  # [Gbit/s] of a network that exists
# Of links between domains and of the whole job: one figure for a cluster, that of its own GPU type.
SHARED = (
    *("wan_efficiency", "wan_ring_efficiency", "outer_sync_efficiency", "slow_link_gbps"),
    *("sync_fixed_s", "restart_s"),
)


@dataclasses.dataclass(frozen=True)
class Intra:
    """The network of one node inside a domain."""

    bandwidth_gbps: float  # [Gbit/s]
    rtt_ms: float  # [ms] between nodes

    def body(self) -> dict[str, float]:
        """The mapping of a cluster file."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class Site:
    """What a domain has of its own; None = what the cluster's file states for all."""

    gpu: GpuType | None = None
    intra: Intra | None = None

    def body(self) -> dict[str, Any]:
        """Its keys of a cluster file's domain."""
        gpu = self.gpu if self.gpu is None or isinstance(self.gpu, str) else dict(self.gpu)
        own = {"gpu": gpu, "intra_domain": self.intra and self.intra.body()}
        return {key: value for key, value in own.items() if value is not None}


def parse_gpu(value: Any, source: str) -> GpuType:
    """The `gpu` key of a cluster file, aliases resolved. Raises InputError that names the key."""
    gpu_spec(value, source)
    return gpu_name(value) if isinstance(value, str) else value


def parse_intra(body: Any, where: str) -> Intra:
    """Bandwidth and round trip between a domain's nodes, in figures or as the name of a fabric. Raises
    InputError that names the key."""
    if isinstance(body, Mapping) and "fabric" in body:
        values.mapping(body, where, ("fabric",))
        return Intra(*FABRICS[values.choice(body["fabric"], f"{where}.fabric", tuple(FABRICS))])
    body = values.mapping(body, where, ("bandwidth_gbps", "rtt_ms"))
    return Intra(
        values.number(body["bandwidth_gbps"], f"{where}.bandwidth_gbps", SMALLEST),
        values.number(body["rtt_ms"], f"{where}.rtt_ms"),
    )


def parse_site(domain: Mapping[str, Any], where: str) -> Site:
    """What a domain of a cluster file has of its own. Raises InputError that names the key."""
    gpu, intra = domain.get("gpu"), domain.get("intra_domain")
    return Site(
        None if gpu is None else parse_gpu(gpu, where),
        None if intra is None else parse_intra(intra, f"{where}.intra_domain"),
    )


def site_figures(
    of_domains: Sequence[float], size: int
) -> Float[Array, ""] | Float[Array, " {size}"]:
    """A figure of all domains: [] where they have the same, else [size], padded with the first's."""
    if len(set(of_domains)) == 1:
        return jnp.float32(of_domains[0])
    padding = [of_domains[0]] * (size - len(of_domains))
    return jnp.asarray([*of_domains, *padding], jnp.float32)


def site_gpus(of_domains: Sequence[GpuSpec], size: int) -> Gpu:
    """The GPUs of a cluster: leaves [] where all domains have the same, else [size]."""
    if all(spec == of_domains[0] for spec in of_domains):
        return of_domains[0].to_arrays()
    padding = [of_domains[0]] * (size - len(of_domains))
    rows = [spec.to_arrays() for spec in (*of_domains, *padding)]
    return jax.tree.map(lambda *x: jnp.stack(x), *rows)


def site_calibration(
    of_types: Sequence[Calibration], type_of: Sequence[int], shared: Calibration
) -> Calibration:
    """The efficiency parameters of a cluster, leaves [..., K], from those of its GPU types, leaves
    [...], and the type of each domain; SHARED from those of the cluster's own. Of one type: as they
    are."""
    if len(of_types) == 1:
        return of_types[0]
    own = jax.tree.map(lambda *x: jnp.stack(x, axis=-1)[..., np.array(type_of)], *of_types)
    return own.replace(**{name: getattr(shared, name) for name in SHARED})


def site_samples(
    beliefs: Sequence[Belief], type_of: Sequence[int], shared: Belief, n: int, seed: int
) -> Calibration:
    """`n` draws of a cluster's parameters, leaves [n] or [n, K], as `site_calibration` joins them;
    those of two types are independent."""
    draws = [belief.samples(n, seed + i) for i, belief in enumerate(beliefs)]
    return site_calibration(draws, type_of, shared.samples(n, seed))


def padded_calibration(calibration: Calibration, size: int) -> Calibration:
    """The parameters for `size` domains: leaves [K] are padded with the first domain's, or cut."""

    def pad(x: Array) -> Array:
        if x.ndim == 0:
            return x
        return jnp.concatenate([x[:size], jnp.broadcast_to(x[:1], (max(size - len(x), 0),))])

    return jax.tree.map(pad, calibration)


def merged_source(
    of_types: Sequence[Any], source_of: Callable[[Any], EfficiencySource]
) -> EfficiencySource:
    """Where the parameters of a cluster's GPU types come from, in one record."""
    found = [source_of(gpu) for gpu in of_types]
    if len(found) == 1:
        return found[0]

    def joined(names: Sequence[str | None]) -> str | None:
        return ", ".join(dict.fromkeys(name for name in names if name)) or None

    return EfficiencySource(
        gpu=joined([source.gpu for source in found]),
        used=joined([source.used for source in found]),
        why="; ".join(dict.fromkeys(source.why for source in found if source.why)),
        stack=found[0].stack,
        file=found[0].file,
    )
