"""What backward needs, kept elsewhere until then: pinned host memory of a GPU, files of a CPU."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

SMALLEST = 1 << 12  # [B]; below, a transfer costs more than it frees


@dataclass(frozen=True)
class _Description:
    """What a tensor that only pretends to hold data needs to come back."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device

    def fetch(self) -> Tensor:
        return torch.empty(self.shape, dtype=self.dtype, device=self.device)


class _OnHost:
    """A copy in pinned memory of the host."""

    def __init__(self, tensor: Tensor) -> None:
        self._device = tensor.device
        self._copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        self._copy.copy_(tensor)

    def fetch(self) -> Tensor:
        return self._copy.to(self._device)


class _OnDisk:
    """A file that is gone once nobody can fetch it any more."""

    def __init__(self, tensor: Tensor, folder: str | None) -> None:
        self._shape, self._dtype = tensor.shape, tensor.dtype
        # Open for as long as backward may ask for it.
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
        data = memoryview(tensor.contiguous().view(torch.uint8).numpy().reshape(-1))
        while data:
            data = data[self._file.write(data) :]

    def fetch(self) -> Tensor:
        tensor = torch.empty(self._shape, dtype=self._dtype)
        data = memoryview(tensor.view(torch.uint8).numpy().reshape(-1))
        self._file.seek(0)
        while data:
            count = self._file.readinto(data)
            if not count:
                raise OSError(f"an offloaded tensor lacks its last {len(data)} bytes")
            data = data[count:]
        return tensor


@contextmanager
def offloading(unit: nn.Module, folder: str | None = None) -> Iterator[None]:
    """Within this block, what autograd saves goes elsewhere; what the unit owns stays.

    Raises:
        OSError: from inside of forward, when `folder` takes no more.
    """
    own = {t.untyped_storage()._cdata for t in (*unit.parameters(), *unit.buffers())}

    def pack(tensor: Tensor) -> Any:
        size = tensor.numel() * tensor.element_size()
        if size < SMALLEST or tensor.untyped_storage()._cdata in own:
            return tensor
        if isinstance(tensor, FakeTensor):
            return _Description(tensor.shape, tensor.dtype, tensor.device)
        return _OnHost(tensor) if tensor.is_cuda else _OnDisk(tensor, folder)

    def unpack(packed: Any) -> Tensor:
        return packed if isinstance(packed, Tensor) else packed.fetch()

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield
