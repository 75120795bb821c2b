"""Measurements in, decisions out: one JSON line whenever the plan should change.

What the lines say stands in `service`.

All intervals are of the monotonic clock: `time` in a measurement is repeated, never computed with.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from experiments.common import one_line
from experiments.respond import Proposal, Responder, stamped
from experiments.watch.config import WatchConfig
from experiments.watch.hook import Hook, plan_file
from experiments.watch.lines import Unreadable
from experiments.watch.metrics import Metrics
from experiments.watch.sources import Batch
from experiments.watch.state import packed, read_state, unpacked, write_state
from jaxsim.cluster import GBIT_PER_GBYTE
from jaxsim.files import InputError

NOTE_S = 10.0  # between two lines about lines that were refused
MOST_REASONS = 4
QUANTILES = {"p50": 0.5, "p99": 0.99, "all": 1.0}  # of the time to an answer
MOVED = 0.02  # relative change of a link that is worth telling


@dataclasses.dataclass
class Clock:
    """Of the last step: [s] monotonic."""

    interval_since: float  # the scheduler's memory moved on
    busy_until: float = 0.0  # a switch is under way
    waits_until: float = 0.0  # the apply command failed: nothing is tried before
    noted: float = -np.inf  # a refused line was told


class Watcher:
    """The loop's state. `step` takes one batch of measurements."""

    def __init__(
        self,
        responder: Responder,
        config: WatchConfig,
        say: Callable[[dict[str, Any]], None],
        hook: Hook | None = None,
        metrics: Metrics | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Go on from the state file, where there is one. Raises InputError."""
        self.responder, self.config, self.metrics = responder, config, metrics or Metrics()
        self._say, self._hook, self._now = say, hook, now
        self._clock = Clock(interval_since=now())
        k = len(responder.spec.domains)
        # [K, K] [s] of the last measurement of a link; of `ready` where there was none.
        self._heard = np.full((k, k), now())
        self._stale = np.zeros((k, k), bool)
        self._said: dict[str, Any] | None = responder.in_force["fields"]  # None: nothing can run
        self._applying: tuple[int, Proposal, list[np.ndarray]] | None = None
        self._dirty = False  # something was measured since the last decision
        self._stamp: dict[str, Any] = {}
        self.decisions = self.lines = self.refused = 0
        self._untold = 0
        self.position = self._saved_position = ""
        self._path = None if config.state is None else Path(config.state)
        self._identity = {} if self._path is None else responder.identity()
        # When the plan in force was decided.
        self._known = [array.copy() for array in responder.measured.arrays]
        self.restored = self._path is not None and self._restore(self._path)
        self.metrics.collect = self._collect

    # --- one batch --------------------------------------------------------------------------------

    @property
    def applying(self) -> bool:
        """Is the apply command running?"""
        return self._applying is not None

    def step(self, batch: Batch) -> None:
        """Take a batch, which may be empty; say what there is to say."""
        start = self._now()
        for found in batch:
            self._take(found, start)
        self._tell_silence(start)  # first: a decision lists what is stale now
        committed = self._applied(start)
        if self._dirty and not self.applying and start >= self._clock.waits_until:
            self._dirty = False
            committed |= self._decide(start)
        if batch or committed or self.position != self._saved_position:
            self.save(durable=committed)

    def _take(self, found: dict[str, Any] | Unreadable, now: float) -> None:
        self.lines += 1
        if isinstance(found, Unreadable):
            self._refuse(str(found), now)
            return
        try:
            stamp, body = stamped(found)
            self.responder.measured.take(body)
        except (ValueError, OverflowError) as error:  # InputError among them
            self._refuse(str(error), now)
            return
        self.metrics.add("lines_total", result="used")
        self._stamp, self._dirty = stamp, True
        if "src" in body:
            names = self.responder.spec.domains
            self._heard[names.index(body["src"]), names.index(body["dst"])] = now

    def _refuse(self, why: str, now: float) -> None:
        """Count a line that cannot be used; say so on standard error, once in NOTE_S seconds."""
        self.refused += 1
        self.metrics.add("lines_total", result="refused")
        self._untold += 1
        if now - self._clock.noted < NOTE_S:
            return
        others = f" (and {self._untold - 1:,} more before it)" if self._untold > 1 else ""
        line = one_line(f"watch: line {self.lines:,} is refused{others}: {why}")
        print(line, file=sys.stderr, flush=True)
        self._untold, self._clock.noted = 0, now

    # --- decisions --------------------------------------------------------------------------------

    def _decide(self, start: float) -> bool:
        """Ask the scheduler; returns whether it remembers an interval more."""
        proposal = self.responder.propose()
        self.metrics.add("decisions_total")
        answer, fields = proposal.answer, proposal.answer["fields"]
        self.metrics.put("feasible", float(answer["feasible"]))
        if answer["step_s"] is not None:
            self.metrics.put("step_seconds", answer["step_s"])
        # While a switch is under way, only a plan that can no longer run makes way for another.
        busy = answer["switch"] and start < self._clock.busy_until
        busy = busy and answer["gain_pct"] is not None
        over = start - self._clock.interval_since >= self.config.interval_s
        if fields != self._said and not busy:
            self._tell(proposal, start)
            return self._carry_out(proposal, start)
        if over:
            self.responder.accept(proposal, keep_plan=busy)
            self._clock.interval_since = start
        self.metrics.observe_s(self._now() - start)
        return over

    def _tell(self, proposal: Proposal, start: float) -> None:
        self.decisions += 1
        latency_s = self._now() - start
        self._say(
            {
                "decision": self.decisions,
                **self._stamp,
                **{key: value for key, value in proposal.answer.items() if key != "fields"},
                "because": self._because(),
                "stale": self._links(self._stale),
                "latency_ms": round(1e3 * latency_s, 3),
                "fields": proposal.answer["fields"],
            }
        )
        self.metrics.observe_s(self._now() - start)
        stops = "yes" if proposal.answer["switch"] else "no"
        self.metrics.add("plans_total", stops=stops)

    def _carry_out(self, proposal: Proposal, start: float) -> bool:
        """Put a plan into force, by the apply command where there is one."""
        feasible = proposal.answer["feasible"]
        measured = [array.copy() for array in self.responder.measured.arrays]
        if self._hook is None or not feasible:
            self._accept(proposal, measured, start)
            return True
        self._applying = self.decisions, proposal, measured
        self._hook.start(plan_file(proposal.plan, self.responder.spec.domains))
        return False

    def _accept(self, proposal: Proposal, measured: list[np.ndarray], now: float) -> None:
        """It is in force, because of what was `measured` then."""
        self.responder.accept(proposal)
        self._known = measured
        self._said = proposal.answer["fields"]
        self._clock.interval_since = now
        if proposal.answer["switch"]:
            self._clock.busy_until = now + (proposal.answer["switch_s"] or 0.0)

    def _applied(self, now: float) -> bool:
        """Look after the apply command; returns whether a plan is in force now that was not."""
        if self._applying is None or self._hook is None:
            return False
        ended = self._hook.poll()
        if ended is None:
            return False
        (number, proposal, measured), self._applying = self._applying, None
        done = ended["status"] == 0
        self._say({"applied": number, "in_force": done, **ended})
        self.metrics.add("applied_total", result="done" if done else "failed")
        if done:
            self._accept(proposal, measured, now)
        else:
            self._clock.waits_until, self._dirty = now + self.config.interval_s, True
        return done

    # --- what a reader wants to know --------------------------------------------------------------

    def _because(self) -> list[str]:
        """What is measured otherwise than when the plan in force was decided, the largest first."""
        names = self.responder.spec.domains
        (old_rate, old_rtt, old_gpus), new = self._known, self.responder.measured.arrays
        found = [
            (np.inf, f"{names[k]}: {old_gpus[k]} -> {new[2][k]} GPUs available")
            for k in np.flatnonzero(old_gpus != new[2])
        ]
        figures = (
            (old_rate, new[0], "bandwidth", "Gbit/s", GBIT_PER_GBYTE),
            (old_rtt, new[1], "round trip", "ms", 1e3),
        )
        for old, now, what, unit, scale in figures:
            ratio = np.abs(np.log(np.maximum(now, 1e-12) / np.maximum(old, 1e-12)))
            for i, j in np.argwhere(ratio > MOVED):
                change = f"{scale * old[i, j]:.3g} -> {scale * now[i, j]:.3g} {unit}"
                found.append((float(ratio[i, j]), f"{names[i]}>{names[j]}: {what} {change}"))
        found.sort(key=lambda one: -one[0])
        return [text for _, text in found[:MOST_REASONS]]

    def _links(self, which: np.ndarray) -> list[str]:
        names = self.responder.spec.domains
        return [f"{names[i]}>{names[j]}" for i, j in np.argwhere(which)]

    def _tell_silence(self, now: float) -> None:
        """Say which links went silent, and which are back."""
        stale = (now - self._heard > self.config.stale_s) & ~np.eye(len(self._heard), dtype=bool)
        for key, which in (("stale", stale & ~self._stale), ("fresh", self._stale & ~stale)):
            if which.any():
                held = {"held": True} if key == "stale" else {}
                self._say({key: self._links(which), **held})
        self._stale = stale

    def _collect(self) -> None:
        """Gauges of links, when somebody asks for them."""
        names, now = self.responder.spec.domains, self._now()
        rate, rtt, gpus = self.responder.measured.arrays
        for k, name in enumerate(names):
            self.metrics.put("gpus_available", float(gpus[k]), domain=name)
        for i, j in np.argwhere(~np.eye(len(names), dtype=bool)):
            link = {"src": names[i], "dst": names[j]}
            self.metrics.put("bandwidth_gbps", GBIT_PER_GBYTE * float(rate[i, j]), **link)
            self.metrics.put("rtt_ms", 1e3 * float(rtt[i, j]), **link)
            self.metrics.put("stale", float(self._stale[i, j]), **link)
            self.metrics.put("age_seconds", float(now - self._heard[i, j]), **link)

    def summary(self) -> dict[str, Any]:
        """The last line."""
        told = {x: getattr(self, x) for x in ("lines", "refused", "decisions")}
        within = {name: self.metrics.within_s(share) for name, share in QUANTILES.items()}
        within = {name: x if x is None else round(1e3 * x, 3) for name, x in within.items()}
        return {"end": True, **told, "within_ms": within}

    # --- what outlives the process ----------------------------------------------------------------

    def save(self, durable: bool = False) -> None:
        """Write the state file, if there is one."""
        self._saved_position = self.position
        if self._path is None:
            return
        now = self._now()
        body = {
            "snapshot": packed(self.responder.snapshot()),
            "known": packed(self._known),
            "said": self._said,
            "silent_s": [float(x) for x in (now - self._heard).flat],
            "interval_s": now - self._clock.interval_since,
            "busy_s": max(0.0, self._clock.busy_until - now),
            "waits_s": max(0.0, self._clock.waits_until - now),
            "undecided": self._dirty or self.applying,  # the command that runs is not waited for
            "decisions": self.decisions,
            "position": self.position,
        }
        write_state(self._path, self._identity, body, durable)

    def _restore(self, path: Path) -> bool:
        """Is there a state to go on from? Time in which no process ran does not count."""
        body = read_state(path, self._identity)
        if body is None:
            return False
        try:
            self.responder.restore(unpacked(body["snapshot"]))
            self._known = unpacked(body["known"])
            now = self._now()
            silent = [0.0 if x is None else x for x in body["silent_s"]]  # None: older files
            self._heard = now - np.array(silent, float).reshape(self._heard.shape)
            self._clock = Clock(now - body["interval_s"], now + body["busy_s"])
            self._clock.waits_until = now + body.get("waits_s", 0.0)  # older files have neither
            self._dirty = body.get("undecided", False)
            self._said, self.position = body["said"], body["position"]
            self.decisions = body["decisions"]
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{path}: state: {error}") from None
        return True
