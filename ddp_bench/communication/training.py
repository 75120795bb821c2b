"""Real training under one method, or under the selector, on an emulated link or on the real one."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from ddp_bench.communication.channel import Channel, Message
from ddp_bench.communication.hook import SwitchingHook
from ddp_bench.communication.links import drawn_link
from ddp_bench.communication.selector import MethodCost, Selector, is_decision
from ddp_bench.communication.sharded import ShardedHook
from ddp_bench.toolbox import SHAPES, Llama, Ranks, stopwatch, token_loss

SHAPE = SHAPES["tiny"]
ROWS, LENGTH = 4, 32
BUCKET_MB = 0.25
SELECTOR = "selector"
PLAIN = "plain"  # without a hook
PREDICTABLE = 0.8  # share of tokens that follow from the one before


@dataclass(frozen=True)
class Run:
    """What to train.

    Attributes:
        method: one of METHODS, "selector", or "plain": without a hook.
        is_sharded: by FSDP2, layer by layer; else DistributedDataParallel.
        seed: of weights and data.
        link_seed: of an emulated link that messages are charged on; None: what they take here.
        costs: what the selector chooses from.
        compute_s: of a step without messages, that the selector assumes [s].
    """

    method: str
    seed: int
    steps: int
    link_seed: int | None = None
    costs: Mapping[str, MethodCost] | None = None
    compute_s: float = 0.0
    every: int = 5
    is_sharded: bool = False


@dataclass(frozen=True)
class Trained:
    """What came out; the same on every rank.

    Attributes:
        losses: mean over ranks, one per step.
        cost: of the method: messages of a step and seconds of compression.
        compute_s: CPU seconds of a step without messages, mean [s].
        messages_s: of all messages of a step, mean [s].
        decision_s: of all decisions on rank 0, with the probes that they send [s].
        decision_cpu_s: CPU seconds of the same [s].
        chosen: method of every step.
    """

    losses: tuple[float, ...]
    cost: MethodCost
    compute_s: float
    messages_s: float
    decision_s: float
    decision_cpu_s: float
    chosen: tuple[str, ...]

    @property
    def final_loss(self) -> float:
        """Mean over the last fifth of the steps."""
        return float(np.mean(self.losses[-max(1, len(self.losses) // 5) :]))


def batch(seed: int, step: int, rank: int) -> tuple[Tensor, Tensor]:
    """Tokens and their successors: most tokens follow from the one before by a fixed table."""
    table = torch.randperm(SHAPE.vocab, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(1_000_003 * seed + 1009 * step + rank)
    noise = torch.randint(SHAPE.vocab, (ROWS, LENGTH + 1), generator=generator)
    follows = torch.rand(ROWS, LENGTH + 1, generator=generator) < PREDICTABLE
    tokens = noise.clone()
    for i in range(1, LENGTH + 1):
        tokens[:, i] = torch.where(follows[:, i], table[tokens[:, i - 1]], noise[:, i])
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def train_on_rank(ranks: Ranks, runs: list[Run]) -> list[Trained]:
    """Every run, one after the other."""
    return [_Training(ranks, run).all_steps() for run in runs]


class _NoHook:
    """What is asked of a hook, where gradients are summed as PyTorch does it."""

    name, busy_s = PLAIN, 0.0

    def after_step(self) -> None: ...
    def switch(self, name: str) -> None: ...
    def forget(self) -> None: ...
    def close(self) -> None: ...


def _spread(model: Llama, is_sharded: bool) -> nn.Module:
    """The model over all ranks: whole on each of them, or every layer sharded over them."""
    if not is_sharded:
        return DistributedDataParallel(model, bucket_cap_mb=BUCKET_MB)
    for layer in model.layers:
        fully_shard(layer)
    return fully_shard(model)


def _hook_of(
    model: nn.Module, channel: Channel, name: str
) -> _NoHook | SwitchingHook | ShardedHook:
    if name == PLAIN:
        return _NoHook()
    if isinstance(model, DistributedDataParallel):
        return SwitchingHook(model, channel, name)
    return ShardedHook(model, channel, name)


class _Training:
    """One run on one rank."""

    def __init__(self, ranks: Ranks, run: Run) -> None:
        self._ranks, self._run = ranks, run
        torch.manual_seed(run.seed)
        self._model = _spread(Llama(SHAPE).to(ranks.device), run.is_sharded)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=3e-3)
        link = None if run.link_seed is None else drawn_link(run.link_seed, run.steps)
        self._channel = Channel(ranks.ranks, link)
        self._selector = None
        if run.method == SELECTOR:
            self._selector = Selector(run.costs or {}, run.compute_s)
        first = self._selector.name if self._selector else run.method
        self._hook = _hook_of(self._model, self._channel, first)
        self._seen: list[Message] = []  # since the last decision
        self._passed_s = self._decision_s = self._decision_cpu_s = 0.0

    def all_steps(self) -> Trained:
        losses, chosen, messages, compute = [], [], [], []
        for step in range(self._run.steps):
            begin = time.thread_time()
            loss = self._step(step)
            compute.append(time.thread_time() - begin)
            messages.append(self._channel.take())
            chosen.append(self._hook.name)
            self._seen += messages[-1]
            self._passed_s += compute[-1] + sum(m.seconds for m in messages[-1])
            mean, averages = self._agree(step, loss)
            losses.append(mean)
            messages[-1] += averages
        self._hook.close()
        return Trained(
            tuple(losses),
            MethodCost(_of_a_step(messages), self._hook.busy_s / self._run.steps),
            float(np.median(compute)),
            float(np.mean([sum(m.seconds for m in of_step) for of_step in messages])),
            self._decision_s,
            self._decision_cpu_s,
            tuple(chosen),
        )

    def _step(self, step: int) -> Tensor:
        """One training step; the loss on this rank."""
        self._channel.step = step
        tokens, targets = batch(self._run.seed, step, self._ranks.rank)
        loss = token_loss(
            self._model(tokens.to(self._ranks.device)), targets.to(self._ranks.device)
        )
        loss.backward()
        if self._is_finite():
            self._optimizer.step()
        else:
            self._hook.forget()
        self._optimizer.zero_grad(set_to_none=True)
        self._hook.after_step()
        return loss.detach()

    def _is_finite(self) -> bool:
        """Is every gradient? A mean that is not, is not on every rank: all of them skip the step. By
        `local` there is no mean, and a rank skips alone."""
        gradients = [p.grad for p in self._model.parameters() if p.grad is not None]
        own = [g.to_local() if isinstance(g, DTensor) else g for g in gradients]
        total = torch.stack([g.sum() for g in own]).sum()
        if self._run.is_sharded:  # a rank sees its own part of the mean
            dist.all_reduce(total)
        return bool(torch.isfinite(total))

    def _agree(self, step: int, loss: Tensor) -> tuple[float, list[Message]]:
        """(mean loss over ranks, messages of a switch). Where a method is due for the next step,
        rank 0's choice travels in the same message: a decision sends none of its own."""
        said = torch.zeros(3, dtype=torch.float64)  # loss, number of the method, bytes of a probe
        said[0] = loss / self._ranks.ranks
        coming = step + 1
        is_due = coming < self._run.steps and is_decision(coming, self._run.every)
        if self._selector and is_due and self._ranks.rank == 0:
            said[1:] = torch.tensor(self._decided(self._selector))
        said = said.to(self._ranks.device)
        dist.all_reduce(said)
        mean, method, probe = said.tolist()
        if self._selector and is_due:
            return mean, self._obey(int(method), int(probe))
        return mean, []

    def _decided(self, selector: Selector) -> tuple[int, int]:
        """(number of the method, bytes of a probe) that rank 0 chooses."""
        busy = time.thread_time()
        with stopwatch(self._ranks.device) as seconds:
            selector.observe(self._seen, self._passed_s)
            chosen = list(selector.costs).index(selector.choose())
            probe = selector.probe_bytes()
        self._decision_s += seconds()
        self._decision_cpu_s += time.thread_time() - busy
        return chosen, probe

    def _obey(self, method: int, probe: int) -> list[Message]:
        """Switch and probe as rank 0 says; the averages of weights that were due before the switch."""
        self._hook.switch(list(self._run.costs or {})[method])
        averages = self._channel.take()
        busy = time.thread_time()
        if probe:
            self._channel.sum(torch.zeros(probe // 4, device=self._ranks.device))
        probes = self._channel.take()
        self._decision_cpu_s += time.thread_time() - busy
        self._decision_s += sum(m.seconds for m in probes)
        self._seen, self._passed_s = averages + probes, 0.0
        return averages


def _of_a_step(messages: list[list[Message]]) -> tuple[tuple[float, float], ...]:
    """(bytes, hops) of the messages of a step: those of the last one where all steps send alike, else
    one message that stands for the mean."""
    last = messages[-1]
    rest = messages[1:]  # buckets are made anew after the first step
    if all(len(of_step) == len(last) for of_step in rest) and last:
        return tuple((m.wire, m.hops) for m in last)
    wire, hops = (sum(m[i] for of_step in messages for m in of_step) for i in (0, 1))
    return ((wire / len(messages), hops / len(messages)),)


def overlap_on_rank(ranks: Ranks, repeats: int) -> dict[str, float]:
    """How much of the messages of exact gradients hides behind backward, on the real link.

    Steps with and without messages take turns. Times are medians of the slowest rank [s].
    """
    model = DistributedDataParallel(Llama(SHAPE).to(ranks.device), bucket_cap_mb=BUCKET_MB)
    channel = Channel(ranks.ranks)
    hook = SwitchingHook(model, channel, "exact")
    rows = []
    for step in range(2 * repeats + 4):
        tokens, targets = (part.to(ranks.device) for part in batch(0, step, ranks.rank))
        dist.barrier()
        with stopwatch(ranks.device) as seconds:
            if step % 2:
                token_loss(model(tokens), targets).backward()
            else:
                with model.no_sync():
                    token_loss(model(tokens), targets).backward()
        model.zero_grad(set_to_none=True)
        row = torch.tensor([seconds(), sum(m.seconds for m in channel.take())])
        dist.all_reduce(row, dist.ReduceOp.MAX)
        if step >= 4:
            rows.append(row.tolist())
    hook.close()
    alone = float(np.median([row[0] for row in rows[::2]]))
    together = float(np.median([row[0] for row in rows[1::2]]))
    messages = float(np.median([row[1] for row in rows[1::2]]))
    hidden = float(np.clip(1 - (together - alone) / messages, 0.0, 1.0))
    return {"alone_s": alone, "together_s": together, "messages_s": messages, "hidden": hidden}
