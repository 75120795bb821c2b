"""One rank of a run: steps, changes of plan, records."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tqdm import tqdm

from ddp_bench.errors import ConfigError
from ddp_bench.parallel import move
from ddp_bench.parallel.agree import Switchboard, meet
from ddp_bench.parallel.engine import Engine
from ddp_bench.parallel.groups import Groups
from ddp_bench.parallel.job import Job
from ddp_bench.parallel.plan import TrainPlan, seats, sequences_of
from ddp_bench.wan import ask, socket_of

IDLE_S = 0.05  # between two looks at the store by a rank that has nothing to do


class Records:
    """Rows of one rank, as JSON lines; whoever started the run makes tables of them."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._file = open(folder / f"rank{rank}.jsonl", "a", encoding="utf-8")  # noqa: SIM115

    def add(self, table: str, **row: Any) -> None:
        """Append a row of a table; it reaches the file at once."""
        self._file.write(json.dumps({"table": table, **row}) + "\n")
        self._file.flush()


class Worker:
    """A rank from joining the group to leaving it. `folder` is the run's, shared by all ranks."""

    def __init__(self, job: Job, rank: int, folder: Path) -> None:
        self.job, self.rank, self._folder = job, rank, folder
        self._domain = job.ranks[rank]
        self._records = Records(folder, rank)
        self._store = dist.FileStore(str(folder / "store"), len(job.ranks))
        self._store.set_timeout(timedelta(seconds=job.timeout_s))
        self._groups = Groups(job.timeout_s)
        self._plans = 0  # changes of plan so far
        self._sent: dict[tuple[str, str], int] = {}  # [B] by link at the last look

    def run(self) -> None:
        """Train to the end."""
        job = self.job
        dist.init_process_group(
            "gloo",
            store=dist.PrefixStore("world", self._store),
            rank=self.rank,
            world_size=len(job.ranks),
            timeout=timedelta(seconds=job.timeout_s),
        )
        board = Switchboard(job, self._store, self._say)
        self._take(Engine(job, job.plan, self.rank, self._groups))
        step = 0
        bar = tqdm(total=job.steps, desc="training", disable=None if self._speaks else True)
        while step < board.steps() and not (self._engine.seat is None and board.closed()):
            if self._speaks:
                board.look(step, self._engine.plan)
            coming = board.coming()
            if coming and (self._engine.seat is None or step == coming[1]):
                plan, step = coming
                self._switch(plan, step)
                board.taken()
            elif self._engine.seat is None:
                time.sleep(IDLE_S)
            else:
                self._fault(str(step))
                self._step(step)
                step += 1
                bar.update()
                if job.evaluate_every and step % job.evaluate_every == 0:
                    self._evaluate(step)
        bar.close()
        board.close()
        self._engine.complete()
        self._evaluate(step)
        self._leave()

    def _take(self, engine: Engine) -> None:
        """From now on this rank trains with `engine`."""
        self._engine = engine
        self._speaks = self.rank == min(seats(engine.plan, self.job.ranks))
        self._count_links(-1)

    def _step(self, step: int) -> None:
        times, seat = self._engine.step(step), self._engine.seat
        first, last = sequences_of(self._engine.plan, seat)
        self._records.add(
            "steps",
            step=step,
            rank=self.rank,
            domain=self._domain,
            plan_number=self._plans,
            pipeline=seat.pipeline,
            replica=seat.replica,
            stage=seat.stage,
            first=step * self.job.global_batch + first,  # of the sequences of its replica
            last=step * self.job.global_batch + last - 1,
            ended_s=time.monotonic(),  # of the machine: the same clock for all ranks
            wall_s=times.wall_s,
            compute_s=times.compute_s,
            wait_s=times.wait_s,
            sync_s=times.sync_s,
            loss_part=times.loss,
        )
        self._count_links(step)

    def _evaluate(self, step: int) -> None:
        """The loss of held-out sequences after `step` steps, by one rank."""
        if self.job.held_out and self._speaks:
            self._records.add("evaluations", step=step, loss=self._engine.held_out_loss())

    def _count_links(self, step: int) -> None:
        """What passed every link since the last look, by the emulator's counters (one rank)."""
        if not self._speaks or self.job.network is None:
            return
        counters = ask(socket_of(self.job.network), self.job.network, do="counters")
        for link in counters["links"]:
            pair, sent = (link["src"], link["dst"]), link["wire_bytes"]
            if step >= 0:
                self._records.add(
                    "links",
                    step=step,
                    src=pair[0],
                    dst=pair[1],
                    sent_mb=(sent - self._sent.get(pair, 0)) / 1e6,
                    rate_mbps=link["rate_mbps"],
                    at_s=counters["at_s"],
                    cpu_s=counters["cpu_s"],
                )
            self._sent[pair] = sent

    # --- a change of plan -------------------------------------------------------------------------

    def _switch(self, plan: TrainPlan, step: int) -> None:
        """Stop, move state, go on under `plan` before `step`."""
        job, old, begun = self.job, self._engine, time.perf_counter()
        self._plans += 1
        layers, ranks = job.model.layers, job.ranks
        folder = self._folder / f"state{self._plans}" / self._domain
        old.complete()
        completed = time.perf_counter()
        if old.seat:
            move.save(old.state(), move.saved_by(old.plan, ranks, layers, self.rank), folder)
        self._fault("switch")
        wanted = move.fetches(old.plan, plan, ranks, layers)
        self._meet("saved")
        sent = move.fetch(wanted, self.rank, folder)
        self._meet("fetched")
        moved = time.perf_counter()
        new = Engine(job, plan, self.rank, self._groups)
        if new.seat:
            new.load(move.read(new.state(), sorted(new.holds()), folder))
        self._meet("loaded")
        move.clear(folder)
        self._records.add(
            "transitions",
            step=step,
            rank=self.rank,
            domain=self._domain,
            plan_number=self._plans,
            # A rank that had nothing to do has lost nothing by waiting.
            lost_s=time.perf_counter() - begun if old.seat else None,
            complete_s=completed - begun,
            move_s=moved - completed,
            sent_mb=sent / 1e6,
        )
        self._take(new)
        if self._plans > len(job.then):
            self._say(f"step {step}: a new plan is in force")

    def _meet(self, what: str) -> None:
        meet(self._store, f"{self._plans}/{what}", self.rank, len(self.job.ranks))

    def _leave(self) -> None:
        """Together: a rank that leaves early can break the others' last message."""
        meet(self._store, "end", self.rank, len(self.job.ranks))
        dist.destroy_process_group()

    def _say(self, line: str) -> None:
        if self._speaks:
            print(f"\nparallel: {line}", file=sys.stderr, flush=True)
            self._records.add("events", at=time.time(), what=line)

    def _fault(self, where: str) -> None:
        """The drill: this rank is killed at a step, or in the middle of a change of plan."""
        if self.job.inject == f"kill:{self.rank}:{where}":
            os.kill(os.getpid(), signal.SIGKILL)


def work(job: Job, rank: int, folder: Path) -> None:
    """Run one rank in this process."""
    torch.set_num_threads(1)
    # Checkpoints are each rank's own, without the group: torch warns that there is one.
    warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
    os.environ["GLOO_SOCKET_IFNAME"] = "wan0" if job.network else "lo"
    try:
        Worker(job, rank, folder).run()
    except ConfigError as error:
        raise SystemExit(f"{error}") from None
