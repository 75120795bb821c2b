"""How many full-length samples a GPU can train on at once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import torch

from ddp_bench.model import Classifier


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


def probe(
    model: Classifier,
    max_length: int,
    vocab: int,
    limit: int,
    margin: float,
    device: torch.device,
    autocast: contextlib.AbstractContextManager,
) -> int | None:
    """b_max of this GPU: `margin` times what one forward and backward can hold.

    Room for the optimizer's two moments is set aside while probing. None on a CPU, which pages
    instead of failing.

    Raises:
        RuntimeError: when not even one sample fits.
    """
    if device.type != "cuda":
        return None
    aside = [torch.zeros_like(p) for p in model.parameters() for _ in range(3)]

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

    found = largest_fitting(fits, limit)
    del aside
    if not found:
        raise RuntimeError(f"one sample of {max_length} tokens does not fit in {device}'s memory")
    return found if found == limit else max(1, int(margin * found))
