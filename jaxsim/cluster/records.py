"""The highest utilisation that was published for a GPU type: beyond it a prediction is flagged."""

from __future__ import annotations

from typing import NamedTuple

from jaxsim.cluster.fits import family


class Record(NamedTuple):
    """Model FLOPs per second (no recomputation, half the attention matrix under fused attention) as a
    share of the dense 16-bit peak."""

    share: float
    run: str


# FLOAT8 counts against the 16-bit peak too. Publications that count the whole attention matrix are
# recounted with half of it: 62.5, 90.5 and 74.5 % as published. Of other GPU types no record is kept:
# nothing is flagged.
RECORDS: dict[tuple[str, bool], Record] = {
    ("A100", False): Record(0.62, "MPT-7B on 8 A100, llm-foundry's published table"),
    ("H100", False): Record(
        0.597, "Nemotron-4 15B on 16 H100, NVIDIA DGX Cloud benchmarking, 2025"
    ),
    ("H100", True): Record(0.89, "GPT-3 175B in FP8 on 512 H100, NeMo performance summary 24.07"),
    ("B200", True): Record(0.72, "Llama 3.1 405B in FP8 on 128 B200, Megatron Bridge 25.09"),
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
