"""A training's state on disk, in a form that every layout and number of ranks can read.

torch.distributed.checkpoint writes what each rank holds and reads what each rank asks for. A
checkpoint is written beside its place and then renamed: one that has its name is whole.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from ddp_bench.errors import ConfigError
from ddp_bench.layouts.trainer import Task, Trainer, local
from ddp_bench.toolbox import checkpoint_errors

ABOUT = "about.json"
WRITING = ".writing-"
PLACE = re.compile(r"step-(\d{8})")
KEPT = 2


def save(trainer: Trainer, folder: Path) -> Path:
    """Write the state behind the present step into `folder`; the checkpoint's own folder.

    Collective. The checkpoints before this one, but for one, are removed once it is whole.

    Raises:
        ArithmeticError: where a weight or a state of the optimizer is not finite, on every rank;
            nothing is written.
        CheckpointFailed: where it cannot be written, such as on a full disk; those before stay.
    """
    _check_finite(trainer)
    path = folder / f"step-{trainer.step_number:08d}"
    beside = folder / f"{WRITING}{path.name}"
    is_first = dist.get_rank() == 0
    if is_first:
        shutil.rmtree(beside, ignore_errors=True)  # of a run that was killed here
        folder.mkdir(parents=True, exist_ok=True)
    dist.barrier()
    with checkpoint_errors():
        dcp.save(trainer.state(), storage_writer=dcp.FileSystemWriter(beside))
    dist.barrier()
    if is_first:
        about = {"step": trainer.step_number, "layout": trainer.layout.name}
        about["task"] = dataclasses.asdict(trainer.task)
        (beside / ABOUT).write_text(json.dumps(about))
        if path.exists():  # of the same step: the state is the same
            shutil.rmtree(path)
        os.replace(beside, path)
        for old in checkpoints(folder)[:-KEPT]:
            shutil.rmtree(old)
    dist.barrier()
    return path


def _check_finite(trainer: Trainer) -> None:
    """A gradient that was not finite spoils the state of one rank at first; a checkpoint would take
    the place of a usable one."""
    spoilt = [name for name, t in trainer.state().items() if not torch.isfinite(local(t)).all()]
    count = torch.tensor([len(spoilt)], device=trainer.device)
    dist.all_reduce(count)
    if count.item():
        where = f" (here {spoilt[0]})" if spoilt else ""
        step = trainer.step_number
        raise ArithmeticError(f"step {step}: the state is not finite and is not saved{where}")


def checkpoints(folder: Path) -> list[Path]:
    """Whole checkpoints, the latest last."""
    if not folder.is_dir():
        return []
    found = (path for path in folder.iterdir() if PLACE.fullmatch(path.name))
    return sorted(path for path in found if (path / ABOUT).is_file())


def latest(folder: Path) -> Path:
    """The last checkpoint that is whole.

    Raises:
        ConfigError: where there is none.
    """
    found = checkpoints(folder)
    if not found:
        raise ConfigError(f"{folder}: allowed is a folder with a checkpoint")
    return found[-1]


def load(trainer: Trainer, path: Path) -> None:
    """Go on from a checkpoint, whatever layout wrote it. Collective.

    Raises:
        ConfigError: for a checkpoint of another model, batch or seed.
        CheckpointFailed: where it cannot be read.
    """
    about = json.loads((path / ABOUT).read_text())
    _check(about["task"], trainer.task, path)
    with warnings.catch_warnings(), checkpoint_errors():
        warnings.simplefilter("ignore")  # it warns of what a single rank does not need
        dcp.load(trainer.state(), storage_reader=dcp.FileSystemReader(path))
    trainer.at(about["step"])


def _check(written: dict, task: Task, path: Path) -> None:
    mine = json.loads(json.dumps(dataclasses.asdict(task)))
    for key, value in mine.items():
        if written.get(key) != value:
            raise ConfigError(f"{path}: {key} is {written.get(key)}; allowed to resume is {value}")
