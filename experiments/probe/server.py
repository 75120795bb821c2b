"""What every host runs: answers probes that know the token, and measures towards others on request."""

from __future__ import annotations

import socket
import socketserver
import sys
import threading
from typing import Any

from experiments.common import one_line
from experiments.probe.flow import echo, measure, receive
from experiments.probe.handshake import greet_client
from experiments.probe.wire import (
    CONNECT_S,
    MOST_FLOWS,
    MOST_PINGS,
    SILENCE_S,
    Address,
    Limits,
    figure,
    get,
    put,
)
from jaxsim.files import InputError

MOST_AT_ONCE = 64  # connections


class Server(socketserver.ThreadingTCPServer):
    """Listens; every connection is one request."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, address: Address, token: bytes, limits: Limits) -> None:
        """Bind. Raises InputError where that is not possible."""
        self.token, self.limits = token, limits
        self.abroad = not address.is_loopback  # may it measure towards other machines?
        self._places = threading.BoundedSemaphore(MOST_AT_ONCE)
        try:
            super().__init__(address, _Request)
        except OSError as error:
            raise InputError(f"bind, port: {address}: {error.strerror or error}") from None

    @property
    def port(self) -> int:
        """Where it listens."""
        return self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """In a thread, unless there are too many."""
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """One connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """One line for a connection that broke."""
        _tell(f"{client_address[0]}: {sys.exception()}")


class _Request(socketserver.BaseRequestHandler):
    server: Server

    def handle(self) -> None:
        """Greet, then do the one thing that is asked for."""
        self.request.settimeout(CONNECT_S)
        if not greet_client(self.request, self.server.token):
            _tell(f"refused {self.client_address[0]}: it does not know the token")
            return
        self.request.settimeout(SILENCE_S)
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self._do(get(self.request))
        except InputError as error:
            put(self.request, {"error": str(error)})

    def _do(self, body: dict[str, Any]) -> None:
        match body.get("do"):
            case "echo":
                echo(self.request, int(figure(body, "count", 2 * MOST_PINGS)))
            case "receive":
                receive(self.request, self._limits(body))
            case "measure":
                put(self.request, self._measured(body))
            case other:
                raise InputError(f"do: expected echo, receive or measure, got {other!r}")

    def _limits(self, body: dict[str, Any]) -> Limits:
        most = self.server.limits
        return Limits(
            figure(body, "mbytes", most.mbytes),
            figure(body, "seconds", most.seconds),
        )

    def _measured(self, body: dict[str, Any]) -> dict[str, Any]:
        to = Address(str(body.get("host")), int(figure(body, "port", 65535)))
        if not self.server.abroad and not to.is_loopback:
            raise InputError(f"{to}: this probe is bound to loopback and measures nothing else")
        limits = self._limits(body)
        flows = int(figure(body, "flows", MOST_FLOWS))
        try:
            return measure(
                to, self.server.token, limits, flows, int(figure(body, "pings", MOST_PINGS))
            )
        except OSError as error:
            raise InputError(f"{to}: {error}") from None


def _tell(text: str) -> None:
    print(one_line(f"probe: {text}"), file=sys.stderr, flush=True)


def serve(address: Address, token: bytes, limits: Limits) -> None:
    """Answer until interrupted. Raises InputError."""
    with Server(address, token, limits) as server:
        where = Address(address.host, server.port)
        print(f"probe listens on {where}", flush=True)
        server.serve_forever()
