"""All directed pairs of hosts, one at a time, round after round."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from experiments.probe.wire import Address, Limits, connected, get, put
from jaxsim.files import InputError

PATIENCE_S = 30.0  # for an answer, beyond the time of sending


class Sample(NamedTuple):
    """A directed link at one moment."""

    t_s: float  # [s] since the first measurement
    src: str
    dst: str
    bandwidth_gbps: float
    rtt_ms: float


@dataclasses.dataclass(frozen=True)
class Protocol:
    """How a round is measured."""

    limits: Limits
    flows: int
    pings: int
    rounds: int
    every_s: float  # [s] from the start of a round to that of the next


def measured(
    hosts: Mapping[str, Address], token: bytes, protocol: Protocol, tell: Callable[[Sample], None]
) -> list[Sample]:
    """Every pair in every round, in the order in which they were measured. Raises InputError that
    names the pair that cannot be."""
    found, begun = [], time.monotonic()
    for number in range(protocol.rounds):
        time.sleep(max(0.0, begun + number * protocol.every_s - time.monotonic()))
        for src, dst in itertools.permutations(hosts, 2):
            t_s = time.monotonic() - begun
            body = _asked(hosts[src], hosts[dst], token, protocol, f"{src} to {dst}")
            found.append(Sample(t_s, src, dst, body["bandwidth_gbps"], body["rtt_ms"]))
            tell(found[-1])
    return found


def _asked(src: Address, dst: Address, token: bytes, protocol: Protocol, pair: str) -> dict:
    """Let one host measure towards another."""
    limits = protocol.limits
    request = {"do": "measure", "host": dst.host, "port": dst.port}
    request |= {"mbytes": limits.mbytes, "seconds": limits.seconds}
    request |= {"flows": protocol.flows, "pings": protocol.pings}
    try:
        with connected(src, token) as connection:
            connection.settimeout(2 * limits.seconds + PATIENCE_S)
            put(connection, request)
            return get(connection)
    except OSError as error:
        raise InputError(f"{pair}: {src}: {error}") from None


def most_mbytes(hosts: Mapping[str, Address], protocol: Protocol) -> float:
    """[MB] that all rounds send at most."""
    return len(hosts) * (len(hosts) - 1) * protocol.rounds * protocol.limits.mbytes
