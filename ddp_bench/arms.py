"""The arms: who computes which samples of the global stream at every step.

All arms share one protocol. `next()` gives this rank's share of the next B samples. `overlap()` runs
after backward and hides what communication the arm needs. `observe()` takes measured compute times.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ddp_bench.config import ArmSpec, Settings, prefetch_of
from ddp_bench.data import GlobalStream, digest
from ddp_bench.scheduler import (
    COUNT_SOLVERS,
    CostModel,
    OnlineFit,
    karmarkar_karp,
    padded_length,
    prefix_costs,
    split_pool,
)

_WRAP = 1 << 64


@dataclass(frozen=True)
class Share:
    """What one rank computes in one step."""

    ids: np.ndarray  # [b_g] sample ids
    oldest: int  # [steps] longest wait of a sample between being drawn and being used


class Pending(Protocol):
    def wait(self) -> np.ndarray: ...


class Messages(Protocol):
    """The two messages a scheduler needs; see `comm.Control`."""

    rank: int
    ranks: int

    def post_rows(self, row: np.ndarray) -> Pending: ...
    def post_counts(self, counts: list[int] | None) -> Pending: ...


class Arm(ABC):
    """Shared bookkeeping: cursor, consumed samples, cost model."""

    packed = False

    def __init__(
        self,
        spec: ArmSpec,
        settings: Settings,
        lengths: np.ndarray,
        messages: Messages,
        caps: list[int] | None,
    ) -> None:
        self.spec = spec
        self.batch = settings.global_batch
        self.multiple = settings.pad_to_multiple_of
        self.lengths = lengths  # [n] tokens
        self.messages = messages
        self.rank, self.ranks = messages.rank, messages.ranks
        self.caps = caps
        self.stream = GlobalStream(len(lengths), settings.seed)
        self.fit = OnlineFit()
        self.cursor = 0  # stream positions drawn by all ranks together
        self.steps = 0
        self.used = 0  # samples this rank computed
        self.used_digest = 0

    def cost(self) -> CostModel:
        """The cost model in force."""
        if self.spec.cost == "fitted":
            return self.fit.cost(self.multiple)
        return CostModel(self.spec.cost, pad_to_multiple_of=self.multiple)

    def features(self, pieces: list[np.ndarray]) -> tuple[float, float]:
        """(T, T2) of micro-batches of sample ids: tokens computed on, work of attention."""
        tokens = attention = 0.0
        for ids in pieces:
            real = self.lengths[ids].astype(float)
            if not self.packed:
                real = np.full(len(ids), float(padded_length(real.max(), self.multiple)))
            tokens += real.sum()
            attention += (real**2).sum()
        return tokens, attention

    def next(self) -> Share:
        """This rank's share of the next step."""
        positions, drawn = self._take()
        ids = self.stream.ids(positions)
        self.used += len(ids)
        self.used_digest = (self.used_digest + digest(positions, ids)) % _WRAP
        oldest = int(self.steps - drawn.min()) if len(drawn) else 0
        self.steps += 1
        return Share(ids, oldest)

    @abstractmethod
    def _take(self) -> tuple[np.ndarray, np.ndarray]:
        """Stream positions of this rank's share, and the steps at which they were drawn."""

    def post(self) -> None:
        """Send what the next step's schedule needs, unless it was sent before; never blocks."""
        return  # an arm without messages has nothing to send

    def overlap(self) -> None:
        """Communicate for the next step; called after backward, before the gradient sum."""
        return  # an arm without messages has nothing to send

    def observe(self, features: np.ndarray, times_ms: np.ndarray) -> None:
        """All ranks' (T, T2) [G, 2] and compute times [G] of the step just done."""
        self.fit.update(features, times_ms)

    def held(self) -> np.ndarray:
        """Positions drawn by this rank and not yet computed (shared pools: by rank 0)."""
        return np.empty(0, np.int64)

    def account(self) -> np.ndarray:
        """[4] int64 to be summed over ranks: used, digest of used, held, digest of held."""
        held = self.held()
        words = (self.used, self.used_digest, len(held), digest(held, self.stream.ids(held)))
        return np.array(words, dtype=np.uint64).view(np.int64)

    def state_dict(self) -> dict:
        """This rank's place in the stream; `load_state_dict` continues with the same samples."""
        names = ("cursor", "steps", "used", "used_digest")
        return {name: getattr(self, name) for name in names} | {"fit": self.fit.state_dict()}

    def load_state_dict(self, state: dict) -> None:
        """Undo `state_dict`."""
        for name in ("cursor", "steps", "used", "used_digest"):
            setattr(self, name, state[name])
        self.fit.load_state_dict(state["fit"])


class PoolArm(Arm):
    """All ranks know the same B samples and split them by a rule, with no communication."""

    def _take(self) -> tuple[np.ndarray, np.ndarray]:
        positions, drawn = self._pool()
        mine = self._split(self.lengths[self.stream.ids(positions)])
        return positions[mine], drawn[mine]

    def _pool(self) -> tuple[np.ndarray, np.ndarray]:
        """Positions of the step's B samples and when they were drawn."""
        positions = np.arange(self.cursor, self.cursor + self.batch)
        self.cursor += self.batch
        return positions, np.full(self.batch, self.steps)

    @abstractmethod
    def _split(self, lengths: np.ndarray) -> np.ndarray:
        """Indices into the pool that this rank computes."""


class StaticArm(PoolArm):
    """B/G samples each, in stream order."""

    def _split(self, lengths: np.ndarray) -> np.ndarray:
        return np.array_split(np.arange(len(lengths)), self.ranks)[self.rank]


class PooledArm(PoolArm):
    """Sorted and dealt as contiguous groups of unequal count, exact min-max."""

    def _split(self, lengths: np.ndarray) -> np.ndarray:
        return split_pool(lengths, self.ranks, self.cost(), self.caps)[self.rank]


class HfRebalanceArm(PoolArm):
    """The split that Transformers ships (`train_sampling_strategy="batch_rebalance"`)."""

    def _split(self, lengths: np.ndarray) -> np.ndarray:
        from transformers.trainer_pt_utils import BatchRebalanceSampler

        sampler = BatchRebalanceSampler(
            lengths.tolist(), len(lengths), self.ranks, 1, shuffle=False, rank=self.rank
        )
        return np.array(next(iter(sampler)), np.int64)


class PackedArm(PoolArm):
    """Without padding; Karmarkar-Karp over the samples' costs."""

    packed = True

    def _split(self, lengths: np.ndarray) -> np.ndarray:
        costs = self.cost().sample(lengths)
        return np.array(karmarkar_karp(costs, self.ranks)[self.rank], np.int64)


class GroupByLengthArm(PoolArm):
    """Mega-batches sorted by length, cut into blocks of B, blocks in random order.

    Unshuffled blocks would make the loss a saw-tooth. A mega-batch is used up before the next is
    drawn, so a sample waits less than `max_age_steps` steps.
    """

    def __init__(self, spec: ArmSpec, settings: Settings, *args) -> None:
        super().__init__(spec, settings, *args)
        self.blocks = max(1, min(settings.max_age_steps, -(-len(self.lengths) // self.batch)))
        self.left: list[np.ndarray] = []  # blocks of positions still to be used
        self.drawn_at = 0

    def _pool(self) -> tuple[np.ndarray, np.ndarray]:
        if not self.left:
            size = self.blocks * self.batch
            positions = np.arange(self.cursor, self.cursor + size)
            self.cursor += size
            self.drawn_at = self.steps
            lengths = self.lengths[self.stream.ids(positions)]
            ordered = positions[np.argsort(-lengths, kind="stable")]
            blocks = ordered.reshape(self.blocks, self.batch)
            shuffle = np.random.default_rng([self.stream.seed, 2, self.steps])
            self.left = list(blocks[shuffle.permutation(self.blocks)])
        return self.left.pop(0), np.full(self.batch, self.drawn_at)

    def _split(self, lengths: np.ndarray) -> np.ndarray:
        return np.arange(self.rank, len(lengths), self.ranks)

    def held(self) -> np.ndarray:
        if self.rank or not self.left:
            return super().held()
        return np.concatenate(self.left)

    def state_dict(self) -> dict:
        left = np.array(self.left, np.int64).reshape(-1, self.batch)
        return super().state_dict() | {"left": left, "drawn_at": self.drawn_at}

    def load_state_dict(self, state: dict) -> None:
        super().load_state_dict(state)
        self.left, self.drawn_at = list(state["left"]), state["drawn_at"]


class GroupByLengthPooledArm(GroupByLengthArm):
    """The same blocks, split exactly as the pooled arm splits."""

    def _split(self, lengths: np.ndarray) -> np.ndarray:
        return split_pool(lengths, self.ranks, self.cost(), self.caps)[self.rank]


class DynamicArm(Arm):
    """Only the counts are decided: every rank pops b_g samples from its own FIFO buffer.

    Every rank holds K samples in view. Cost rows c_g(1..min(K, b_max_g)) are gathered, rank 0
    solves, and counts are broadcast. The buffers are refilled from the one stream in rank order, so
    that every rank knows the cursor. Rows for the next step leave as soon as a step's counts are
    known, and travel during its compute.
    """

    def __init__(self, spec: ArmSpec, settings: Settings, *args) -> None:
        super().__init__(spec, settings, *args)
        self.view = prefetch_of(settings, self.ranks)
        self.buffer = np.arange(self.rank * self.view, (self.rank + 1) * self.view)
        self.drawn = np.zeros(self.view, np.int64)
        self.cursor = self.ranks * self.view
        self._rows: Pending | None = None
        self._counts: Pending | None = None

    def post(self) -> None:
        if self._rows is not None or self._counts is not None:
            return
        cap = None if self.caps is None else self.caps[self.rank]
        row = prefix_costs(self.lengths[self.stream.ids(self.buffer)], self.cost(), cap)
        self._rows = self.messages.post_rows(
            np.concatenate([row, np.full(self.view - len(row), np.inf)])
        )

    def _post_counts(self) -> None:
        rows = self._rows.wait()
        counts = None
        if self.rank == 0:
            finite = [row[: int(np.isfinite(row).sum())] for row in rows]
            counts = COUNT_SOLVERS[self.spec.solver](finite, self.batch)
        self._counts = self.messages.post_counts(counts)
        self._rows = None

    def overlap(self) -> None:
        self.post()
        if self._counts is None:
            self._post_counts()

    def _take(self) -> tuple[np.ndarray, np.ndarray]:
        self.overlap()
        counts = self._counts.wait().tolist()
        self._counts = None
        mine = counts[self.rank]
        positions, drawn = self.buffer[:mine], self.drawn[:mine]
        start = self.cursor + sum(counts[: self.rank])
        self.buffer = np.concatenate([self.buffer[mine:], np.arange(start, start + mine)])
        self.drawn = np.concatenate([self.drawn[mine:], np.full(mine, self.steps + 1)])
        self.cursor += self.batch
        self.post()
        return positions, drawn

    def held(self) -> np.ndarray:
        return self.buffer

    def state_dict(self) -> dict:
        counts = None if self._counts is None else self._counts.wait().copy()
        return super().state_dict() | {
            "buffer": self.buffer.copy(),
            "drawn": self.drawn.copy(),
            "counts": counts,
        }

    def load_state_dict(self, state: dict) -> None:
        super().load_state_dict(state)
        self.buffer, self.drawn = state["buffer"], state["drawn"]
        self._rows = None
        self._counts = None if state["counts"] is None else _Known(state["counts"])


class _Known:
    """A message that has already arrived."""

    def __init__(self, value: np.ndarray) -> None:
        self._value = value

    def wait(self) -> np.ndarray:
        return self._value


ARM_TYPES: dict[str, type[Arm]] = {
    "static": StaticArm,
    "dynamic": DynamicArm,
    "pooled": PooledArm,
    "group_by_length": GroupByLengthArm,
    "group_by_length_pooled": GroupByLengthPooledArm,
    "packed": PackedArm,
    "hf_batch_rebalance": HfRebalanceArm,
}


def make_arm(
    spec: ArmSpec,
    settings: Settings,
    lengths: np.ndarray,
    messages: Messages,
    caps: list[int] | None,
) -> Arm:
    """The arm that `spec` names.

    Args:
        lengths: [n] tokens of every training sample.
        messages: rank, number of ranks, and the scheduler's two messages.
        caps: most samples per rank and micro-batch, or None.
    """
    return ARM_TYPES[spec.name](spec, settings, lengths, messages, caps)
