"""`--check_gradients`: every arm's distributed gradient against that of one global batch."""

from __future__ import annotations

import copy
import logging
from typing import TYPE_CHECKING

import numpy as np
import torch

from ddp_bench.arms import make_arm
from ddp_bench.comm import Control
from ddp_bench.gradients import relative_error, split_ids
from ddp_bench.runner import wrap

if TYPE_CHECKING:
    from ddp_bench.trainer import Trainer

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


def check_gradients(trainer: Trainer) -> dict:
    """Relative error of every arm's gradient in float64 and float32, whole and accumulated.

    Dropout is off, arms are fresh (the run's own are not touched).

    Raises:
        RuntimeError: when an error exceeds its tolerance.
    """
    settings, control = trainer.settings, trainer.control
    overlap = settings.sync == "overlap"
    found: dict[str, dict[str, float]] = {}
    model = trainer.new_model().eval()
    for dtype, tolerance in TOLERANCE.items():
        module = copy.deepcopy(model).to(dtype)
        ddp = wrap(module, trainer.device)
        for label, runner in trainer.runners.items():
            arm = make_arm(runner.arm.spec, settings, trainer.train.lengths, control, trainer.caps)
            share = arm.next()
            ids = all_ids(share.ids, settings.global_batch, control)
            whole = {
                k: v.to(trainer.device)
                for k, v in trainer.collate.padded(trainer.train, ids).items()
            }
            for name, size in (("whole", None), ("accumulated", 3)):
                local = runner.batches(split_ids(share.ids, size))
                error = relative_error(ddp, module, local, whole, control.ranks, overlap)
                key = f"{str(dtype).removeprefix('torch.')}_{name}"
                found.setdefault(label, {})[key] = error
                if not error <= tolerance:
                    raise RuntimeError(
                        f"gradient check: arm {label}, {key}: relative error {error:.2e}, "
                        f"allowed {tolerance:.0e}"
                    )
    if control.rank == 0:
        kinds = next(iter(found.values()))
        worst = {kind: max(errors[kind] for errors in found.values()) for kind in kinds}
        text = ", ".join(f"{kind} {value:.1e}" for kind, value in worst.items())
        log.info("gradients match one global batch; worst relative error: %s", text)
    return found
