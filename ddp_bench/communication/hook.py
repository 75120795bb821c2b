"""One hook of DistributedDataParallel whose method can be changed between steps."""

# Annotations stay objects here: DistributedDataParallel looks at those of its hook.
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ddp_bench.communication.channel import Channel
from ddp_bench.communication.methods import METHODS


class SwitchingHook:
    """Registers itself on `model`; all ranks must switch before the same step.

    Messages travel on a thread of their own, bucket after bucket, while backward goes on: a method
    may wait for its messages, and every rank sends in the same order.

    Args:
        name: method to begin with, one of METHODS.

    Raises:
        KeyError: for a method that is not known.
    """

    def __init__(self, model: DistributedDataParallel, channel: Channel, name: str) -> None:
        self.channel, self.name = channel, name
        self.busy_s = 0.0  # CPU seconds of methods, messages not counted
        self._model = model
        self._method = METHODS[name]()
        self._since_average = 0
        self._thread = ThreadPoolExecutor(1, "messages")
        model.register_comm_hook(self, _on_bucket)

    def switch(self, name: str) -> None:
        """From the next step on, send by another method. What the last one owes is dropped, and
        weights that ranks have changed alone are averaged first."""
        if name == self.name:
            return
        if self._since_average:
            self._average()
        self._method, self.name = METHODS[name](), name

    def after_step(self) -> None:
        """To be called after every optimizer step."""
        if self._method.every == 1:
            return
        self._since_average += 1
        if self._since_average == self._method.every:
            self._average()

    def forget(self) -> None:
        """To be called where a step is skipped: nothing of it, nor of those before, is owed. A bucket
        whose gradients are finite owes something of the skipped step too, which only this forgets."""
        self._method.reset()

    def close(self) -> None:
        """Average what is still apart, and end the thread."""
        if self._since_average:
            self._average()
        self._thread.shutdown()

    def submit(self, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        """Send a bucket; its mean, once it is there."""
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        flat, parts = bucket.buffer(), bucket.gradients()
        self._thread.submit(self._reduce, bucket.index(), flat, parts, future)
        return future

    def _reduce(self, index: int, flat: Tensor, parts: list[Tensor], future: Any) -> None:
        begin, waited = time.thread_time(), self.channel.waited_s
        try:
            self._method.reduce(index, flat, parts, self.channel)
        except Exception as error:  # of a thread: nobody else would hear of it
            future.set_exception(error)
            return
        self.busy_s += time.thread_time() - begin - (self.channel.waited_s - waited)
        future.set_result(flat)

    def _average(self) -> None:
        """Mean of all weights over ranks, in one message."""
        self._since_average = 0
        with torch.no_grad():
            flat = nn.utils.parameters_to_vector(self._model.parameters())
            self.channel.mean(flat)
            nn.utils.vector_to_parameters(flat, self._model.parameters())


def _on_bucket(state: SwitchingHook, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    return state.submit(bucket)
