"""What a comparison of the two fidelities is asked for."""

from __future__ import annotations

import dataclasses

from experiments.common import GLOBAL_BATCH, LAYOUT_LIMIT, MOST_LAYOUTS, MOST_OF_A_WORLD
from jaxsim.files import check_counts


@dataclasses.dataclass(frozen=True)
class FidelityConfig:
    """A comparison of the two fidelities.

    Attributes:
        samples: random steps per point
        micro_batches: per step
        spread: stages' times vary by this share of their mean
        send: a transfer's time over a stage's, at base bandwidth
        seed: of the random steps
        orders: compare what rivals deploy at base in orders outside the menu instead; the rest is of
            that alone
        cluster: cluster file or name; the embedded four-region cluster if none is given
        model: preset or YAML file
        global_batch: sequences per training step
        seq: tokens per sequence
        layout_limit: layouts whose plans are scored at most, where there are more
        out: run folder; outputs/fidelity-<time> if none is given
    """

    samples: int = 20
    micro_batches: int = 32
    spread: float = 0.1
    send: float = 0.3
    seed: int = 0
    orders: bool = False
    cluster: str | None = None
    model: str = "llama-7b"
    global_batch: int = GLOBAL_BATCH
    seq: int = 4096
    layout_limit: int = LAYOUT_LIMIT
    out: str | None = None

    def __post_init__(self):
        check_counts(self, {"samples": 100_000, "micro_batches": 10_000})
        check_counts(self, {"seed": 2**63 - 1}, least=0)
        sizes = {key: MOST_OF_A_WORLD[key] for key in ("global_batch", "seq")}
        check_counts(self, {**sizes, "layout_limit": MOST_LAYOUTS})
        for name, high in (("spread", 1.0), ("send", 1e3)):
            if not 0.0 <= getattr(self, name) < high:
                raise ValueError(f"{name}: expected 0 <= {name} < {high:g}")
