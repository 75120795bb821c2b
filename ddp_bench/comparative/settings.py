"""Options of the comparative room."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path

from ddp_bench.comparative.entries import ENTRIES, PICOTRON, Entry
from ddp_bench.errors import ConfigError
from ddp_bench.options import check_options, option
from ddp_bench.toolbox import Room

MODELS = ("tiny", "small", "wide", "deep")  # SHAPES, which load torch
ROWS_OF = 4  # two ranks, two micro-batches
_OWN = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


@dataclass(frozen=True)
class ComparativeSettings:
    """Every option; the help text is in the metadata."""

    frameworks: str = option(
        "all", f"some of {', '.join(ENTRIES)}, comma separated; module:class is one of your own"
    )
    model: str = option("small", "shape of the model", choices=MODELS)
    rows: int = option(8, "sequences of a global batch", "[4, 4096]")
    length: int = option(64, "of a sequence [tokens]", "[2, 1024]")
    steps: int = option(20, "steps whose losses are compared", "[2, 100000]")
    tolerance: float = option(
        1e-5,
        "a framework whose losses are further off, relative (below 1 nat, to 1), is not timed",
        "(0, 0.1]",
    )
    repeats: int = option(11, "timed turns of every framework", "[5, 10000]")
    timed_steps: int = option(10, "steps of a timed turn", "[1, 10000]")
    starts: int = option(3, "starts of every framework, of which the median counts", "[1, 100]")
    picotron: str = option("", "checkout of Picotron, which no package brings")
    seed: int = option(0, "of weights and batches", "[0, 1000000]")
    timeout_s: float = option(120.0, "a rank silent for this long has failed [s]", "(0, 1000000]")

    def __post_init__(self) -> None:
        check_options(self)
        if self.rows % ROWS_OF:
            raise ConfigError(f"rows is {self.rows}: allowed are multiples of {ROWS_OF}")
        for name in self.names():
            if name not in ENTRIES and not _OWN.fullmatch(name):
                known = ", ".join(ENTRIES)
                raise ConfigError(f"frameworks: {name!r}: allowed all, {known}, module:class")
        if self.picotron and not (Path(self.picotron) / "picotron" / "model.py").is_file():
            where = f"picotron is {self.picotron!r}"
            raise ConfigError(f"{where}: allowed is a checkout, which holds picotron/model.py")

    def names(self) -> list[str]:
        """Names of `frameworks`, each once."""
        if self.frameworks == "all":
            return list(ENTRIES)
        return list(dict.fromkeys(name.strip() for name in self.frameworks.split(",")))

    def entries(self) -> dict[str, Entry]:
        """Name -> entry of all that are compared."""
        found = {name: ENTRIES.get(name) or Entry(name) for name in self.names()}
        if PICOTRON in found:
            path = str(Path(self.picotron).resolve()) if self.picotron else ""
            found[PICOTRON] = dataclasses.replace(found[PICOTRON], settings={"checkout": path})
        return found


ROOM = Room(
    name="comparative",
    text="Compare training frameworks: same model, weights and batches; equal losses first.",
    settings=ComparativeSettings,
    quick={
        "frameworks": "pytorch_ddp,pytorch_fsdp2,deepspeed_zero2,megatron_dp2",
        "model": "tiny",
        "length": 32,
        "steps": 5,
        "repeats": 5,
        "timed_steps": 3,
        "starts": 1,
    },
    work="ddp_bench.comparative.work:work",
)
