"""Clients that measure a network that is up: round trips, rates, rates over time.

A socket stays in the namespace in which it was made, so one process holds both ends of a link.
"""

from __future__ import annotations

import os
import socket
import statistics
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import numpy as np

from ddp_bench.wan import tun
from ddp_bench.wan.namespaces import namespace

PIECE = 1 << 18  # [B] of one send
DATAGRAM, HEADERS = 8192, 28  # [B] of payload; of UDP and IPv4
# SO_SNDBUFFORCE, SO_RCVBUFFORCE, SO_TIMESTAMPNS of Linux
SEND_BUFFER, RECEIVE_BUFFER, TIMESTAMP = 32, 33, 35


def round_trips_ms(
    network: str, src: int, dst: int, count: int, gap_s: float = 0.01
) -> list[float]:
    """[ms] of `count` pings between two domains. The receiving kernel answers them, and the sending
    one stamps the answers: when this process is run does not matter."""
    with tun.inside(namespace(network, src)):
        ping = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
        ping.setsockopt(socket.SOL_SOCKET, TIMESTAMP, 1)
    out = []
    with ping:
        ping.settimeout(5.0)
        for number in range(1, count + 1):
            begun = time.time()
            ping.sendto(_echo_request(number), (tun.address(dst), 0))
            while True:
                packet, ancillary, _, _ = ping.recvmsg(2048, 64)
                if packet[20] == 0 and packet[24:28] == _mark(number):
                    break
            out.append(1e3 * (_stamp(ancillary) - begun))
            time.sleep(gap_s)
    return out


def _stamp(ancillary: list) -> float:
    """[s] of the clock at which the kernel took a packet in."""
    whole, part = struct.unpack("=qq", ancillary[0][2])
    return whole + 1e-9 * part


def _mark(number: int) -> bytes:
    return struct.pack("!HH", os.getpid() & 0xFFFF, number)


def _echo_request(number: int) -> bytes:
    """ICMP type 8 with its checksum (RFC 792)."""
    body = _mark(number) + b"hippo-wan"
    body += b"\0" * (len(body) % 2)
    total = sum(struct.unpack(f"!{len(body) // 2}H", body)) + 0x0800
    total = (total >> 16) + (total & 0xFFFF)
    return struct.pack("!BBH", 8, 0, ~(total + (total >> 16)) & 0xFFFF) + body


def _listen(network: str, domain: int) -> socket.socket:
    with tun.inside(namespace(network, domain)):
        server = socket.socket()
        server.bind((tun.address(domain), 0))
        server.listen(1)
    server.settimeout(10.0)
    return server


@contextmanager
def stream(network: str, src: int, dst: int) -> Iterator[Callable[[float], float]]:
    """A TCP flow between two domains that sends as much as it can, within this block. What it gives
    is a function: the rate [Mbit/s] of payload received during the next so many seconds."""
    received, stop = [0], threading.Event()
    with _listen(network, dst) as server, tun.inside(namespace(network, src)):
        sender = socket.socket()
        sender.settimeout(10.0)
        sender.connect(server.getsockname())
        receiver, _ = server.accept()

    def send() -> None:
        piece = memoryview(bytes(PIECE))
        while not stop.is_set():
            try:
                sender.send(piece)
            except OSError:
                return

    def receive() -> None:
        place = bytearray(PIECE)
        while not stop.is_set():
            try:
                received[0] += receiver.recv_into(place)
            except OSError:
                return

    def rate(seconds: float) -> float:
        before, begun = received[0], time.perf_counter()
        time.sleep(seconds)
        return (received[0] - before) * 8e-6 / (time.perf_counter() - begun)

    threads = [threading.Thread(target=work, daemon=True) for work in (send, receive)]
    for thread in threads:
        thread.start()
    try:
        yield rate
    finally:
        stop.set()
        for end in (sender, receiver):
            end.settimeout(0.01)
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        for thread in threads:
            thread.join(2.0)


def rates_over_time(
    network: str, src: int, dst: int, offered_mbps: float, seconds: float, bin_s: float
) -> np.ndarray:
    """[N] [Mbit/s] that arrive in each of N bins while datagrams are sent at a constant rate.

    The receiving kernel stamps them, so that it does not matter when this process is run.
    """
    with tun.inside(namespace(network, dst)):
        receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        receiver.setsockopt(socket.SOL_SOCKET, RECEIVE_BUFFER, 1 << 25)
        receiver.setsockopt(socket.SOL_SOCKET, TIMESTAMP, 1)
        receiver.bind((tun.address(dst), 0))
    with tun.inside(namespace(network, src)):
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sender.setsockopt(socket.SOL_SOCKET, SEND_BUFFER, 1 << 25)
    datagram, size = bytes(DATAGRAM), (DATAGRAM + HEADERS) * 8e-6  # [Mbit]
    begun = time.time()

    def send() -> None:
        sent = 0
        while (now := time.time() - begun) < seconds:
            while sent * size < now * offered_mbps:
                sender.sendto(datagram, receiver.getsockname())
                sent += 1
            time.sleep(0.002)

    stamps = []
    with sender, receiver:
        receiver.settimeout(0.05)
        thread = threading.Thread(target=send, daemon=True)
        thread.start()
        while time.time() - begun < seconds:
            with suppress(TimeoutError):
                _, ancillary, _, _ = receiver.recvmsg(DATAGRAM, 64)
                stamps.append(_stamp(ancillary))
        thread.join(2.0)
    at = np.array(stamps) - begun
    bins = round(seconds / bin_s)
    return np.histogram(at, bins, (0.0, bins * bin_s))[0] * size / bin_s


def settling_s(rates: np.ndarray, bin_s: float, target: float, within: float) -> float:
    """[s] from the first bin until the rates stay within a share of `target`; infinite if never."""
    off = np.flatnonzero(np.abs(rates / target - 1.0) > within)
    if len(off) == len(rates):
        return float("inf")
    return float((off[-1] + 1) * bin_s) if len(off) else 0.0


def median(values: list[float]) -> float:
    """The median."""
    return float(statistics.median(values))
