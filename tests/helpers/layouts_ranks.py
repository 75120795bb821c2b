"""What ranks of the layouts' tests do: functions that a rank can import."""

import os
import resource
import signal
from pathlib import Path

from torch.distributed.checkpoint import FileSystemWriter

from ddp_bench.layouts import checkpoint, move
from ddp_bench.layouts.layout import parse_layout
from ddp_bench.layouts.relayout import go_on
from ddp_bench.layouts.trainer import Trainer


def losses(ranks, task, names, steps):
    """Name -> (loss of every step, numbers of its samples)."""
    return {name: go_on(Trainer(parse_layout(name), task, ranks.device), steps) for name in names}


def die_while_saving(ranks, task, name, folder):
    """Save; train; the last rank is killed while it writes the next checkpoint."""
    trainer = Trainer(parse_layout(name), task, ranks.device)
    go_on(trainer, 2)
    checkpoint.save(trainer, Path(folder))
    go_on(trainer, 2)
    if ranks.rank == ranks.ranks - 1:
        FileSystemWriter.write_data = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    checkpoint.save(trainer, Path(folder))


def save_on_a_full_disk(ranks, task, name, folder):
    """Save; train; no file can grow while the next checkpoint is written."""
    trainer = Trainer(parse_layout(name), task, ranks.device)
    go_on(trainer, 2)
    checkpoint.save(trainer, Path(folder))
    go_on(trainer, 2)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (256, resource.RLIM_INFINITY))
    try:
        checkpoint.save(trainer, Path(folder))
    finally:  # the rank still has to say what went wrong
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def save_what_is_not_finite(ranks, task, name, folder, is_noticed):
    """Save; one weight of the last rank gets a gradient that is NaN; train on, or save."""
    trainer = Trainer(parse_layout(name), task, ranks.device)
    go_on(trainer, 2)
    checkpoint.save(trainer, Path(folder))
    if ranks.rank == ranks.ranks - 1:
        weight = next(iter(trainer.parameters.values()))
        weight.register_hook(lambda gradient: gradient * float("nan"))
    go_on(trainer, 1 + is_noticed)
    checkpoint.save(trainer, Path(folder))


def save_often(ranks, task, name, folder, times):
    """Names of the checkpoints that are left after `times` of them."""
    trainer = Trainer(parse_layout(name), task, ranks.device)
    for _ in range(times):
        go_on(trainer, 1)
        checkpoint.save(trainer, Path(folder))
    return sorted(path.name for path in Path(folder).iterdir())


def load_only(ranks, task, name, path):
    """Ask for a checkpoint."""
    checkpoint.load(Trainer(parse_layout(name), task, ranks.device), Path(path))


def save_twice(ranks, task, name, folder):
    """Names in the folder where the checkpoint of one step was written twice."""
    trainer = Trainer(parse_layout(name), task, ranks.device)
    go_on(trainer, 2)
    checkpoint.save(trainer, Path(folder))
    checkpoint.save(trainer, Path(folder))
    return sorted(path.name for path in Path(folder).iterdir())


def die_while_replacing(ranks, task, name, folder):
    """Save; save the same step again; the first rank is killed when the old one has been put aside."""
    trainer = Trainer(parse_layout(name), task, ranks.device)
    go_on(trainer, 2)
    checkpoint.save(trainer, Path(folder))
    if ranks.rank == 0:
        really = os.replace

        def replace(source, target):
            if Path(source).name.startswith(checkpoint.WRITING):
                os.kill(os.getpid(), signal.SIGKILL)
            really(source, target)

        checkpoint.os.replace = replace
    checkpoint.save(trainer, Path(folder))


def move_what_is_not_finite(ranks, task, start, end):
    """One weight of the last rank becomes NaN; move through memory."""
    trainer = Trainer(parse_layout(start), task, ranks.device)
    go_on(trainer, 1)
    if ranks.rank == ranks.ranks - 1:
        weight = next(iter(trainer.parameters.values()))
        weight.data.view(-1)[0] = float("nan")
    move.moved(trainer, parse_layout(end))


def die_while_moving(ranks, task, start, end, folder):
    """Save; the last rank is killed while the state goes from rank to rank."""
    trainer = Trainer(parse_layout(start), task, ranks.device)
    go_on(trainer, 2)
    checkpoint.save(trainer, Path(folder))
    go_on(trainer, 1)
    if ranks.rank == ranks.ranks - 1:
        move._bunches = lambda sizes: os.kill(os.getpid(), signal.SIGKILL)
    move.moved(trainer, parse_layout(end))


def raise_in_backward(ranks, task, name, folder):
    """Save; a hook of one weight of the last rank raises in the next backward pass."""
    trainer = Trainer(parse_layout(name), task, ranks.device)
    go_on(trainer, 2)
    checkpoint.save(trainer, Path(folder))
    if ranks.rank == ranks.ranks - 1:

        def refuse(gradient):
            raise ValueError("three is too many")

        next(iter(trainer.parameters.values())).register_hook(refuse)
    go_on(trainer, 1)


def digests_in_bunches(ranks, task, names, sizes):
    """Digests behind moves through memory, with messages of at most so many bytes."""
    out, trainer = [], Trainer(parse_layout(names[0]), task, ranks.device)
    go_on(trainer, 2)
    for name in names:
        for size in sizes:
            move.BUNCH = size
            trainer = move.moved(trainer, parse_layout(name))
            out.append(move.digest(trainer))
    return out
