"""One global sample stream for all ranks and arms, and proof that nothing is lost or repeated.

Position p of the stream holds sample `order(p // n)[p % n]`, where `order(e)` is a permutation
of the n training rows that depends on the seed and the epoch only. An arm draws positions
0, 1, 2, ... with one cursor that all ranks share, and decides which rank computes which position.
So what an arm has used plus what it holds is at any time the prefix [0, cursor). `digest` verifies
that from sums alone.
"""

from __future__ import annotations

import numpy as np

_MASK = (1 << 64) - 1


class GlobalStream:
    """Sample ids by stream position; stateless but for a cache of two epochs."""

    def __init__(self, rows: int, seed: int) -> None:
        self.rows = rows
        self.seed = seed
        self._orders: dict[int, np.ndarray] = {}

    def order(self, epoch: int) -> np.ndarray:
        """The permutation of one epoch, [rows]."""
        if epoch not in self._orders:
            if len(self._orders) > 2:
                self._orders.pop(min(self._orders))
            generator = np.random.default_rng([self.seed, epoch])
            self._orders[epoch] = generator.permutation(self.rows)
        return self._orders[epoch]

    def ids(self, positions: np.ndarray) -> np.ndarray:
        """Sample ids at `positions` [n] -> [n]."""
        positions = np.asarray(positions, np.int64)
        epochs, offsets = np.divmod(positions, self.rows)
        result = np.empty(len(positions), np.int64)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            result[here] = self.order(int(epoch))[offsets[here]]
        return result


def digest(positions: np.ndarray, ids: np.ndarray) -> int:
    """Order-independent checksum of (position, id) pairs: a sum of mixed words modulo 2^64.

    A pair lost, repeated or altered changes it, but for one chance in 2^64.
    """
    positions, ids = np.asarray(positions, np.uint64), np.asarray(ids, np.uint64)
    word = positions * np.uint64(0x9E3779B97F4A7C15) + ids * np.uint64(0xD1B54A32D192ED03)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    word ^= word >> np.uint64(31)
    return int(word.sum(dtype=np.uint64)) & _MASK


class PrefixDigest:
    """Checksum of the stream's prefix [0, n), computed from the seed alone, step by step."""

    def __init__(self, stream: GlobalStream) -> None:
        self.stream = stream
        self._length = 0
        self._digest = 0

    def at(self, length: int) -> int:
        """Digest of [0, length); cheap when lengths only grow."""
        if length < self._length:
            self._length = self._digest = 0
        while self._length < length:
            stop = min(length, self._length + 65536)
            positions = np.arange(self._length, stop)
            self._digest = (self._digest + digest(positions, self.stream.ids(positions))) & _MASK
            self._length = stop
        return self._digest
