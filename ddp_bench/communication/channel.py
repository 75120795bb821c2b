"""Messages between ranks, each with what it put on the wire and what it took."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ddp_bench.communication.links import Link
from ddp_bench.ranks import comm


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
        group: the ranks; None: all.
    """

    def __init__(
        self, ranks: int, link: Link | None = None, group: dist.ProcessGroup | None = None
    ) -> None:
        self.ranks, self.link, self.step, self.group = ranks, link, 0, group
        self._messages: list[Message] = []
        self.waited_s = 0.0  # this thread's CPU seconds inside of messages

    def sum(self, tensor: Tensor) -> None:
        """Replace `tensor` by its sum over ranks."""
        n, size = self.ranks, tensor.numel() * tensor.element_size()
        self._send(
            lambda: dist.all_reduce(tensor, group=self.group), 2 * (n - 1) / n * size, 2 * (n - 1)
        )

    def mean(self, tensor: Tensor) -> None:
        """Replace `tensor` by its mean over ranks."""
        self.sum(tensor)
        tensor /= self.ranks

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """Every rank's `tensor`, by rank."""
        out = [torch.empty_like(tensor) for _ in range(self.ranks)]
        size = tensor.numel() * tensor.element_size()
        wire, hops = (self.ranks - 1) * size, self.ranks - 1
        self._send(lambda: dist.all_gather(out, tensor, group=self.group), wire, hops)
        return out

    def sum_of_own(self, tensor: Tensor) -> Tensor:
        """This rank's part of the sum of `tensor` [n] over ranks, [n / ranks]."""
        n, size = self.ranks, tensor.numel() * tensor.element_size()
        own = torch.empty_like(tensor[: tensor.numel() // n])
        send = lambda: comm.scatter_from(own, tensor, group=self.group)  # noqa: E731
        self._send(send, (n - 1) / n * size, n - 1)
        return own

    def exchange(self, rows: Tensor) -> Tensor:
        """Row r of every rank's `rows` [ranks, ...] to rank r: what this rank received, by rank."""
        n, size = self.ranks, rows.numel() * rows.element_size()
        out = torch.empty_like(rows)
        send = lambda: dist.all_to_all_single(out, rows, group=self.group)  # noqa: E731
        self._send(send, (n - 1) / n * size, n - 1)
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
