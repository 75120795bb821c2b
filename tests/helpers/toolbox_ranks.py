"""What ranks of the toolbox's tests do: functions that a rank can import."""

import os
import signal
import threading
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddp_bench.communication import METHODS, Channel, SwitchingHook
from ddp_bench.communication.training import Run, _Training, train_on_rank
from ddp_bench.microbench import steps
from ddp_bench.microbench.collectives import COLLECTIVES, collectives_on_rank
from ddp_bench.toolbox import Repeats


def add_up(ranks, start):
    """(own number, sum over ranks of start + own number)."""
    total = torch.tensor(float(start + ranks.rank))
    dist.all_reduce(total)
    return ranks.rank, total.item()


def fail(ranks, how, which):
    """Rank `which` raises, dies or stalls; the others wait for it."""
    if ranks.rank == which:
        if how == "raise":
            raise ValueError("three is too many\nand more")
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(3600)
    dist.barrier()


def fail_once(ranks, folder):
    """The last rank dies in the first attempt."""
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    if attempt == 0 and ranks.rank == ranks.ranks - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()
    return attempt


def die_while_measuring(ranks, after_s):
    """The last rank is killed in the middle of timed collectives."""
    if ranks.rank == ranks.ranks - 1:
        threading.Timer(after_s, os.kill, (os.getpid(), signal.SIGKILL)).start()
    collectives_on_rank(ranks, ["all_reduce"], [1 << 16], Repeats(10**6))


def send_everything(ranks):
    """Kind -> what this rank's buffers hold after one message of numbers that tell ranks apart."""
    held = {}
    for name, collective in COLLECTIVES.items():
        buffer = torch.full((2 * ranks.ranks,), float(ranks.rank + 1))
        send = collective.make(buffer, ranks.rank, ranks.ranks)
        send()
        cells = [c.cell_contents for c in send.__closure__]
        held[name] = [c.tolist() for c in cells if isinstance(c, torch.Tensor)]
    return held


def reduce_gradients(ranks, name, steps, poison):
    """Sum over steps of what a method makes of known gradients, and whether a step with NaN on the last
    rank was seen here and left nothing behind."""
    method, channel = METHODS[name](), Channel(ranks.ranks)
    total = torch.zeros(64 * 48 + 48)
    seen = None
    for step in range(steps):
        generator = torch.Generator().manual_seed(step // 1000 + ranks.rank)
        flat = torch.randn(64 * 48 + 48, generator=generator)
        if step == poison and ranks.rank == ranks.ranks - 1:
            flat[7] = float("nan")
        parts = [flat[: 64 * 48].view(64, 48), flat[64 * 48 :]]
        method.reduce(0, flat, parts, channel)
        if step == poison:
            seen = not bool(torch.isfinite(flat).all())
        else:
            total += flat
    return total.tolist(), seen, [tuple(m) for m in channel.take()]


def scatter_gradients(ranks, name, steps, poison):
    """Sum over steps of this rank's part of the mean of known gradients; whether a step with NaN in the
    first rank's part of the last rank's gradients is seen by the first, and what is owed behind it."""
    method, channel = METHODS[name](), Channel(ranks.ranks)
    half = 1500  # no whole number of blocks
    total, seen, owed = torch.zeros(half), None, []
    for step in range(steps):
        generator = torch.Generator().manual_seed(step // 1000 + ranks.rank)
        flat = torch.randn(2 * half, generator=generator)
        if step == poison and ranks.rank == ranks.ranks - 1:
            flat[7] = float("nan")
        own = method.reduce_scatter(0, flat, channel)
        if step == poison:
            seen, owed = not bool(torch.isfinite(own).all()), list(getattr(method, "_owed", []))
        else:
            total += own
    return total.tolist(), seen, owed, [m.wire for m in channel.take()]


def train_sharded_poisoned(ranks, name, at):
    """(what a step with NaN on the last rank left owed, losses) of a model that FSDP2 shards."""
    training = _Training(ranks, Run(name, seed=0, steps=6, is_sharded=True))
    hook, owed, seen = training._hook, [], [-1]
    really = hook.reduce_scatter

    def spoil(unit, flat):
        seen[0] += unit == 0
        if seen[0] == at and unit == 0 and ranks.rank == ranks.ranks - 1:
            flat *= float("nan")
        return really(unit, flat)

    def after_step():
        if seen[0] == at:
            owed.extend(getattr(hook._method, "_owed", {}))

    hook.reduce_scatter, hook.after_step = spoil, after_step
    return owed, training.all_steps().losses


def train_sharded_with_a_raising_method(ranks):
    """The method of the last rank raises in the first step."""
    training = _Training(ranks, Run("int8", seed=0, steps=2, is_sharded=True))
    if ranks.rank == ranks.ranks - 1:
        training._hook._method.encode = None  # calling it is a TypeError
    training.all_steps()


def train_with_a_raising_hook(ranks):
    """The method of the last rank raises in the first step."""
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    hook = SwitchingHook(model, Channel(ranks.ranks), "exact")
    if ranks.rank == ranks.ranks - 1:
        hook._method.reduce = None  # calling it is a TypeError
    model(torch.ones(2, 4)).sum().backward()


def train_poisoned(ranks, name, at):
    """(weights at the end, what was owed behind step `at`): in that step one of several buckets of the
    last rank is NaN."""
    training = _Training(ranks, Run(name, seed=0, steps=8))
    model, hook, owed = training._model, training._hook, []
    weight, seen = next(model.parameters()), [-1]

    def spoil(gradient):
        seen[0] += 1
        is_here = seen[0] == at and ranks.rank == ranks.ranks - 1
        return gradient * float("nan") if is_here else gradient

    def after_step(really=hook.after_step):
        if seen[0] == at:
            owed.extend(getattr(hook._method, "_owed", {}))
        really()

    weight.register_hook(spoil)
    hook.after_step = after_step
    trained = training.all_steps()
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    return weights.tolist(), owed, trained.losses


def die_while_training(ranks):
    """The last rank is killed while all of them train."""
    if ranks.rank == ranks.ranks - 1:
        threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGKILL)).start()
    train_on_rank(ranks, [Run("int8", seed=0, steps=10**6)])


def raise_while_measuring(ranks):
    """A training step of the last rank raises."""
    if ranks.rank == ranks.ranks - 1:

        def refuse(*_):
            raise ValueError("three is too many")

        steps.token_loss = refuse
    steps.steps_on_rank(ranks, Repeats(2))


def measure_what_is_not_finite(ranks):
    """(model, talk) -> seconds, where every loss is NaN."""
    really = steps.token_loss
    steps.token_loss = lambda *given: really(*given) * float("nan")
    return steps.steps_on_rank(ranks, Repeats(2))
