"""The highest utilisation that was published for a GPU type: beyond it a prediction is flagged."""

from __future__ import annotations

from typing import NamedTuple

from jaxsim.cluster.fits import family


class Record(NamedTuple):
    """Model FLOPs per second (no recomputation, half the attention matrix under fused attention) as a
    share of the dense 16-bit peak."""

    share: float
    run: str


# FLOAT8 counts against the 16-bit peak too. Of other GPU types no record is kept: nothing is flagged.
RECORDS: dict[tuple[str, bool], Record] = {
    ("A100", False): Record(0.62, "MPT-7B on 8 A100, llm-foundry's published table"),
    ("H100", False): Record(0.48, "Megatron-LM's published weak scaling on H100, up to 47-48 %"),
    ("H100", True): Record(0.58, "MPT-1B in FP8 on 8 H100, llm-foundry's published table"),
}


def above_record(utilisation: float, gpu: str, float8: bool = False) -> str:
    """A sentence that names the record where a predicted utilisation is above it; else empty."""
    record = RECORDS.get((family(gpu), float8))
    if record is None or utilisation <= record.share:
        return ""
    return (
        f"{100 * utilisation:.0f} % of peak is above the highest published for {gpu}, "
        f"{100 * record.share:.0f} % ({record.run})"
    )
