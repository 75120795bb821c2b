"""Every entry of the comparison, by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_PYTORCH = "ddp_bench.comparative.frameworks.pytorch"
_DEEPSPEED = "ddp_bench.comparative.frameworks.deepspeed_zero"
_MEGATRON = "ddp_bench.comparative.frameworks.megatron_core"


@dataclass(frozen=True)
class Entry:
    """One setting of a framework.

    Attributes:
        of: "module:class" of its adapter.
        settings: of the adapter.
        ranks: processes that train.
        package: that it needs besides torch, as pip calls it.
        moves_to: entry that reads what this one saves.
        why_no_move: why there is none, where there is none.
        prepare: module that is run once before ranks start: what it compiles is no part of a start.
    """

    of: str
    settings: dict[str, Any] = field(default_factory=dict)
    ranks: int = 2
    package: str = "torch"
    moves_to: str | None = None
    why_no_move: str | None = None
    prepare: str | None = None


REFERENCE = Entry(f"{_PYTORCH}:Alone", ranks=1)
PICOTRON = "picotron_dp"


def _zero(stage: int) -> Entry:
    return Entry(
        f"{_DEEPSPEED}:Zero",
        {"stage": stage},
        package="deepspeed",
        why_no_move="it saves files of its own format, one per rank; a program that converts them, "
        "ds_to_universal, stands between two layouts",
        prepare=_DEEPSPEED,
    )


ENTRIES: Mapping[str, Entry] = {
    "pytorch_ddp": Entry(f"{_PYTORCH}:DataParallel", moves_to="pytorch_fsdp2"),
    "pytorch_fsdp2": Entry(f"{_PYTORCH}:FullyShard", moves_to="pytorch_pp"),
    "pytorch_pp": Entry(f"{_PYTORCH}:Pipeline", moves_to="pytorch_ddp"),
    "deepspeed_zero1": _zero(1),
    "deepspeed_zero2": _zero(2),
    "deepspeed_zero3": _zero(3),
    "megatron_dp2": Entry(
        f"{_MEGATRON}:Megatron",
        {"tensor": 1},
        package="megatron-core",
        moves_to="megatron_tp2",
    ),
    "megatron_tp2": Entry(
        f"{_MEGATRON}:Megatron",
        {"tensor": 2},
        package="megatron-core",
        moves_to="megatron_dp2",
    ),
    "torchtitan_fsdp2": Entry(
        "ddp_bench.comparative.frameworks.titan:Titan",
        package="torchtitan",
        why_no_move="no other layout of it is compared, and its names of weights are its own",
    ),
    PICOTRON: Entry(
        "ddp_bench.comparative.frameworks.picotron:Picotron",
        package="picotron",
        why_no_move="its checkpoints are files of one layout",
    ),
}
