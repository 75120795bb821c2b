"""One model of all machines: GPU types share what is hardware, stacks what is software.

A machine is a GPU type under a software stack. On the unbounded scale of its prior, every parameter
of a machine is a documented centre plus deviations that machines share:

    free[machine] = centre[machine] + sum of spread x z over its effects,   z ~ N(0, 1)

so that few rows move a machine little, and a machine without rows is predicted from the others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from jaxsim.cluster import FITTED_AS, PRIORS, family

# What belongs to the GPU and its node, whatever runs on it; all else is the stack's.
HARDWARE = (
    "gemm_efficiency",
    "gemm_tail_tiles",
    "gemm_depth",
    "batched_gemm_efficiency",
    "memory_efficiency",
    "kernel_s",
    "fp32_speed",
    "nvlink_efficiency",
    "collective_alpha_s",
    "intra_efficiency",
)
# Of the links between domains and of a restart: one value for all machines.
SHARED = (
    "wan_efficiency",
    "wan_ring_efficiency",
    "outer_sync_efficiency",
    "slow_link_gbps",
    "sync_fixed_s",
    "restart_s",
)
# Parts of one family (memory size, power limit) differ by this much on the unbounded scale: a kernel
# bound by arithmetic least, since they have the same cores.
PART_SPREAD = {"gemm_efficiency": 0.2, "flash_efficiency": 0.05, "memory_efficiency": 0.2}
# A kernel written for one architecture reaches another share of the next.
KERNEL_SPREAD = {"flash_efficiency": 0.3, "gemm_efficiency": 0.2}


class Machine(NamedTuple):
    """A GPU type under the stack whose efficiencies it has."""

    gpu: str
    stack: str

    @property
    def family(self) -> str:
        """The GPU's architecture."""
        return family(self.gpu)

    @property
    def fitted(self) -> str:
        """The stack whose deviations it shares: some differ in settings alone."""
        return FITTED_AS.get(self.stack, self.stack)


class Effect(NamedTuple):
    """A deviation that all machines of a scope share."""

    parameter: str
    scope: str  # of `_scopes`
    spread: float


def _scopes(machine: Machine) -> dict[str, str]:
    """Kind of scope -> the one that the machine is in."""
    return {
        "all": "all",
        "family": f"gpu {machine.family}",
        "part": f"part {machine.gpu}",
        "stack": f"stack {machine.fitted}",
        "kernel": f"stack {machine.fitted} on {machine.family}",
    }


@dataclasses.dataclass(frozen=True)
class Hierarchy:
    """Machines and the effects that they share."""

    machines: tuple[Machine, ...]
    effects: tuple[Effect, ...]
    centre: np.ndarray  # [M, D]

    @property
    def design(self) -> np.ndarray:
        """[M, D, E] spread of each effect where it reaches."""
        return np.stack([self.design_of(machine) for machine in self.machines])

    def design_of(self, machine: Machine) -> np.ndarray:
        """[D, E] spread of each effect that reaches a machine, measured or not."""
        names = {name: i for i, name in enumerate(PRIORS)}
        out = np.zeros((len(names), len(self.effects)))
        mine = set(_scopes(machine).values())
        for e, effect in enumerate(self.effects):
            if effect.scope in mine:
                out[names[effect.parameter], e] = effect.spread
        return out

    def unshared(
        self, machine: Machine, spread: Float[np.ndarray, " D"]
    ) -> Float[np.ndarray, " D"]:
        """[D] variance of the parameters of a machine that was not measured which no effect that
        reaches it stands for; `spread` [D] is how uncertain they are in all, as documented."""
        return np.maximum(spread**2 - (self.design_of(machine) ** 2).sum(axis=1), 0.0)

    def of_stack(self, stack: str) -> list[Effect]:
        """The free parameters that are a stack's alone."""
        own = f"stack {stack}"
        return [e for e in self.effects if e.scope == own or e.scope.startswith(f"{own} on ")]


def hardware_effects(machines: Sequence[Machine], spread_of) -> list[Effect]:
    """Deviations that no stack owns: of the links between domains, of architectures, of their parts.

    `spread_of(machine, parameter)` is the documented spread.
    """
    first = machines[0]
    effects = [Effect(name, "all", spread_of(first, name)) for name in SHARED]
    for name in dict.fromkeys(m.family for m in machines):
        one = next(m for m in machines if m.family == name)
        effects += [Effect(n, f"gpu {name}", spread_of(one, n)) for n in HARDWARE]
    for gpu in dict.fromkeys(m.gpu for m in machines):
        effects += [Effect(n, f"part {gpu}", spread) for n, spread in PART_SPREAD.items()]
    return effects


def stack_effects(machines: Sequence[Machine], spread_of) -> list[Effect]:
    """Every deviation that a stack may own: of its parameters, and of its kernels on each of the
    architectures that it was measured on."""
    effects = []
    for stack in dict.fromkeys(m.fitted for m in machines):
        mine = [m for m in machines if m.fitted == stack]
        soft = [n for n in PRIORS if n not in HARDWARE and n not in SHARED]
        effects += [Effect(n, f"stack {stack}", spread_of(mine[0], n)) for n in soft]
        families = dict.fromkeys(m.family for m in mine)
        effects += [
            Effect(n, f"stack {stack} on {family}", spread)
            for family in families
            for n, spread in KERNEL_SPREAD.items()
        ]
    return effects
