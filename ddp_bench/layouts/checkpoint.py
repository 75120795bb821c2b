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
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from ddp_bench.errors import ConfigError
from ddp_bench.layouts.trainer import Task, Trainer, local
from ddp_bench.toolbox import checkpoint_errors

ABOUT = "about.json"
WRITING = ".writing-"
OLD = ".old"  # of a checkpoint that another one of the same step is about to replace
PLACE = re.compile(rf"step-(\d{{8}})({re.escape(OLD)})?")
KEPT = 2


def save(trainer: Trainer, folder: Path) -> Path:
    """Write the state behind the present step into `folder`; the checkpoint's own folder.

    Collective. The checkpoints before this one, but for one, are removed once it is whole.

    Raises:
        ArithmeticError: where a weight or a state of the optimizer is not finite, on every rank;
            nothing is written.
        CheckpointFailed: where it cannot be written, such as on a full disk; those before stay.
    """
    check_finite(trainer, "saved")
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
        _replace(beside, path)
        for old in checkpoints(folder)[:-KEPT]:
            shutil.rmtree(old)
    dist.barrier()
    return path


def _replace(beside: Path, path: Path) -> None:
    """Put a folder that is whole into its place. At every moment a whole one has the name, or the name
    with OLD behind it; all of it is on the disk before it has the name."""
    for part in (*beside.rglob("*"), beside):
        _flush(part)
    old = path.with_name(path.name + OLD)
    if path.exists():
        shutil.rmtree(old, ignore_errors=True)
        os.replace(path, old)
    os.replace(beside, path)
    _flush(path.parent)
    shutil.rmtree(old, ignore_errors=True)


def _flush(path: Path) -> None:
    """Wait until a file or a folder's list of names is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_finite(trainer: Trainer, done: str) -> None:
    """Refuse a state that is not finite. A gradient that was not finite spoils the state of one rank
    at first: such a checkpoint would take the place of a usable one. Collective.

    Args:
        done: what is not done then, such as "saved".

    Raises:
        ArithmeticError: naming a tensor, on every rank.
    """
    spoilt = [name for name, t in trainer.state().items() if not torch.isfinite(local(t)).all()]
    count = torch.tensor([len(spoilt)], device=trainer.device)
    dist.all_reduce(count)
    if not count.item():
        return
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, spoilt)
    rank, name = next((rank, names[0]) for rank, names in enumerate(everyone) if names)
    step = trainer.step_number
    raise ArithmeticError(
        f"step {step}: the state is not finite and is not {done} (rank {rank}: {name})"
    )


def checkpoints(folder: Path) -> list[Path]:
    """Whole checkpoints, the latest last."""
    if not folder.is_dir():
        return []
    names = {path.name for path in folder.iterdir() if PLACE.fullmatch(path.name)}
    whole = {name for name in names if (folder / name / ABOUT).is_file()}
    # One that was being replaced counts where the new one is not there yet.
    last = {name.removesuffix(OLD) for name in whole}
    return [folder / (name if name in whole else name + OLD) for name in sorted(last)]


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
