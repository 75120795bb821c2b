"""Options of the memory room."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ddp_bench.errors import ConfigError
from ddp_bench.options import check_options, option
from ddp_bench.toolbox import Room

MODELS = ("tiny", "small", "wide", "deep")


@dataclass(frozen=True)
class MemorySettings:
    """Every option; the help text is in the metadata."""

    model: str = option("small", "whose budgets are met and whose trace is replayed", "", MODELS)
    rows: int = option(8, "sequences of a batch", "[1, 4096]")
    length: int = option(128, "tokens of a sequence", "[2, 1024]")
    optimizer: str = option("adamw", "of the model", "", ("adamw", "sgd"))
    models: str = option(",".join(MODELS), "models of the settings that predictions are checked on")
    settings: int = option(20, "how many model, batch and recompute settings", "[1, 1000]")
    capacity_mb: float = option(
        0.0, "memory of the device [MB]; 0 = three, from the least that works up", "[0, inf)"
    )
    reserve: float = option(0.2, "share of the memory that the chooser leaves free", "[0, 1)")
    offload: bool = option(False, "offloading is a choice: to the host, or on a CPU to files")
    offload_dir: str = option("", "folder of those files; empty = that of temporary files")
    repeats: int = option(7, "timed repeats of every choice", "[1, 10000]")

    def __post_init__(self) -> None:
        check_options(self)
        if self.offload_dir and not Path(self.offload_dir).is_dir():
            raise ConfigError(f"offload_dir is {self.offload_dir!r}: allowed is a folder")
        unknown = [name for name in self.model_names() if name not in MODELS]
        if unknown or not self.model_names():
            raise ConfigError(f"models is {self.models!r}: allowed {', '.join(MODELS)}")

    def model_names(self) -> list[str]:
        """Models of `models`."""
        return [name.strip() for name in self.models.split(",") if name.strip()]


ROOM = Room(
    name="memory",
    text="Predict peak memory, choose what to recompute within a budget, replay allocators.",
    settings=MemorySettings,
    quick={"model": "tiny", "models": "tiny", "settings": 5, "rows": 4, "length": 64, "repeats": 3},
    work="ddp_bench.memory.work:work",
)
