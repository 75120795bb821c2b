"""A cluster file and a trace as the resolved network that `ddp_bench.wan` reads."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np
from jaxtyping import Float

from experiments.common import load_regions
from jaxsim.cluster import ClusterSpec
from jaxsim.files import InputError
from jaxsim.network import read_network_trace

MOST_MBPS = 1000.0  # [Mbit/s] of an emulated link; `hippo wan check` measures up to there
MOST_DOMAINS = 32
SMALLEST_QUEUE_KB = 262.144  # four bursts of 64 KiB
MBPS_PER_GBPS = 1000.0


@dataclasses.dataclass(frozen=True)
class NetworkOptions:
    """How a cluster becomes an emulated network."""

    cluster: str | None = None
    trace: str | None = None
    interval_s: float = 60.0  # [s] of the trace that one row holds
    scale: float = 1.0  # of rates, and of the trace's time
    time_scale: float | None = None  # of the trace's time alone
    name: str | None = None
    loss: float = 0.0
    congestion: str = "bbr"
    mtu: int = 9000  # [B]


def resolve(options: NetworkOptions) -> dict[str, Any]:
    """The network as `ddp_bench.wan` reads it.

    Rates are the cluster's times `scale`. A link delays by half of its entry in the matrix of round
    trips, so a ping over an asymmetric pair takes the mean of both entries. Queues hold one
    bandwidth-delay product. Raises InputError.
    """
    spec = load_regions(options.cluster)
    if not 2 <= spec.n_domains <= MOST_DOMAINS:
        raise InputError(
            f"{spec.name}: domains: expected 2 to {MOST_DOMAINS} for an emulated network, "
            f"got {spec.n_domains}"
        )
    factors = None
    if options.trace is not None:
        factors = read_network_trace(options.trace, spec, options.interval_s)
    rate = np.asarray(spec.bandwidth_gbps) * MBPS_PER_GBPS * options.scale
    _check_rates(spec, rate, factors, options.scale)
    rtt = np.asarray(spec.rtt_ms, np.float64)
    queue = np.maximum(rate * rtt / 8.0, SMALLEST_QUEUE_KB)
    between = 1.0 - np.eye(spec.n_domains)
    return {
        "name": options.name or slug(spec.name),
        "domains": list(spec.domains),
        "rate_mbps": (rate * between).tolist(),
        "delay_ms": (rtt / 2.0 * between).tolist(),
        "queue_kb": (queue * between).tolist(),
        "loss": (options.loss * between).tolist(),
        "trace": _trace(options, rate * between, factors),
        "endpoints": {"congestion": options.congestion, "buffer_mb": 64.0, "mtu": options.mtu},
    }


def _check_rates(
    spec: ClusterSpec,
    rate: Float[np.ndarray, "K K"],
    factors: Float[np.ndarray, "R K K"] | None,
    scale: float,
) -> None:
    """Refuse links that one process cannot emulate, and say which scale it can."""
    apart = ~np.eye(spec.n_domains, dtype=bool)
    most = rate[apart].max()
    if factors is not None:
        most = max(most, (factors * rate)[:, apart].max())
    if most > MOST_MBPS:
        allowed = np.floor(1e4 * scale * MOST_MBPS / most) / 1e4
        raise InputError(
            f"--scale {scale:g}: {spec.name} has links of {most / MBPS_PER_GBPS:.4g} Gbit/s; "
            f"emulated are up to {MOST_MBPS / MBPS_PER_GBPS:g}: expected a scale up to {allowed:g}"
        )


def _trace(
    options: NetworkOptions,
    rate: Float[np.ndarray, "K K"],
    factors: Float[np.ndarray, "R K K"] | None,
) -> dict[str, Any] | None:
    if factors is None:
        return None
    scale = options.scale if options.time_scale is None else options.time_scale
    interval_s = options.interval_s * scale
    if interval_s < 0.01:
        raise InputError(
            f"--time_scale {scale:g}: rows of {options.interval_s:g} s would last {interval_s:g} s: "
            "expected at least 0.01 s"
        )
    rates = np.round(factors.astype(np.float64) * rate, 6)
    return {"interval_s": interval_s, "rates_mbps": rates.tolist(), "repeat": True}


def slug(name: str) -> str:
    """A cluster's name as that of a network: at most 24 of a-z, 0-9 and '-'."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:24].strip("-") or "network"
