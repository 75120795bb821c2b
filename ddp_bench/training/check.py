"""`--check_gradients`: every arm's distributed gradient against that of one global batch."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable

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
from ddp_bench.training.model import Classifier
from ddp_bench.training.runner import Runner, wrap

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


def check_gradients(
    runners: dict[str, Runner], new_model: Callable[[], Classifier]
) -> dict[str, dict[str, float]]:
    """Relative error of every arm's gradient in float64 and float32, whole and accumulated.

    Dropout is off. Every arm is built anew, so that the run's own arms stay as they are. Rank 0
    computes the reference from all samples. After the reduction all ranks hold the same gradient.

    Args:
        runners: one per arm, by label; all of the same run.
        new_model: makes a model with the run's initial weights, on the device.

    Raises:
        RuntimeError: when an error exceeds its tolerance.
    """
    found: dict[str, dict[str, float]] = {label: {} for label in runners}
    model = new_model().eval()
    first = next(iter(runners.values()))
    for dtype, tolerance in TOLERANCE.items():
        module = copy.deepcopy(model).to(dtype)
        ddp = wrap(module, first.device)
        for label, runner in runners.items():
            for name, error in _errors(runner, module, ddp).items():
                key = f"{str(dtype).removeprefix('torch.')}_{name}"
                found[label][key] = error
                if not error <= tolerance:
                    raise RuntimeError(
                        f"gradient check: arm {label}, {key}: relative error {error:.2e}, "
                        f"allowed {tolerance:.0e}"
                    )
    if first.control.rank == 0:
        kinds = next(iter(found.values()))
        worst = {kind: max(errors[kind] for errors in found.values()) for kind in kinds}
        text = ", ".join(f"{kind} {value:.1e}" for kind, value in worst.items())
        log.info("gradients match one global batch; worst relative error: %s", text)
    return found


def _errors(
    runner: Runner, module: torch.nn.Module, ddp: DistributedDataParallel
) -> dict[str, float]:
    """Errors of one arm's first step: its local batches whole, and accumulated in pieces of 3."""
    settings, control = runner.settings, runner.control
    arm = make_arm(runner.arm.spec, settings, runner.data.lengths, control, runner.arm.caps)
    share = arm.next()
    ids = all_ids(share.ids, settings.global_batch, control)
    wanted = None
    if control.rank == 0:
        batch = runner.collate.padded(runner.data, ids)
        wanted = global_gradient(module, {k: v.to(runner.device) for k, v in batch.items()})
    errors = {}
    for name, size in (("whole", None), ("accumulated", 3)):
        local = runner.batches(split_ids(share.ids, size))
        gradient = distributed_gradient(ddp, local, len(ids), control.ranks, runner.overlapping)
        error = None if wanted is None else relative_error(gradient, wanted)
        errors[name] = control.share(error)
    return errors
