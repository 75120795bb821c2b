"""What a comparison of the two fidelities is asked for."""

from __future__ import annotations

import dataclasses

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
        out: run folder; outputs/fidelity-<time> if none is given
    """

    samples: int = 20
    micro_batches: int = 32
    spread: float = 0.1
    send: float = 0.3
    seed: int = 0
    out: str | None = None

    def __post_init__(self):
        check_counts(self, {"samples": 100_000, "micro_batches": 10_000})
        check_counts(self, {"seed": 2**63 - 1}, least=0)
        for name, high in (("spread", 1.0), ("send", 1e3)):
            if not 0.0 <= getattr(self, name) < high:
                raise ValueError(f"{name}: expected 0 <= {name} < {high:g}")
