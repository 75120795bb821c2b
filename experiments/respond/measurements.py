"""Measurements of links and domains, checked one by one, and the network as last measured."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from jaxsim.cluster import GBIT_PER_GBYTE, Cluster, ClusterSpec
from jaxsim.files import InputError
from jaxsim.step_time import NetworkView

LINK_KEYS = ("src", "dst", "bandwidth_gbps", "rtt_ms")
DOMAIN_KEYS = ("domain", "gpus_available")


class Measured:
    """The network as last measured, beginning with what the cluster file states."""

    def __init__(self, spec: ClusterSpec, cluster: Cluster):
        """The host's own copies: one measurement at a time is written into them."""
        self.spec = spec
        self.put(cluster.bandwidth_gb_per_s, cluster.rtt_s, cluster.gpus)

    def put(self, bandwidth_gb_per_s: Any, rtt_s: Any, free_gpus: Any) -> None:
        """Take all figures at once."""
        self.bandwidth_gb_per_s = np.array(bandwidth_gb_per_s)  # [K, K] [GB/s]
        self.rtt_s = np.array(rtt_s)  # [K, K] [s]
        self.free_gpus = np.array(free_gpus)  # [K]

    @property
    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What `put` takes."""
        return self.bandwidth_gb_per_s, self.rtt_s, self.free_gpus

    @property
    def view(self) -> NetworkView:
        """As schedulers take it."""
        return NetworkView(*self.arrays)

    def take(self, body: Any) -> None:
        """Take one measurement. Raises InputError that names the key."""
        keys = set(body) if isinstance(body, dict) else set()
        if keys == set(DOMAIN_KEYS):
            k = self._domain(body, "domain")
            most = self.spec.gpus[k]
            self.free_gpus[k] = int(_number(body, "gpus_available", 0, most, whole=True))
        elif keys <= set(LINK_KEYS) and keys >= {"src", "dst"} and len(keys) > 2:
            i, j = self._domain(body, "src"), self._domain(body, "dst")
            if i == j:
                raise InputError(f"src, dst: both are {body['src']!r}; no link leads there")
            new = {key: _number(body, key, 1e-6, 1e6) for key in keys - {"src", "dst"}}
            if "bandwidth_gbps" in new:
                self.bandwidth_gb_per_s[i, j] = new["bandwidth_gbps"] / GBIT_PER_GBYTE
            if "rtt_ms" in new:
                self.rtt_s[i, j] = new["rtt_ms"] * 1e-3
        else:
            raise InputError(
                "expected one JSON object with the keys src, dst and bandwidth_gbps or rtt_ms (or "
                f"both), or with {' and '.join(DOMAIN_KEYS)}; got {sorted(keys) or body!r}"
            )

    def _domain(self, body: dict, key: str) -> int:
        if body[key] not in self.spec.domains:
            known = ", ".join(self.spec.domains)
            raise InputError(f"{key}: {body[key]!r} is no domain; known: {known}")
        return self.spec.domains.index(body[key])


def _number(body: dict, key: str, low: float, high: float, whole: bool = False) -> float:
    value = body[key]
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not good or not low <= value <= high or (whole and value != int(value)):
        kind = "a whole number" if whole else "a number"
        raise InputError(f"{key}: expected {kind} from {low:g} to {high:g}, got {value!r}")
    return value


def stamped(body: Any) -> tuple[dict[str, Any], Any]:
    """{"time": its time stamp}, {} without one, and the measurement without it. Raises InputError."""
    if not isinstance(body, dict) or "time" not in body:
        return {}, body
    rest = {key: value for key, value in body.items() if key != "time"}
    return {"time": _time(body["time"])}, rest


def _time(value: Any) -> float | str:
    """A time stamp as it was given. Raises InputError for what is neither text nor a finite number."""
    text = isinstance(value, str) and 0 < len(value) <= 64
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not text and not (number and math.isfinite(value)):
        raise InputError(f"time: expected seconds or text of at most 64 characters, got {value!r}")
    return value


def drawn(spec: ClusterSpec, count: int, seed: int) -> Iterator[dict]:
    """`count` links, drawn at random, that turn out up to 90 % slower or twice as fast: there is much
    to decide."""
    rng = np.random.default_rng(seed)
    pairs = [(i, j) for i in range(spec.n_domains) for j in range(spec.n_domains) if i != j]
    for which, factor in zip(
        rng.integers(len(pairs), size=count), rng.uniform(0.1, 2.0, size=count), strict=True
    ):
        i, j = pairs[which]
        gbps = float(spec.bandwidth_gbps[i, j] * factor)
        yield {"src": spec.domains[i], "dst": spec.domains[j], "bandwidth_gbps": gbps}
