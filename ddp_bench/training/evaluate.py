"""Accuracy on held-out rows, and the check that every arm draws the same stream."""

from __future__ import annotations

import numpy as np
import torch

from ddp_bench.arms import Arm
from ddp_bench.data import PrefixDigest, TokenSet
from ddp_bench.ranks import Control
from ddp_bench.training.runner import Runner

_MASK = (1 << 64) - 1


def evaluate(runner: Runner, data: TokenSet, control: Control) -> tuple[dict, np.ndarray]:
    """Loss and accuracy over `data`, shared out over ranks.

    Returns:
        ({"accuracy", "loss", "n"}, [n] 1 where the row was classified correctly), all ranks alike.
    """
    mine = np.arange(control.rank, len(data), control.ranks)
    mine = mine[np.argsort(data.lengths[mine], kind="stable")]
    correct = np.zeros(len(data))
    loss = 0.0
    runner.model.eval()
    with torch.no_grad():
        for start in range(0, len(mine), 64):
            ids = mine[start : start + 64]
            batch = {k: v.to(runner.device) for k, v in runner.collate.padded(data, ids).items()}
            with runner.precision.autocast():
                summed, logits = runner.model(batch)
            loss += float(summed)
            correct[ids] = (logits.argmax(1) == batch["labels"]).cpu().numpy()
    runner.model.train()
    total = control.post_sum(np.append(correct, loss)).wait()
    hits = total[:-1]
    return {"accuracy": hits.mean(), "loss": total[-1] / len(data), "n": len(data)}, hits


def verify_stream(arm: Arm, control: Control, prefix: PrefixDigest) -> dict:
    """Whether what all ranks used plus what they hold is exactly the stream's prefix [0, cursor).

    Returns:
        {"cursor", "used", "held", "epochs_done", "stream_ok"}; `epochs_done` counts whole epochs
        of which every sample has been drawn exactly once.
    """
    total = control.post_sum(arm.account()).wait().view(np.uint64)
    used, used_digest, held, held_digest = (int(value) for value in total)
    whole = used + held == arm.cursor
    same = (used_digest + held_digest) & _MASK == prefix.at(arm.cursor)
    return {
        "cursor": arm.cursor,
        "used": used,
        "held": held,
        "epochs_done": arm.cursor // arm.stream.rows,
        "stream_ok": whole and same,
    }
