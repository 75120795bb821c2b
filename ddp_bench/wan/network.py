"""The network that is emulated, as the resolved JSON file states it.

Whoever writes the file (`hippo wan` does, from a cluster's YAML and a trace's CSV) has done all
arithmetic on clusters; here stand only domains, directed links and the times at which rates change.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ddp_bench.errors import ConfigError

MOST_DOMAINS = 32  # select() reads at most 1,024 files, and a namespace takes about 50 ms to make
MOST_MBPS = 1000.0  # beyond it one Python process no longer keeps up
MOST_DELAY_MS = 5000.0
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,23}")
CONGESTION = ("bbr", "reno", "cubic")
SMALLEST_QUEUE = 1 << 18  # [B] four of the largest packets that a sender hands over at once


@dataclass(frozen=True)
class LinkSpec:
    """One directed link."""

    rate_mbps: float  # [Mbit/s] of IP packets; 0 = nothing passes (an outage)
    delay_ms: float  # [ms] one way
    queue_kb: float  # [kB] that may wait for the link; what does not fit is dropped
    loss: float = 0.0  # share of packets lost at random, in [0, 1)


@dataclass(frozen=True)
class Trace:
    """Rates over time. After the last row the first comes again, if `repeat`."""

    interval_s: float  # [s] of real time that a row holds
    rates_mbps: list[list[list[float]]]  # [R][K][K] [Mbit/s], row = source
    repeat: bool = True


@dataclass(frozen=True)
class Endpoints:
    """How the sockets of the domains are tuned."""

    congestion: str = "bbr"
    buffer_mb: float = 64.0  # [MB] most that a socket buffers, each way
    mtu: int = 9000  # [B]; the default is what clouds call jumbo frames


@dataclass(frozen=True)
class Network:
    """Domains, a directed link between any two, and what changes."""

    name: str
    domains: tuple[str, ...]
    links: dict[tuple[int, int], LinkSpec]  # (source, destination) -> link
    trace: Trace | None = None
    endpoints: Endpoints = field(default_factory=Endpoints)

    def to_json(self) -> dict[str, Any]:
        """What `read_network` reads back to the same network."""
        size = range(len(self.domains))

        def matrix(of: str) -> list[list[float]]:
            return [[getattr(self.links[i, j], of) if i != j else 0.0 for j in size] for i in size]

        return {
            "name": self.name,
            "domains": list(self.domains),
            **{key: matrix(key) for key in MATRICES},
            "trace": asdict(self.trace) if self.trace else None,
            "endpoints": asdict(self.endpoints),
        }


MATRICES = {  # [K][K] of the file -> largest value
    "rate_mbps": MOST_MBPS,
    "delay_ms": MOST_DELAY_MS,
    "queue_kb": 1e6,
    "loss": 0.99,
}
KEYS = ("name", "domains", *MATRICES, "trace", "endpoints")


def queue_kb(rate_mbps: float, rtt_ms: float) -> float:
    """[kB] of a queue that one TCP flow can fill: rate times round trip, and room for a burst.

    Appenzeller et al., SIGCOMM 2004: one long flow needs a queue of one bandwidth-delay product.
    """
    return max(rate_mbps * rtt_ms / 8.0, SMALLEST_QUEUE / 1e3)


def read_network(path: str | Path) -> Network:
    """Read a resolved network. Raises ConfigError, one line: file, key, allowed values."""
    try:
        body = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid JSON: {error}") from None
    return parse_network(body, str(path))


def parse_network(body: Any, where: str) -> Network:
    """A network from the content of its file; ConfigError names `where`, the key and what is
    allowed."""
    body = _mapping(body, where, KEYS)
    name, domains = body["name"], body["domains"]
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ConfigError(f"{where}: name: allowed are 1 to 24 of a-z, 0-9 and '-'")
    _check_domains(domains, where)
    size = len(domains)
    found = {
        key: _matrix(body[key], f"{where}: {key}", size, most) for key, most in MATRICES.items()
    }
    links = {
        (i, j): LinkSpec(**{key: found[key][i][j] for key in MATRICES})
        for i in range(size)
        for j in range(size)
        if i != j
    }
    return Network(
        name,
        tuple(domains),
        links,
        _trace(body["trace"], f"{where}: trace", size),
        _endpoints(body["endpoints"], f"{where}: endpoints"),
    )


def _check_domains(domains: Any, where: str) -> None:
    fine = isinstance(domains, list) and 2 <= len(domains) <= MOST_DOMAINS
    if not fine or not all(isinstance(d, str) and d for d in domains):
        raise ConfigError(f"{where}: domains: allowed are 2 to {MOST_DOMAINS} names")
    if len(set(domains)) != len(domains):
        raise ConfigError(f"{where}: domains: a name stands there twice")


def _mapping(body: Any, where: str, keys: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(body, dict) or set(body) != set(keys):
        raise ConfigError(f"{where}: allowed is a mapping with the keys {', '.join(keys)}")
    return body


def number_within(value: Any, where: str, least: float, most: float) -> float:
    """`value` if it is a number from `least` to `most`; ConfigError says so if not."""
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    if not plain or not math.isfinite(value) or not least <= value <= most:
        raise ConfigError(f"{where}: allowed is a number from {least:g} to {most:g}")
    return float(value)


def _matrix(value: Any, where: str, size: int, most: float) -> list[list[float]]:
    square = isinstance(value, list) and len(value) == size
    if not square or not all(isinstance(row, list) and len(row) == size for row in value):
        raise ConfigError(f"{where}: allowed is a {size} x {size} matrix, row = source")
    return [
        [number_within(x, f"{where}[{i}][{j}]", 0.0, most) for j, x in enumerate(row)]
        for i, row in enumerate(value)
    ]


def _trace(body: Any, where: str, size: int) -> Trace | None:
    if body is None:
        return None
    body = _mapping(body, where, ("interval_s", "rates_mbps", "repeat"))
    rows = body["rates_mbps"]
    if not isinstance(rows, list) or not rows:
        raise ConfigError(f"{where}: rates_mbps: allowed is a list of matrices")
    if not isinstance(body["repeat"], bool):
        raise ConfigError(f"{where}: repeat: allowed true, false")
    return Trace(
        number_within(body["interval_s"], f"{where}: interval_s", 0.01, 1e6),
        [_matrix(row, f"{where}: rates_mbps[{i}]", size, MOST_MBPS) for i, row in enumerate(rows)],
        body["repeat"],
    )


def _endpoints(body: Any, where: str) -> Endpoints:
    body = _mapping(body, where, ("congestion", "buffer_mb", "mtu"))
    if body["congestion"] not in CONGESTION:
        raise ConfigError(f"{where}: congestion: allowed {', '.join(CONGESTION)}")
    mtu = number_within(body["mtu"], f"{where}: mtu", 1280, 65535)
    return Endpoints(
        body["congestion"],
        number_within(body["buffer_mb"], f"{where}: buffer_mb", 0.1, 512),
        int(mtu),
    )
