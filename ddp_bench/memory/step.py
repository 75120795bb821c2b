"""The training step whose memory is asked for, and how its parts keep what backward needs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.checkpoint import checkpoint

from ddp_bench.memory.offload import offloading
from ddp_bench.toolbox import Llama, LlamaShape, batch_of, token_loss

KEEP, RECOMPUTE, OFFLOAD = "keep", "recompute", "offload"
PHASES = ("build", "forward", "backward", "optimizer")

Policy = Mapping[str, str]  # name of a unit -> keep, recompute, recompute:CHILD or offload


@dataclass(frozen=True)
class Step:
    """A model, its optimizer, a batch on the model's device and the loss of an output."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    inputs: Tensor
    targets: Tensor
    loss: Callable[[Tensor, Tensor], Tensor]

    def run(self, phase: Callable[[str], Any] = lambda name: None) -> None:
        """One training step; `phase` hears which part begins."""
        phase("forward")
        loss = self.loss(self.model(self.inputs), self.targets)
        phase("backward")
        loss.backward()
        phase("optimizer")
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


class Builder(Protocol):
    """Makes the step, all of it on one device."""

    @property
    def device(self) -> str:
        """cpu or cuda."""

    def __call__(self) -> Step: ...


@dataclass(frozen=True)
class LlamaJob:
    """A builder of steps: a small Llama under AdamW or SGD.

    Attributes:
        rows, length: of the batch [sequences, tokens].
        optimizer: adamw or sgd.
    """

    shape: LlamaShape
    rows: int
    length: int
    optimizer: str = "adamw"
    device: str = "cpu"

    def __call__(self) -> Step:
        torch.manual_seed(0)
        with torch.device(self.device):
            model = Llama(self.shape)
        kind = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[self.optimizer]
        optimizer = kind(model.parameters(), lr=1e-3)
        batch = batch_of(self.shape, self.rows, self.length)
        tokens, targets = (part.to(self.device) for part in batch)
        return Step(model, optimizer, tokens, targets, token_loss)


def units_of(model: nn.Module) -> dict[str, nn.Module]:
    """The parts of a model that choose what they keep: the members of its outermost lists of
    modules, in the order in which the model holds them."""
    found: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList | nn.Sequential) and not _is_inside(name, found):
            found |= {f"{name}.{key}".lstrip("."): child for key, child in module.named_children()}
    return found


def _is_inside(name: str, units: Mapping[str, nn.Module]) -> bool:
    return any(name == unit or name.startswith(f"{unit}.") for unit in units)


def options_of(unit: nn.Module) -> list[str]:
    """What a unit can do: keep everything, recompute all of it or one of its larger children, or
    offload. Children of less than a tenth of its parameters are not worth a choice."""
    total = sum(parameter.numel() for parameter in unit.parameters())
    large = [
        name
        for name, child in unit.named_children()
        if 10 * sum(parameter.numel() for parameter in child.parameters()) >= total > 0
    ]
    parts = [f"{RECOMPUTE}:{name}" for name in large] if len(large) > 1 else []
    return [KEEP, *parts, RECOMPUTE, OFFLOAD]


@contextlib.contextmanager
def applied(model: nn.Module, policy: Policy, folder: str | None = None) -> Iterator[None]:
    """Within this block the units of `model` follow `policy`; units that it leaves out keep.

    Args:
        folder: where offloaded tensors of a CPU go.

    Raises:
        KeyError: for a unit or a child that is not there.
        ValueError: for a choice that is not known.
    """
    units = units_of(model)
    changed: list[nn.Module] = []
    try:
        for name, choice in policy.items():
            unit = units[name]
            kind, _, child = choice.partition(":")
            if kind == KEEP:
                continue
            target = unit.get_submodule(child) if child else unit
            if kind == RECOMPUTE:
                wrapped = partial(_recomputed, target.forward)
            elif kind == OFFLOAD:
                wrapped = partial(_offloaded, target, target.forward, folder)
            else:
                raise ValueError(f"{name}: {choice!r}; known: keep, recompute[:CHILD], offload")
            target.forward = wrapped  # an attribute of the instance hides the method
            changed.append(target)
        yield
    finally:
        for target in changed:
            del target.forward


def _recomputed(forward: Callable, *args: Any) -> Any:
    if any(isinstance(value, FakeTensor) for value in args):
        # The generator's state, which checkpoint keeps, is made where FakeTensorMode does not see it.
        state = torch.empty(torch.random.default_generator.get_state().numel(), dtype=torch.uint8)
        forward = partial(_beside, state, forward)
    return checkpoint(forward, *args, use_reentrant=False)


def _beside(kept: Tensor, forward: Callable, *args: Any) -> Any:
    return forward(*args)


def _offloaded(unit: nn.Module, forward: Callable, folder: str | None, *args: Any) -> Any:
    with offloading(unit, folder):
        return forward(*args)
