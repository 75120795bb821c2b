"""What one rank does in a step under one plan."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)
from torch.nn.parallel import DistributedDataParallel

from ddp_bench.parallel.corpus import Corpus
from ddp_bench.parallel.groups import Groups, pipelines, require_order
from ddp_bench.parallel.job import Job
from ddp_bench.parallel.model import Chunk, token_loss
from ddp_bench.parallel.outer import OuterSync
from ddp_bench.parallel.plan import TrainPlan, holders, seats, sequences_of, units_of
from ddp_bench.parallel.sync import BucketSync, unit_of
from ddp_bench.parallel.wire import Wire

SINGLE = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
HELD_OUT = 10**9  # first of the sequences that no step reaches
MOMENTS = ("exp_avg", "exp_avg_sq", "step")


@dataclass(frozen=True)
class StepTimes:
    """One step of one rank. Waiting is what the clock shows beyond this thread's CPU time."""

    wall_s: float
    compute_s: float
    wait_s: float
    sync_s: float  # of it, in sums after the backward pass and in outer syncs
    loss: float | None  # its part of the mean loss of the global batch, None without the head


class Engine:
    """One rank's part of the model, its optimizer and its messages under a plan.

    All ranks of the job make theirs together. A rank that the plan does not use has no seat.
    """

    def __init__(self, job: Job, plan: TrainPlan, rank: int, groups: Groups) -> None:
        self.job, self.plan, self.rank = job, plan, rank
        groups.prepare(plan, job.ranks, job.model.layers)
        self.seat = seats(plan, job.ranks).get(rank)
        self._corpus = Corpus(job.seed, job.seq)
        self._sync_s = 0.0
        if self.seat is None:
            return
        self._pipeline = plan.pipelines[self.seat.pipeline]
        units = units_of(plan, self.seat, job.model.layers)
        half = job.activation_bits == 16
        self.chunks = [Chunk(job.model, chunk, job.seed, job.pace_s, half) for chunk in units]
        self.parameters = {
            name: parameter for chunk in self.chunks for name, parameter in chunk.named_parameters()
        }
        self.optimizer = torch.optim.AdamW(self.parameters.values(), lr=job.learning_rate)
        # Under local SGD the mean is over the pipeline's own sequences.
        batch = job.global_batch if plan.sync_period == 1 else self._pipeline.sequences
        self._share = self._pipeline.micro_batch / batch
        self._made_of = holders(plan, job.ranks, job.model.layers)
        self._ddp = self._make_ddp(groups)
        self._buckets = None if self._ddp else self._make_buckets(groups)
        self._outer = self._make_outer(groups)
        self._schedule = self._make_schedule(groups) if self._pipeline.stages > 1 else None

    # --- parts ------------------------------------------------------------------------------------

    def _make_ddp(self, groups: Groups) -> DistributedDataParallel | None:
        """torch's own data parallelism where every pipeline is one stage and sums are flat."""
        plan = self.plan
        alone = all(p.stages == 1 for p in plan.pipelines)
        everybody = [r for replicas in self._made_of[0] for r in replicas]
        flat = plan.sync_period == 1 and plan.reduce == "flat" and len(everybody) > 1
        if not alone or not flat:
            return None
        group = groups.of(everybody)
        ddp = DistributedDataParallel(
            self.chunks[0],
            process_group=group,
            bucket_cap_mb=self.job.bucket_mb,
            init_sync=False,  # weights are made alike
        )
        if plan.wire_bits == 16:
            ddp.register_comm_hook(group, default_hooks.fp16_compress_hook)
        elif plan.wire_bits == 8:
            wire, ranks = Wire(group, 8), len(everybody)

            def hook(_, bucket):  # torch compares annotations, and refuses those that are text
                pending = wire.start(bucket.buffer(), str(bucket.index()))
                return pending.future().then(lambda done: done.value() / ranks)

            ddp.register_comm_hook(None, hook)
        self._share *= len(everybody)  # it takes means, and the loss is a part of a sum
        return ddp

    def _make_buckets(self, groups: Groups) -> BucketSync:
        plan, made_of = self.plan, self._made_of
        local = plan.sync_period > 1
        if local:  # only the replicas of its own pipeline
            made_of = [[of_unit[self.seat.pipeline]] for of_unit in made_of]
        return BucketSync(
            self.parameters,
            made_of,
            groups,
            32 if local else plan.wire_bits,
            not local and plan.reduce == "hierarchical",
            self.job.bucket_mb,
            self.rank,
        )

    def _make_outer(self, groups: Groups) -> OuterSync | None:
        plan, job = self.plan, self.job
        if plan.sync_period == 1:
            return None
        return OuterSync(
            self.parameters,
            self._made_of,
            groups,
            period=plan.sync_period,
            fragments=plan.fragments,
            overlap=plan.overlap,
            bits=plan.wire_bits,
            learning_rate=job.outer_learning_rate,
            momentum=job.outer_momentum,
            weight=self._pipeline.sequences / job.global_batch,
            rank=self.rank,
        )

    def _make_schedule(self, groups: Groups):
        """torch's pipeline schedule over this replica's ranks."""
        members = pipelines(self.plan, self.job.ranks)[self.seat.pipeline, self.seat.replica]
        group, stages = groups.of(members), len(members)
        total, size = stages * len(self.chunks), self._pipeline.micro_batch
        at = {i: dist.get_group_rank(group, members[i % stages]) for i in range(total)}
        hidden = torch.empty(size, self.job.seq, self.job.model.hidden, requires_grad=True)
        made = []
        for c, chunk in enumerate(self.chunks):
            stage = PipelineStage(
                chunk, self.seat.stage + c * stages, total, hidden.device, group=group
            )
            stage.stage_index_to_group_rank = at
            made.append(stage)

        def loss(logits: Tensor, targets: Tensor) -> Tensor:
            return self._share * token_loss(logits, targets)

        settings = {"loss_fn": loss, "scale_grads": False}
        if self._pipeline.schedule == "interleaved":
            require_order(group, members)
            return ScheduleInterleaved1F1B(made, self._pipeline.micro_batches, **settings)
        kind = SINGLE[self._pipeline.schedule]
        return kind(made[0], self._pipeline.micro_batches, **settings)

    # --- a step -----------------------------------------------------------------------------------

    def step(self, number: int) -> StepTimes:
        """Train on the sequences of one step."""
        if self.seat is None:
            return StepTimes(0.0, 0.0, 0.0, 0.0, None)
        begun, used, self._sync_s = time.perf_counter(), time.thread_time(), 0.0
        first, last = sequences_of(self.plan, self.seat)
        start = number * self.job.global_batch
        rows = self._corpus.batch(start + first, start + last)
        inputs, targets = (torch.from_numpy(part) for part in rows)
        self.optimizer.zero_grad()
        loss = self._pass(inputs, targets)
        if self._buckets is not None:
            self._timed(self._buckets.sum_gradients)
        self.optimizer.step()
        if self._outer is not None:
            self._timed(lambda: self._outer.after_step(number))
        wall, compute = time.perf_counter() - begun, time.thread_time() - used
        return StepTimes(wall, compute, max(wall - compute, 0.0), self._sync_s, loss)

    def _timed(self, work) -> None:
        begun = time.perf_counter()
        work()
        self._sync_s += time.perf_counter() - begun

    def _pass(self, inputs: Tensor, targets: Tensor) -> float | None:
        """Forward and backward over the replica's micro-batches; its part of the loss."""
        if self._schedule is None:
            return self._alone(inputs, targets)
        losses: list[Tensor] = []
        units = [u for chunk in self.chunks for u in chunk.units]
        is_last = int(units[-1]) == self.job.model.layers + 1
        first = (inputs,) if int(units[0]) == 0 else ()
        last = {"target": targets, "losses": losses} if is_last else {}
        self._schedule.step(*first, **last)
        return self._part(sum(loss.item() for loss in losses)) if is_last else None

    def _alone(self, inputs: Tensor, targets: Tensor) -> float:
        """A pipeline of one stage: gradients are summed with the last micro-batch's backward."""
        model, total = self._ddp or self.chunks[0], 0.0
        parts = list(
            zip(*(x.split(self._pipeline.micro_batch) for x in (inputs, targets)), strict=True)
        )
        for n, (x, y) in enumerate(parts):
            if self._ddp is not None:
                self._ddp.require_backward_grad_sync = n == len(parts) - 1
            loss = self._share * token_loss(model(x), y)
            loss.backward()
            total += loss.item()
        return self._part(total)

    def _part(self, scaled: float) -> float:
        """A sum of scaled losses as a part of the mean over the global batch."""
        return scaled * self._pipeline.micro_batch / (self._share * self.job.global_batch)

    def complete(self) -> None:
        """Before the plan ends: pipelines that train on their own come together."""
        if self.seat is not None and self._outer is not None:
            self._outer.complete()

    def held_out_loss(self) -> float | None:
        """Mean loss of sequences that no step trains on, by a rank that holds the whole model."""
        if self.seat is None or self._schedule is not None:
            return None
        first = HELD_OUT
        rows = self._corpus.batch(first, first + self.job.held_out)
        inputs, targets = (torch.from_numpy(part) for part in rows)
        with torch.no_grad():
            return float(token_loss(self.chunks[0](inputs), targets))

    # --- state ------------------------------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        """Weights and AdamW's moments, by names that do not depend on the plan."""
        out = {}
        for name, parameter in self.parameters.items():
            out[f"param/{name}"] = parameter.detach()
            moments = self.optimizer.state[parameter]
            for key in MOMENTS:
                there = moments.get(key)
                blank = torch.zeros(()) if key == "step" else torch.zeros_like(parameter)
                out[f"{key}/{name}"] = blank if there is None else there.detach()
        return out

    def load(self, state: dict[str, Tensor]) -> None:
        """Take over a state; of other names nothing is read."""
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(state[f"param/{name}"])
                self.optimizer.state[parameter] = {
                    key: state[f"{key}/{name}"].clone() for key in MOMENTS
                }
        if self._outer is not None:
            self._outer.set_anchor()

    def holds(self) -> set[int]:
        """The units of this rank."""
        return set() if self.seat is None else {unit_of(name) for name in self.parameters}
