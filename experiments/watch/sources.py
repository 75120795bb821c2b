"""Where measurements come from: standard input, new files in a folder, a socket of this machine."""

from __future__ import annotations

import io
import os
import select
import socket
import sys
import time
from pathlib import Path
from typing import Any, Protocol, TextIO

from experiments.watch.lines import LineReader, Unreadable
from jaxsim.files import InputError

CHUNK = 65_536  # bytes that are read at once
POLL_S = 0.02  # between two looks at a folder
MOST_CLIENTS = 64
UNFINISHED = (".tmp", ".part")  # names of files that somebody still writes to
Batch = list[dict[str, Any] | Unreadable]


class Source(Protocol):
    """A stream of measurements."""

    position: str  # what a later process must know to go on

    def read(self, wait_s: float) -> Batch | None:
        """What has come in, waiting at most so long for something; None at the end."""
        ...

    def close(self) -> None:
        """Let go of what is open."""
        ...


class Stream:
    """Standard input, to its end."""

    position = ""

    def __init__(self, stream: TextIO) -> None:
        """The stream is read below its text layer, where that has a file."""
        self._reader = LineReader()
        self._stream, self._file = stream, _file_of(stream)

    def read(self, wait_s: float) -> Batch | None:
        """Lines that are complete."""
        if self._file is None:
            data = self._stream.read(CHUNK).encode()
        elif not select.select([self._file], [], [], wait_s)[0]:
            return []
        else:
            data = os.read(self._file, CHUNK)
        if data:
            return self._reader.feed(data)
        return self._reader.feed(b"", ended=True) or None

    def close(self) -> None:
        """It is not ours."""


def _file_of(stream: TextIO) -> int | None:
    try:
        return stream.fileno()
    except (OSError, ValueError, io.UnsupportedOperation):
        return None


class Folder:
    """The files of a folder, each read once, in the order of their names.

    The position is the name of the last file that was read to its end, or NAME/BYTES of one that is
    being read.
    """

    def __init__(self, folder: str, position: str = "") -> None:
        """Go on after `position`. Raises InputError."""
        self._folder, self.position = Path(folder), position
        self._open: int | None = None  # descriptor of the file that is read
        self._name, self._bytes, self._reader = "", 0, LineReader()
        self._told = ""  # of what could not be read
        if not self._folder.is_dir():
            raise InputError(f"folder: {folder}: is no folder")

    def read(self, wait_s: float) -> Batch | None:
        """A part of the next file."""
        if self._open is None:
            self._open = self._next()
        if self._open is None:
            time.sleep(min(POLL_S, wait_s))
            return []
        data = os.read(self._open, CHUNK)
        if data:
            self._bytes += len(data)
            self.position = f"{self._name}/{self._bytes}"
            return self._reader.feed(data)
        self.close()
        self.position = self._name
        return self._reader.feed(b"", ended=True)

    def _next(self) -> int | None:
        """The file that comes next, opened; None where there is none."""
        last, half, taken = self.position.partition("/")
        try:
            names = [
                entry.name
                for entry in os.scandir(self._folder)
                if (entry.name >= last if half else entry.name > last)
                and not entry.name.startswith(".")
                and not entry.name.endswith(UNFINISHED)
                and entry.is_file()
            ]
        except OSError as error:  # a folder that was taken away may come again
            self._tell(error)
            return None
        if not names:
            return None
        self._name, self._bytes, self._reader = min(names), 0, LineReader()
        try:
            opened = os.open(self._folder / self._name, os.O_RDONLY)
            if half and self._name == last:
                self._pass_over(opened, int(taken))
            return opened
        except OSError as error:  # it is left out, those behind it are read
            self._tell(error)
            self.position = self._name
            return None

    def _pass_over(self, opened: int, count: int) -> None:
        """`count` bytes that a process before this one took: their header holds for the lines behind
        them, and their last line may go on there."""
        while self._bytes < count:
            data = os.read(opened, min(CHUNK, count - self._bytes))
            if not data:
                return
            self._bytes += len(data)
            self._reader.feed(data)

    def _tell(self, error: OSError) -> None:
        """Once, on standard error."""
        if str(error) != self._told:
            self._told = str(error)
            print(f"folder: {error}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Close the file that is read."""
        if self._open is not None:
            os.close(self._open)
            self._open = None


class Listener:
    """A socket on 127.0.0.1; every client sends lines."""

    position = ""

    def __init__(self, port: int) -> None:
        """Listen on `port`, 0 = any that is free. Raises InputError where it is taken."""
        try:
            self._server = socket.create_server(("127.0.0.1", port))
        except OSError as error:
            raise InputError(f"listen: port {port}: {error.strerror}") from None
        self._server.setblocking(False)
        self.port = self._server.getsockname()[1]
        self._clients: dict[socket.socket, LineReader] = {}

    def read(self, wait_s: float) -> Batch | None:
        """What clients have sent."""
        takes = [self._server] if len(self._clients) < MOST_CLIENTS else []
        ready = select.select([*takes, *self._clients], [], [], wait_s)[0]
        found: Batch = []
        for one in ready:
            if one is self._server:
                client, _ = self._server.accept()
                client.setblocking(False)
                self._clients[client] = LineReader()
            else:
                found += self._from(one)
        return found

    def _from(self, client: socket.socket) -> Batch:
        try:
            data = client.recv(CHUNK)
        except BlockingIOError:
            return []
        except OSError:  # it went away
            data = b""
        if data:
            return self._clients[client].feed(data)
        client.close()
        return self._clients.pop(client).feed(b"", ended=True)

    def close(self) -> None:
        """Close the socket and all clients."""
        for one in (self._server, *self._clients):
            one.close()
