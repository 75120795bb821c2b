"""One measurement of a directed link: round trips on an idle connection, then TCP flows at once.

The end that receives counts, and tells when how much had arrived, by one clock for all flows. The rate
is that of all flows together in the second half of the time in which all of them ran: slow start is no
part of it, and neither is the time in which a flow has the link to itself because others have ended.
"""

from __future__ import annotations

import os
import socket
import statistics
import threading
import time
from typing import Any

import numpy as np

from experiments.probe.handshake import exactly
from experiments.probe.wire import Address, Limits, connected, get, put

CHUNK = 256 * 1024  # bytes that are sent and received at once
MARK_S = 0.005  # between two marks of the receiver
MOST_MARKS = 64  # that it tells
WARM_UP = 2  # round trips that are not counted
MBYTE, GBIT = 1e6, 1e9
Marks = list[tuple[float, int]]  # [s] of the receiver's clock, bytes that had arrived


def measure(to: Address, token: bytes, limits: Limits, flows: int, pings: int) -> dict[str, Any]:
    """Measure the link to a probe: {"rtt_ms", "bandwidth_gbps", "mbytes", "seconds"}. Raises
    ConnectionError, OSError."""
    rtt_ms = round_trip_ms(to, token, pings)
    found: list[dict[str, Any]] = []
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
        "bandwidth_gbps": 8 * common_rate([_marks(x) for x in found]) / GBIT,
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


def _send(to: Address, token: bytes, limits: Limits) -> dict[str, Any]:
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
    told = [(round(at, 6), arrived) for at, arrived in thinned(marks)]
    put(connection, {"marks": told, "mbytes": total / MBYTE, "seconds": last - start})


def thinned(marks: Marks) -> Marks:
    """At most MOST_MARKS of the marks, evenly over the time; the first and the last among them."""
    if len(marks) <= MOST_MARKS:
        return marks
    times = np.array([at for at, _ in marks])
    even = np.linspace(times[0], times[-1], MOST_MARKS)
    kept = np.unique([0, *np.searchsorted(times, even[1:-1]), len(marks) - 1])
    return [marks[i] for i in kept]


def _marks(answer: dict[str, Any]) -> Marks:
    """The marks of a flow's answer. Raises ConnectionError where there are none."""
    try:
        found = [(float(at), int(arrived)) for at, arrived in answer["marks"]]
        if len(found) < 2:
            raise ValueError
    except (KeyError, TypeError, ValueError):
        raise ConnectionError("answers as a probe of another version") from None
    return found


def common_rate(flows: list[Marks]) -> float:
    """[bytes/s] of all flows together, in the second half of the time in which all of them ran; over
    the whole time, from the first byte to the last, where they never ran at once."""
    begun, ended = max(m[0][0] for m in flows), min(m[-1][0] for m in flows)
    since = (begun + ended) / 2
    if ended - begun < MARK_S:
        since, ended = min(m[0][0] for m in flows), max(m[-1][0] for m in flows)
    total = sum(_arrived(marks, ended) - _arrived(marks, since) for marks in flows)
    return total / max(ended - since, 1e-6)


def _arrived(marks: Marks, at: float) -> float:
    """Bytes that had arrived at a time, straight between marks."""
    times, counts = zip(*marks, strict=True)
    return float(np.interp(at, times, counts))
