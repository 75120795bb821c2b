"""How many full-length samples a GPU can train on at once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import torch

from ddp_bench.training.model import Classifier

COPIES_PER_ARM = 4  # weights, gradient buckets, two moments


def largest_fitting(fits: Callable[[int], bool], limit: int) -> int:
    """Largest k <= `limit` with fits(k), by doubling then bisection; 0 when fits(1) is False.

    `fits` must be monotone: what fits, fits with fewer.
    """
    good, size = 0, 1
    while size <= limit and fits(size):
        good = size
        size *= 2
    bad = min(size, limit + 1)
    while bad - good > 1:
        middle = (good + bad) // 2
        if fits(middle):
            good = middle
        else:
            bad = middle
    return good


def synthetic_batch(size: int, length: int, vocab: int, device: torch.device) -> dict:
    """A full-length batch of random tokens: the worst case for memory."""
    ids = torch.randint(4, max(vocab, 5), (size, length), device=device)
    labels = torch.zeros(size, dtype=torch.int64, device=device)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


def copies_aside(arms: int, sharing: int) -> int:
    """Copies of the weights to set aside while one rank probes a GPU with one model on it.

    Every arm of every rank on the GPU will hold its weights, its gradient buckets and AdamW's two
    moments; the probing model's own weights and gradients are there already.
    """
    return COPIES_PER_ARM * arms * sharing - 2


def share(fits: Callable[[int], bool], limit: int, margin: float, sharing: int) -> int:
    """b_max of one of `sharing` equal ranks on a GPU whose whole free memory was probed; 0 when
    not every one of them can have a sample.

    Args:
        fits: whether so many samples fit on the GPU.
        limit: no rank needs more samples than this.
        margin: share of the memory that is used, unless all ranks can have `limit`.
    """
    found = largest_fitting(fits, limit * sharing)
    if found == limit * sharing:
        return limit
    return max(int(margin * found) // sharing, int(found >= sharing))


def probe(
    model: Classifier,
    max_length: int,
    vocab: int,
    limit: int,
    margin: float,
    device: torch.device,
    autocast: contextlib.AbstractContextManager,
    arms: int = 1,
    sharing: int = 1,
) -> int | None:
    """b_max of this rank: its part of `margin` times what its GPU can hold in one forward and
    backward. None on a CPU, which pages instead of failing.

    Args:
        arms: models that every rank will train.
        sharing: ranks on this GPU; only one of them may probe at a time.

    Raises:
        RuntimeError: when not every rank can have one sample.
    """
    if device.type != "cuda":
        return None

    def fits(size: int) -> bool:
        try:
            with autocast:
                loss, _ = model(synthetic_batch(size, max_length, vocab, device))
            loss.backward()
            return True
        except torch.OutOfMemoryError:
            return False
        finally:
            model.zero_grad(set_to_none=True)
            torch.cuda.empty_cache()

    try:
        copies = range(copies_aside(arms, sharing))
        aside = [torch.zeros_like(p) for p in model.parameters() for _ in copies]
        found = share(fits, limit, margin, sharing)
        del aside
    except torch.OutOfMemoryError:
        found = 0
    if not found:
        raise RuntimeError(
            f"{arms} model(s) and one sample of {max_length} tokens for each of {sharing} rank(s) "
            f"do not fit in {device}'s memory"
        )
    torch.cuda.empty_cache()  # for the rank that probes next
    return found
