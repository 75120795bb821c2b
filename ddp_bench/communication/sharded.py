"""The hook of models that `fully_shard` shards (FSDP2), whose units reduce-scatter their gradients."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from ddp_bench.communication.channel import Channel
from ddp_bench.communication.methods import METHODS

SCATTERING = tuple(name for name, make in METHODS.items() if make().scatters)


class ShardedHook:
    """Registers itself on every unit of `model`; all ranks must switch before the same step.

    What weights cost is not touched: they are gathered as they are. Where units are replicated as well
    (HSDP), the messages between replicas are not touched either.

    Args:
        model: sharded over the channel's ranks.
        name: method to begin with, one of SCATTERING.

    Raises:
        KeyError: for a method that is not known.
        ValueError: for one that cannot reduce-scatter.
    """

    def __init__(self, model: nn.Module, channel: Channel, name: str) -> None:
        self.channel = channel
        self.busy_s = 0.0  # CPU seconds of methods, messages not counted
        self.switch(name)
        units = [unit for unit in model.modules() if isinstance(unit, FSDPModule)]
        for number, unit in enumerate(units):
            unit.set_custom_reduce_scatter(_Unit(self, number))

    def switch(self, name: str) -> None:
        """From the next step on, send by another method. What the last one owes is dropped."""
        method = METHODS[name]()
        if not method.scatters:
            raise ValueError(f"{name} cannot reduce-scatter: allowed {', '.join(SCATTERING)}")
        self._method, self.name = method, name

    def after_step(self) -> None:
        """To be called after every optimizer step."""

    def forget(self) -> None:
        """To be called on every rank where a step is skipped: nothing that was not sent is owed."""
        self._method.reset()

    def close(self) -> None:
        """Nothing is left open."""

    def reduce_scatter(self, unit: int, flat: Tensor) -> Tensor:
        """The mean of this rank's part of a unit's gradients."""
        begin, waited = time.thread_time(), self.channel.waited_s
        own = self._method.reduce_scatter(unit, flat, self.channel)
        self.busy_s += time.thread_time() - begin - (self.channel.waited_s - waited)
        return own


class _Unit:
    """What FSDP2 calls for one unit (torch.distributed.fsdp's ReduceScatter)."""

    def __init__(self, hook: ShardedHook, number: int) -> None:
        self._hook, self._number = hook, number

    def allocate(
        self, size: tuple[int, ...], *, dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: dist.ReduceOp,
        async_op: bool = False,
    ) -> None:
        ranks = self._hook.channel.ranks
        if group.size() != ranks:
            raise ValueError(f"sharded over {group.size()} ranks, the channel has {ranks}")
        mean = self._hook.reduce_scatter(self._number, input_tensor)
        if op == dist.ReduceOp.SUM:
            mean *= ranks
        elif op != dist.ReduceOp.AVG:
            raise ValueError(f"reduce-scatter by {op}: allowed SUM, AVG")
        output_tensor.copy_(mean)
