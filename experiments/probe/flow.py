"""One measurement of a directed link: round trips on an idle connection, then TCP flows at once.

The end that receives counts. Its rate is that of the second half of the time in which bytes arrived,
so that neither slow start nor the last queue is part of it.
"""

from __future__ import annotations

import os
import socket
import statistics
import threading
import time
from typing import Any

from experiments.probe.handshake import exactly
from experiments.probe.wire import Address, Limits, connected, get, put

CHUNK = 256 * 1024  # bytes that are sent and received at once
MARK_S = 0.005  # between two marks of the receiver
WARM_UP = 2  # round trips that are not counted
MBYTE, GBIT = 1e6, 1e9


def measure(to: Address, token: bytes, limits: Limits, flows: int, pings: int) -> dict[str, Any]:
    """Measure the link to a probe: {"rtt_ms", "bandwidth_gbps", "mbytes", "seconds"}. Raises
    ConnectionError, OSError."""
    rtt_ms = round_trip_ms(to, token, pings)
    found: list[dict[str, float]] = []
    faults: list[BaseException] = []

    def one() -> None:
        try:
            found.append(_send(to, token, Limits(limits.mbytes / flows, limits.seconds)))
        except OSError as error:
            faults.append(error)

    threads = [threading.Thread(target=one, daemon=True) for _ in range(flows)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise faults[0]
    return {
        "rtt_ms": rtt_ms,
        "bandwidth_gbps": sum(x["gbps"] for x in found),
        "mbytes": sum(x["mbytes"] for x in found),
        "seconds": max(x["seconds"] for x in found),
    }


def round_trip_ms(to: Address, token: bytes, count: int) -> float:
    """The median of `count` round trips of one byte."""
    with connected(to, token) as connection:
        put(connection, {"do": "echo", "count": count + WARM_UP})
        get(connection)
        taken = []
        for _ in range(count + WARM_UP):
            start = time.perf_counter()
            connection.sendall(b"p")
            exactly(connection, 1)
            taken.append(1e3 * (time.perf_counter() - start))
    return statistics.median(taken[WARM_UP:])


def echo(connection: socket.socket, count: int) -> None:
    """The other end of `round_trip_ms`."""
    put(connection, {"ok": True})
    for _ in range(count):
        connection.sendall(exactly(connection, 1))


def _send(to: Address, token: bytes, limits: Limits) -> dict[str, float]:
    with connected(to, token) as connection:
        put(connection, {"do": "receive", "mbytes": limits.mbytes, "seconds": limits.seconds})
        get(connection)
        noise, left = os.urandom(CHUNK), int(limits.mbytes * MBYTE)
        end = time.monotonic() + limits.seconds
        while left > 0 and time.monotonic() < end:
            left -= connection.send(noise[: min(left, CHUNK)])
        connection.shutdown(socket.SHUT_WR)
        return get(connection)


def receive(connection: socket.socket, limits: Limits) -> None:
    """The other end of `_send`; tells it what arrived. Raises ConnectionError for more than it may."""
    put(connection, {"ok": True})
    start = time.perf_counter()
    marks, total, buffer = [(start, 0)], 0, bytearray(CHUNK)
    last, most = start, int(limits.mbytes * MBYTE)
    while count := connection.recv_into(buffer):
        last, total = time.perf_counter(), total + count
        if total > most or last - start > 2 * limits.seconds + 10:
            raise ConnectionError("sends more than it said")
        if last - marks[-1][0] >= MARK_S:
            marks.append((last, total))
    marks.append((last, total))
    gbps = 8 * _rate(marks) / GBIT
    put(connection, {"gbps": gbps, "mbytes": total / MBYTE, "seconds": last - start})


def _rate(marks: list[tuple[float, int]]) -> float:
    """[bytes/s] from the middle of the time to the end; from the start where there are few marks."""
    (begun, _), (ended, total) = marks[0], marks[-1]
    middle = next(m for m in marks if m[0] >= (begun + ended) / 2)
    since, before = middle if middle[0] < ended - MARK_S else marks[0]
    return (total - before) / max(ended - since, 1e-6)
