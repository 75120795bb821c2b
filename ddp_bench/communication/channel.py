"""Messages between ranks, each with what it put on the wire and what it took."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ddp_bench.communication.links import Link


class Message(NamedTuple):
    """One message.

    Attributes:
        wire: bytes that a rank sends.
        hops: sends that wait for one another.
        seconds: what it took.
    """

    wire: float
    hops: int
    seconds: float


class Channel:
    """Collectives in the ring form, whose volumes do not depend on the backend's own algorithm.

    Args:
        link: messages are charged what they would take on this link; None: what they take here.
    """

    def __init__(self, ranks: int, link: Link | None = None) -> None:
        self.ranks, self.link, self.step = ranks, link, 0
        self._messages: list[Message] = []
        self.waited_s = 0.0  # this thread's CPU seconds inside of messages

    def sum(self, tensor: Tensor) -> None:
        """Replace `tensor` by its sum over ranks."""
        n, size = self.ranks, tensor.numel() * tensor.element_size()
        self._send(lambda: dist.all_reduce(tensor), 2 * (n - 1) / n * size, 2 * (n - 1))

    def mean(self, tensor: Tensor) -> None:
        """Replace `tensor` by its mean over ranks."""
        self.sum(tensor)
        tensor /= self.ranks

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """Every rank's `tensor`, by rank."""
        out = [torch.empty_like(tensor) for _ in range(self.ranks)]
        size = tensor.numel() * tensor.element_size()
        wire, hops = (self.ranks - 1) * size, self.ranks - 1
        self._send(lambda: dist.all_gather(out, tensor), wire, hops)
        return out

    def take(self) -> list[Message]:
        """Messages since the last call."""
        taken, self._messages = self._messages, []
        return taken

    def _send(self, send: Callable[[], object], wire: float, hops: int) -> None:
        begin, busy = time.perf_counter(), time.thread_time()
        send()
        seconds = time.perf_counter() - begin
        self.waited_s += time.thread_time() - busy
        if self.link is not None:
            seconds = self.link.seconds(self.step, wire, hops)
        self._messages.append(Message(wire, hops, seconds))
