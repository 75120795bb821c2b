"""Commands to a running emulator: one line of JSON each way over a Unix socket.

A path in the file system is the same from every network namespace, so ranks can ask as well.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ddp_bench.errors import ConfigError

LONGEST = 1 << 16  # [B] of a command
PATIENCE_S = 5.0
ENDED = "network {name!r} is not up"


class Server:
    """The emulator's end; never waits."""

    def __init__(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(path))
        os.chmod(path, 0o600)
        self._socket.listen(16)
        self._socket.setblocking(False)
        self._clients: dict[int, tuple[socket.socket, bytes]] = {}

    def files(self) -> list[int]:
        """Files to wait for."""
        return [self._socket.fileno(), *self._clients]

    def serve(self, file: int, answer: Callable[[dict], dict]) -> None:
        """Go on with the file that has become readable."""
        if file == self._socket.fileno():
            with contextlib.suppress(OSError):
                client, _ = self._socket.accept()
                client.setblocking(False)
                self._clients[client.fileno()] = (client, b"")
            return
        client, before = self._clients.pop(file)
        try:
            more = client.recv(LONGEST)
        except OSError:
            more = b""
        text = before + more
        if more and b"\n" not in text and len(text) < LONGEST:
            self._clients[file] = (client, text)
            return
        with contextlib.suppress(OSError), client:  # the client may have left
            if more:
                client.sendall(json.dumps(_reply(text, answer)).encode() + b"\n")

    def close(self) -> None:
        """Let go of all files."""
        for client, _ in self._clients.values():
            client.close()
        self._socket.close()


def _reply(text: bytes, answer: Callable[[dict], dict]) -> dict[str, Any]:
    try:
        request = json.loads(text)
        if not isinstance(request, dict):
            raise ConfigError("allowed is a JSON object")
        return answer(request)
    except ConfigError as error:
        return {"error": str(error)}
    except ValueError as error:
        return {"error": f"not valid JSON: {error}"}


def ask(path: Path, name: str, **request: Any) -> dict[str, Any]:
    """Send a command to the emulator of network `name`; its answer.

    Raises ConfigError, one line: what the emulator refuses, or that it is not there.
    """
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(PATIENCE_S)
        try:
            client.connect(str(path))
            client.sendall(json.dumps(request).encode() + b"\n")
            text = b""
            while not text.endswith(b"\n") and (more := client.recv(1 << 20)):
                text += more
            reply = json.loads(text)
        except (OSError, ValueError):
            raise ConfigError(ENDED.format(name=name)) from None
    if "error" in reply:
        raise ConfigError(f"network {name!r}: {reply['error']}")
    return reply
