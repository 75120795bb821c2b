"""One arm's model, optimizer and step: forward, backward, vote, gradient sum, update."""

from __future__ import annotations

import contextlib
import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel
from transformers import get_linear_schedule_with_warmup

from ddp_bench.arms import Arm
from ddp_bench.config import Settings
from ddp_bench.data import Collator, TokenSet
from ddp_bench.ranks import Control
from ddp_bench.training.gradients import accumulate, reduce, split_ids
from ddp_bench.training.model import Classifier
from ddp_bench.training.timing import ComputeTimer, peak_memory_mb

SLOT = 6  # values per rank in the vote: failed, samples, compute ms, T, T2, summed loss


@dataclass(frozen=True)
class Precision:
    """Automatic mixed precision: the autocast context and whether losses are scaled."""

    name: str  # none, bf16 or fp16
    device: torch.device

    @classmethod
    def detect(cls, wanted: str, device: torch.device) -> Precision:
        """`auto`: bf16 on GPUs that have it, else fp16 on GPUs; none on CPUs."""
        if wanted == "auto":
            wanted = "none"
            if device.type == "cuda":
                wanted = "bf16" if torch.cuda.is_bf16_supported() else "fp16"
        return cls(wanted, device)

    def autocast(self) -> contextlib.AbstractContextManager:
        """A fresh autocast context."""
        if self.name == "none":
            return contextlib.nullcontext()
        dtype = torch.bfloat16 if self.name == "bf16" else torch.float16
        return torch.autocast(self.device.type, dtype)

    def scaler(self) -> torch.amp.GradScaler | None:
        """A gradient scaler where small gradients would vanish (fp16)."""
        return torch.amp.GradScaler(self.device.type) if self.name == "fp16" else None


class Runner:
    """Trains one arm; everything that differs between arms is in `arm`."""

    def __init__(
        self,
        arm: Arm,
        model: Classifier,
        settings: Settings,
        data: TokenSet,
        collate: Collator,
        control: Control,
        precision: Precision,
        learning_rate: float,
        before_forward: Callable[[int], None] = lambda step: None,
    ) -> None:
        self.arm, self.model, self.settings = arm, model, settings
        self.data, self.collate, self.control, self.precision = data, collate, control, precision
        self.before_forward = before_forward
        self.device = precision.device
        self.ddp = wrap(model, self.device)
        self.optimizer = torch.optim.AdamW(
            model.parameters(), learning_rate, weight_decay=settings.weight_decay, fused=True
        )
        warmup = min(settings.warmup_steps, settings.steps)
        self.schedule = get_linear_schedule_with_warmup(self.optimizer, warmup, settings.steps)
        self.scaler = precision.scaler()
        self.redone = 0  # steps redone after running out of memory
        self.skipped = 0  # updates the scaler skipped on an overflow

    @property
    def limits(self) -> list[int]:
        """[G] largest micro-batch of every rank; a whole global batch where nothing bounds it."""
        caps = self.arm.caps or [self.arm.batch] * self.control.ranks
        return [min(cap, self.settings.micro_batch or self.arm.batch) for cap in caps]

    def batches(self, pieces: list[np.ndarray]) -> list[dict[str, torch.Tensor]]:
        """Collated micro-batches on the device."""
        made = [self.collate(self.data, ids, self.arm.packed) for ids in pieces]
        return [{k: v.to(self.device, non_blocking=True) for k, v in b.items()} for b in made]

    def step(self, step: int) -> dict:
        """Train one step; returns this rank's metrics row."""
        begin = time.perf_counter()
        share = self.arm.next()
        schedule_s = time.perf_counter() - begin
        pieces = split_ids(share.ids, self.limits[self.control.rank])
        batches = self.batches(pieces)
        count = self.control.post_sum(np.array([len(share.ids)]))
        timer = ComputeTimer(self.device)
        loss, failed = self._compute(step, batches, count, timer)
        posted = time.perf_counter()
        self.arm.overlap()
        schedule_s += time.perf_counter() - posted
        votes, wait_s = self._vote(failed, share.ids, pieces, timer.ms, loss)
        redos = 0
        while votes[:, 0].any():
            redos += 1
            loss, votes = self._redo(share.ids, redos, votes, timer)
        if redos:
            self.redone += 1
        else:
            self.arm.observe(votes[:, 3:5], votes[:, 2])
        self._update()
        step_s = time.perf_counter() - begin
        lengths = self.data.lengths[share.ids]
        return {
            "step": step,
            "arm": self.arm.spec.label,
            "rank": self.control.rank,
            **self._work(share.ids, lengths, pieces),
            "compute_ms": timer.ms,
            "wait_ms": None if self.overlapping else 1e3 * wait_s,
            "step_time_ms": 1e3 * step_s,
            "schedule_ms": 1e3 * schedule_s,
            "peak_mem_mb": peak_memory_mb(self.device),
            "loss": loss / len(share.ids) if len(share.ids) else None,
            "global_loss": float(votes[:, 5].sum() / votes[:, 1].sum()),
            "throughput_samples_per_s": len(share.ids) / step_s,
            "throughput_real_tokens_per_s": float(lengths.sum()) / step_s,
            "throughput_padded_tokens_per_s": self.arm.features(pieces)[0] / step_s,
            "oldest_steps": share.oldest,
            "oom_redos": redos,
        }

    def _work(self, ids: np.ndarray, lengths: np.ndarray, pieces: list[np.ndarray]) -> dict:
        tokens, attention = self.arm.features(pieces)
        predicted = self.arm.fit.predict(np.array([[tokens, attention]]))
        return {
            "local_batch": len(ids),
            "max_seq_len_in_batch": int(lengths.max()) if len(ids) else 0,
            "padded_tokens": int(tokens),
            "real_tokens": int(lengths.sum()),
            "attention_tokens_sq": int(attention),
            "predicted_ms": None if predicted is None else float(predicted[0]),
        }

    @property
    def overlapping(self) -> bool:
        """Whether DDP reduces during the last backward; waiting is then inside compute."""
        return self.settings.sync == "overlap"

    def _compute(self, step: int, batches: list, count, timer: ComputeTimer) -> tuple[float, bool]:
        """(summed loss, ran out of memory) of the local forward and backward."""
        try:
            scale = self.control.ranks / float(count.wait()[0])
            with timer:
                self.before_forward(step)
                loss = accumulate(
                    self.ddp,
                    batches,
                    scale,
                    self.precision.autocast(),
                    self.scaler,
                    self.overlapping,
                )
            if self.overlapping and not batches:
                reduce(self.ddp)  # the other ranks are inside theirs
            return loss, False
        except torch.OutOfMemoryError:
            if self.overlapping:
                raise  # the other ranks are already inside DDP's reduction
            return 0.0, True

    def _vote(
        self, failed: bool, ids: np.ndarray, pieces: list[np.ndarray], ms: float, loss: float
    ) -> tuple[np.ndarray, float]:
        """([G, SLOT] of all ranks, seconds waited): who ran out of memory, what was measured."""
        slots = np.zeros((self.control.ranks, SLOT))
        tokens, attention = self.arm.features(pieces)
        slots[self.control.rank] = (failed, len(ids), ms, tokens, attention, loss)
        begin = time.perf_counter()
        votes = self.control.post_sum(slots.ravel()).wait().reshape(slots.shape)
        return votes, time.perf_counter() - begin

    def _redo(
        self, ids: np.ndarray, attempt: int, votes: np.ndarray, timer: ComputeTimer
    ) -> tuple[float, np.ndarray]:
        """Every rank drops its gradients and repeats the step in micro-batches half as large.

        Raises:
            torch.OutOfMemoryError: when single samples do not fit either.
        """
        limits = self.limits
        size = halved(votes[:, 1].astype(int).tolist(), limits, attempt)
        if not size:
            raise torch.OutOfMemoryError("a micro-batch of one sample does not fit")
        self.optimizer.zero_grad(set_to_none=True)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        pieces = split_ids(ids, min(size, limits[self.control.rank]))
        scale = self.control.ranks / float(votes[:, 1].sum())
        loss, failed = 0.0, False
        try:
            with timer:
                autocast = self.precision.autocast()
                loss = accumulate(self.ddp, self.batches(pieces), scale, autocast, self.scaler)
        except torch.OutOfMemoryError:
            failed = True
        return loss, self._vote(failed, ids, pieces, timer.ms, loss)[0]

    def _update(self) -> None:
        """Sum gradients over ranks, clip, step. An overflow anywhere is an overflow everywhere:
        the sum carries it, so all scalers skip together."""
        if not self.overlapping:
            reduce(self.ddp)
        if self.scaler:
            self.scaler.unscale_(self.optimizer)
        if self.settings.max_grad_norm > 0:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.max_grad_norm)
        if self.scaler:
            before = self.scaler.get_scale()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.skipped += self.scaler.get_scale() < before
        else:
            self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad(set_to_none=True)

    def state_dict(self) -> dict:
        """Model, optimizer, schedule and scaler; the same on every rank."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "scaler": self.scaler.state_dict() if self.scaler else None,
            "counters": [self.redone, self.skipped],
        }

    def load_state_dict(self, state: dict) -> None:
        """Undo `state_dict`."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        if self.scaler:
            self.scaler.load_state_dict(state["scaler"])
        self.redone, self.skipped = state["counters"]


def halved(counts: list[int], limits: list[int], attempt: int) -> int:
    """Micro-batch size of a step that is redone for the `attempt`-th time (1, 2, ...), 0 to stop.

    The largest micro-batch of any rank, halved `attempt` times. It follows from what all ranks
    know, so that they give up together. A single sample is tried once more than it was.

    Args:
        counts: [G] samples of every rank in this step.
        limits: [G] largest micro-batch of every rank.
    """
    largest = max(min(count, limit) for count, limit in zip(counts, limits, strict=True))
    if attempt > 1 and -(-largest // 2 ** (attempt - 1)) <= 1:
        return 0
    return -(-largest // 2**attempt)


def wrap(model: Classifier, device: torch.device) -> DistributedDataParallel:
    """`model` under DDP; gradients are views of the reducer's buckets, which saves a copy.

    Buffers (constant position ids) are not synchronised: that would be a collective inside every
    forward pass, and ranks need not make the same number of forward passes.
    """
    known = inspect.signature(DistributedDataParallel).parameters
    name = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    return DistributedDataParallel(
        model,
        device_ids=[device.index] if device.type == "cuda" else None,
        gradient_as_bucket_view=True,
        **{name: False},
    )
