"""`--check_gradients`: every arm's distributed gradient against that of one global batch."""

from __future__ import annotations

import copy
import logging
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

from ddp_bench.arms import make_arm
from ddp_bench.ranks import Control
from ddp_bench.training.gradients import (
    distributed_gradient,
    global_gradient,
    relative_error,
    split_ids,
)
from ddp_bench.training.runner import wrap

if TYPE_CHECKING:
    from ddp_bench.training.trainer import Trainer

log = logging.getLogger("ddp_bench")
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}


def all_ids(ids: np.ndarray, total: int, control: Control) -> np.ndarray:
    """The global batch's sample ids on every rank, from each rank's share."""
    counts = np.zeros(control.ranks, np.int64)
    counts[control.rank] = len(ids)
    counts = control.post_sum(counts).wait()
    start = int(counts[: control.rank].sum())
    table = np.zeros(total, np.int64)
    table[start : start + len(ids)] = ids
    return control.post_sum(table).wait()


def check_gradients(trainer: Trainer) -> dict[str, dict[str, float]]:
    """Relative error of every arm's gradient in float64 and float32, whole and accumulated.

    Dropout is off, arms are fresh (the run's own are not touched). Rank 0 computes the reference
    from all samples; gradients are the same on all ranks after the reduction.

    Raises:
        RuntimeError: when an error exceeds its tolerance.
    """
    found: dict[str, dict[str, float]] = {label: {} for label in trainer.runners}
    model = trainer.new_model().eval()
    for dtype, tolerance in TOLERANCE.items():
        module = copy.deepcopy(model).to(dtype)
        ddp = wrap(module, trainer.device)
        for label in trainer.runners:
            for name, error in _errors(trainer, label, module, ddp).items():
                key = f"{str(dtype).removeprefix('torch.')}_{name}"
                found[label][key] = error
                if not error <= tolerance:
                    raise RuntimeError(
                        f"gradient check: arm {label}, {key}: relative error {error:.2e}, "
                        f"allowed {tolerance:.0e}"
                    )
    if trainer.control.rank == 0:
        kinds = next(iter(found.values()))
        worst = {kind: max(errors[kind] for errors in found.values()) for kind in kinds}
        text = ", ".join(f"{kind} {value:.1e}" for kind, value in worst.items())
        log.info("gradients match one global batch; worst relative error: %s", text)
    return found


def _errors(
    trainer: Trainer, label: str, module: torch.nn.Module, ddp: DistributedDataParallel
) -> dict[str, float]:
    """Errors of one arm's first step: its local batches whole, and accumulated in pieces of 3."""
    settings, control, runner = trainer.settings, trainer.control, trainer.runners[label]
    arm = make_arm(runner.arm.spec, settings, trainer.train.lengths, control, trainer.caps)
    share = arm.next()
    ids = all_ids(share.ids, settings.global_batch, control)
    wanted = None
    if control.rank == 0:
        batch = trainer.collate.padded(trainer.train, ids)
        wanted = global_gradient(module, {k: v.to(trainer.device) for k, v in batch.items()})
    errors = {}
    for name, size in (("whole", None), ("accumulated", 3)):
        local = runner.batches(split_ids(share.ids, size))
        overlap = settings.sync == "overlap"
        gradient = distributed_gradient(ddp, local, len(ids), control.ranks, overlap)
        error = None if wanted is None else relative_error(gradient, wanted)
        errors[name] = control.share(error)
    return errors
