"""Ranks agree on the step at which a new plan is put into force.

The first rank that trains looks at the plan file between steps and announces a plan that can be carried
out, together with a step so far ahead that no other rank can have passed it. Every rank looks for an
announcement before each of its steps. Nobody waits for it: a rank in the middle of a step may need the
one that would be waiting. The words travel through the job's store, a file that all namespaces share,
and load no link.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch.distributed as dist

from ddp_bench.errors import ConfigError
from ddp_bench.parallel.job import Job, read_json
from ddp_bench.parallel.plan import TrainPlan, parse_plan

CLOSED, LAST = "closed", "last"
LOOK_S = 0.005  # between two looks at the store


def notice(plan: TrainPlan) -> int:
    """Steps from an announcement to its plan: more than any rank can be ahead of another.

    A sum of gradients, or a pipeline's way forth and back, holds ranks within a step of each other. On
    their own they are held by outer syncs, which begin every H steps and end `overlap` steps later.
    """
    return 2 + (plan.sync_period + plan.overlap if plan.sync_period > 1 else 0)


class Switchboard:
    """One rank's part in agreeing; `say` takes lines for the user."""

    def __init__(self, job: Job, store: dist.Store, say: Callable[[str], None]) -> None:
        self._job, self._store, self._say = job, store, say
        self._next = 0  # number of the plan that is announced next
        self._seen = self._stamp()  # the file as it was when the run began is not a new plan
        self._begun = time.monotonic()
        self._steps: int | None = None  # of the run, once its time is over

    def _stamp(self) -> tuple[int, int] | None:
        if self._job.watch is None:
            return None
        try:
            found = os.stat(self._job.watch)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size

    def look(self, step: int, present: TrainPlan) -> None:
        """Before `step`, by one rank: announce what has come into the plan file, or the end."""
        self._look_at_clock(step, present)
        stamp = self._stamp()
        if stamp is None or stamp == self._seen:
            return
        at = step + notice(present)
        listed = self._next < len(self._job.then)
        if listed or self._store.check([self._key()]) or at >= self.steps():
            return  # one at a time; and the last steps take no new plan
        self._seen = stamp
        file = Path(self._job.watch or "")
        try:
            plan = self._read(read_json(file), str(file))
        except ConfigError as error:
            self._say(f"plan refused, the present one stays: {error}")
            return
        if plan != present:
            self._store.set(self._key(), json.dumps({"at": at, "plan": plan.to_json()}))

    def _look_at_clock(self, step: int, present: TrainPlan) -> None:
        """Announce the last step once the job's time is over. A plan that was announced before it is
        put into force first: ranks without a seat already wait for it."""
        job = self._job
        late = job.seconds is not None and time.monotonic() - self._begun > job.seconds
        if late and not self._store.check([LAST]):
            coming = self.coming()
            after = 0 if coming is None else coming[1] + 1
            self._store.set(LAST, str(max(step + notice(present), after)))

    def steps(self) -> int:
        """Steps of the run: the job's, or fewer where its time is over."""
        if self._steps is None and self._job.seconds is not None and self._store.check([LAST]):
            self._steps = int(self._store.get(LAST))
        return self._job.steps if self._steps is None else min(self._steps, self._job.steps)

    def _key(self) -> str:
        return f"plan/{self._next}"

    def coming(self) -> tuple[TrainPlan, int] | None:
        """The plan that comes next and the step before which it is put into force, or None: one that
        the job lists, else one that was announced."""
        if self._next < len(self._job.then):
            step, plan = self._job.then[self._next]
            return plan, step
        if not self._store.check([self._key()]):
            return None
        body = json.loads(self._store.get(self._key()))
        return self._read(body["plan"], "the plan announced"), body["at"]

    def taken(self) -> None:
        """The plan that was coming is in force."""
        self._next += 1

    def _read(self, body: object, where: str) -> TrainPlan:
        job = self._job
        return parse_plan(body, where, job.ranks, job.model.layers, job.global_batch)

    def close(self) -> None:
        """The last step is done."""
        self._store.set(CLOSED, "1")

    def closed(self) -> bool:
        """Whether the last step is done."""
        return self._store.check([CLOSED])


def meet(store: dist.Store, what: str, rank: int, ranks: int) -> None:
    """Wait until all ranks have come here; `what` names the place, once in a job."""
    store.set(f"meet/{what}/{rank}", "1")
    while not store.check([f"meet/{what}/{other}" for other in range(ranks)]):
        time.sleep(LOOK_S)  # however long: who starts the ranks ends them all where one dies
