"""Options of the communication room."""

from __future__ import annotations

from dataclasses import dataclass

from ddp_bench.errors import ConfigError
from ddp_bench.options import check_options, option
from ddp_bench.toolbox import Room


@dataclass(frozen=True)
class CommunicationSettings:
    """Every option; the help text is in the metadata."""

    ranks: int = option(2, "ranks that train", "[2, 64]")
    methods: str = option("all", "methods, comma separated, or all; exact is always there")
    steps: int = option(200, "steps of every training run", "[10, 1000000]")
    played_steps: int = option(500, "steps of the selector on every emulated link", "[10, 1000000]")
    links: int = option(20, "emulated links that the selector is played on", "[1, 10000]")
    seeds: int = option(3, "seeds of data and weights on which losses are compared", "[1, 1000]")
    loss_tolerance: float = option(
        0.05, "most that the loss may rise over exact gradients, relative", "(0, 1]"
    )
    sharded: bool = option(
        False, "train by the methods that can under FSDP2 as well, against FSDP2's own messages"
    )
    every: int = option(5, "steps between decisions", "[1, 10000]")
    seed: int = option(0, "of the emulated links, and of the first training run", "[0, 1000000]")
    timeout_s: float = option(120.0, "a rank silent for this long ends the run [s]", "(0, 1000000]")

    def __post_init__(self) -> None:
        check_options(self)
        if not all(self.names()):
            raise ConfigError(f"methods is {self.methods!r}: allowed are names, or all")

    def names(self) -> list[str]:
        """Methods of `methods`, exact first; [] stands for all."""
        if self.methods == "all":
            return []
        given = [name.strip() for name in self.methods.split(",")]
        return ["exact", *(name for name in given if name != "exact")]


ROOM = Room(
    name="communication",
    text="Compare how gradients are sent, and choose while training.",
    settings=CommunicationSettings,
    quick={"steps": 30, "links": 10, "seeds": 1},
    work="ddp_bench.communication.work:work",
)
