"""Messages between probes, one JSON object a line, and what a measurement may take."""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import math
import socket
from collections.abc import Mapping
from typing import Any, NamedTuple

from experiments.probe.handshake import exactly, greet_server
from jaxsim.files import InputError

LONGEST = 4096  # bytes of a message
CONNECT_S, SILENCE_S = 5.0, 15.0
MOST_FLOWS, MOST_PINGS = 16, 100


@dataclasses.dataclass(frozen=True)
class Limits:
    """What one measurement may take at most."""

    mbytes: float  # [MB = 1e6 bytes], all flows together
    seconds: float  # [s] of sending


class Address(NamedTuple):
    """Where a probe listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Does every address of the host stay on this machine?"""
        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except OSError:
            return False
        return all(ipaddress.ip_address(one[4][0].split("%")[0]).is_loopback for one in found)


def put(connection: socket.socket, body: Mapping[str, Any]) -> None:
    """Send a message."""
    connection.sendall(json.dumps(body).encode() + b"\n")


def get(connection: socket.socket) -> dict[str, Any]:
    """The next message. Raises ConnectionError for anything else, and what an `error` says."""
    line = b""
    while not line.endswith(b"\n"):
        if len(line) > LONGEST:
            raise ConnectionError("sends a message that is too long")
        line += exactly(connection, 1)  # what follows a message is not JSON
    try:
        body = json.loads(line)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise ConnectionError("sends no message")
    if "error" in body:
        raise ConnectionError(str(body["error"]))
    return body


def figure(body: Mapping[str, Any], key: str, most: float) -> float:
    """A number > 0 and at most `most` of a message. Raises InputError."""
    value = body.get(key)
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not good or not 0 < value <= most:
        raise InputError(f"{key}: expected a number > 0 and <= {most:g}, got {value!r}")
    return value


def connected(to: Address, token: bytes) -> socket.socket:
    """A connection to a probe that knows the token. Raises ConnectionError, OSError."""
    connection = socket.create_connection(to, timeout=CONNECT_S)
    try:
        connection.settimeout(SILENCE_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        greet_server(connection, token)
    except BaseException:
        connection.close()
        raise
    return connection
