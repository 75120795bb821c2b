"""What it costs a unit to recompute or to offload, measured on units that are alike."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor, nn

from ddp_bench.memory.step import KEEP, Builder, applied, options_of, units_of
from ddp_bench.toolbox import Repeats, interleave


def option_seconds(
    build: Builder,
    repeats: int = 5,
    folder: str | None = None,
    offload: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, dict[str, float]]:
    """Unit -> option -> seconds of forward and backward over those of keeping everything.

    Units with the same class and sizes share one measurement, whose repeats are interleaved; a cost
    is the median of differences within a round, and not below zero.

    Args:
        folder: where offloaded tensors of a CPU go.
        offload: whether to offload is an option.
    """
    step = build()
    arguments = _arguments(step.model, step.inputs)
    known: dict[tuple, dict[str, float]] = {}
    out = {}
    for name, unit in units_of(step.model).items():
        alike = (type(unit), *(tuple(p.shape) for p in unit.parameters()))
        if alike not in known:
            say(f"measuring what {name} costs to recompute")
            names = [o for o in options_of(unit) if offload or o != "offload"]
            known[alike] = _measure(unit, arguments[name], names, repeats, folder)
        out[name] = known[alike]
    return out


def _arguments(model: nn.Module, inputs: Tensor) -> dict[str, tuple]:
    """What every unit is called with, forward."""
    found: dict[str, tuple] = {}

    def keep(name: str) -> Callable:
        def hook(module: nn.Module, arguments: tuple) -> None:
            found[name] = tuple(_cut_off(value) for value in arguments)

        return hook

    handles = [u.register_forward_pre_hook(keep(n)) for n, u in units_of(model).items()]
    model(inputs)
    for handle in handles:
        handle.remove()
    return found


def _measure(
    unit: nn.Module, arguments: tuple, names: list[str], repeats: int, folder: str | None
) -> dict[str, float]:
    inside = nn.Sequential(unit)  # a model of one unit, named "0"
    works = {name: partial(_once, inside, arguments, {"0": name}, folder) for name in names}
    device = next(unit.parameters()).device
    found = interleave(works, Repeats(repeats), device)
    timed = {name: np.array(t.seconds) for name, t in found.items()}
    unit.zero_grad(set_to_none=True)
    return {
        name: max(float(np.median(seconds - timed[KEEP])), 0.0) for name, seconds in timed.items()
    }


def _cut_off(value: Any) -> Any:
    """The same values without what came before them; gradients are asked for where they were."""
    if isinstance(value, Tensor):
        return value.detach().requires_grad_(value.requires_grad)
    return value


def _once(model: nn.Sequential, arguments: tuple, policy: dict, folder: str | None) -> None:
    with applied(model, policy, folder):
        model[0](*arguments).sum().backward()
