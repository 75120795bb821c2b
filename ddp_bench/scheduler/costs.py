"""What a micro-batch of k samples padded to length L costs.

Every cost is strictly increasing in k and non-decreasing in L, which is all the solvers need.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

COST_TYPES = ("tokens", "tokens_sq", "fitted")


def padded_length(length: np.ndarray | int, multiple: int = 1) -> np.ndarray:
    """`length` [tokens] rounded up to a multiple, as `pad_to_multiple_of` makes it."""
    return -(-np.asarray(length) // multiple) * multiple


@dataclass(frozen=True)
class CostModel:
    """Cost of one micro-batch on one rank.

    kind `tokens`: kL. kind `tokens_sq`: (kL)^2; the same schedules as `tokens`, since min-max
    does not see a monotone transform (only tie-breaks can differ). kind `fitted`:
    a + b kL + c kL^2 [ms], where kL is the work of the linear layers and kL^2 of attention
    ((kL)^2 is not: samples do not attend to each other).
    """

    kind: str = "tokens"
    a: float = 0.0  # [ms] per micro-batch, whatever it holds
    b: float = 1.0  # [ms] per padded token
    c: float = 0.0  # [ms] per padded token and per token of padded length
    pad_to_multiple_of: int = 1  # [tokens]

    def __post_init__(self) -> None:
        if self.kind not in COST_TYPES:
            raise ValueError(f"cost {self.kind!r}: allowed are {', '.join(COST_TYPES)}")
        if self.kind == "fitted" and not (self.b > 0 and self.c >= 0 and self.a >= 0):
            raise ValueError("a fitted cost needs a >= 0, b > 0, c >= 0: else it does not grow")

    def __call__(self, count: np.ndarray | int, max_length: np.ndarray | int) -> np.ndarray:
        """Cost of `count` samples whose longest has `max_length` tokens (broadcast; float64)."""
        length = padded_length(max_length, self.pad_to_multiple_of).astype(np.float64)
        tokens = count * length
        if self.kind == "tokens":
            return tokens
        if self.kind == "tokens_sq":
            return tokens * tokens
        return self.a + tokens * (self.b + self.c * length)

    def sample(self, length: np.ndarray) -> np.ndarray:
        """Cost of single samples that share no padding (packed): `length` [n] -> [n]."""
        real = np.asarray(length, np.float64)
        if self.kind == "tokens":
            return real
        if self.kind == "tokens_sq":
            return real * real
        return real * (self.b + self.c * real)


def prefix_costs(lengths: np.ndarray, cost: CostModel, cap: int | None = None) -> np.ndarray:
    """c(k) for k = 1..min(n, cap): the cost of the first k samples of a FIFO buffer.

    Args:
        lengths: [n] tokens, in buffer order.
        cost: the cost model.
        cap: most samples that fit in memory.

    Returns:
        [min(n, cap)] float64, strictly increasing.
    """
    longest = np.maximum.accumulate(np.asarray(lengths)[:cap])
    return cost(np.arange(1, len(longest) + 1), longest)
