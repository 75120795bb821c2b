"""Bytes to train on, made up from a seed: words in a Zipf-like frequency whose order has structure.

Which sequences a step holds depends on the step alone, never on the plan.
"""

from __future__ import annotations

import numpy as np

WORDS, SYLLABLES = 400, 60
ORDER_SHARE = 0.7  # of words that follow from the word before


class Corpus:
    """An endless text; sequence n is always the same bytes."""

    def __init__(self, seed: int, seq: int) -> None:
        rng = np.random.default_rng([seed, 18])
        self.seq, self._seed = seq, seed
        letters = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]
        syllables = rng.choice(letters, SYLLABLES)
        words = {"".join(rng.choice(syllables, rng.integers(1, 4))) for _ in range(WORDS)}
        self._words = [f"{word} ".encode() for word in sorted(words)]
        frequency = 1.0 / np.arange(3, 3 + len(self._words))
        self._frequency = frequency / frequency.sum()
        self._next = rng.permutation(len(self._words))

    def sequence(self, number: int) -> np.ndarray:
        """[seq + 1] bytes: inputs and, one place on, targets."""
        rng = np.random.default_rng([self._seed, 19, number])
        count = self.seq // 2 + 2  # a word has two letters and a space at least
        drawn = rng.choice(len(self._words), count, p=self._frequency)
        follows = rng.random(count) < ORDER_SHARE
        at, text = 0, []
        for word, after in zip(drawn, follows, strict=True):
            at = int(self._next[at]) if after else int(word)
            text.append(self._words[at])
        return np.frombuffer(b"".join(text)[: self.seq + 1], np.uint8)

    def batch(self, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
        """[last - first, seq] int64 inputs and targets of the sequences `first` to `last` - 1."""
        rows = np.stack([self.sequence(n) for n in range(first, last)]).astype(np.int64)
        return rows[:, :-1], rows[:, 1:]
