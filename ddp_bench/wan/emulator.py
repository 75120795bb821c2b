"""The process between the namespaces: it reads packets, keeps them as long as their link does, and
writes them out at the other end."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import select
import struct
import time
from dataclasses import asdict, replace
from typing import Any

from ddp_bench.errors import ConfigError
from ddp_bench.wan import tun
from ddp_bench.wan.control import Server
from ddp_bench.wan.link import NEVER, Link
from ddp_bench.wan.network import MATRICES, LinkSpec, Network, number_within

BATCH = 32  # packets read from one device before the others get their turn
LONGEST_WAIT_S = 0.25  # between two looks at the trace and at signals
# A packet is written early by what waking up takes, which is measured all the time, and by what the
# kernel needs to hand it over: 0.25 ms for a ping and its answer over links without delay.
HANDOVER_S = 0.1e-3
MOST_EARLY_S = 0.8e-3
LEARNING, OUTLIER_S = 0.1, 1e-3  # of that measurement: its rate, and where it cuts off
CPU_LATENCY = "/dev/cpu_dma_latency"  # Linux: the longest time to wake up that is allowed [us]


class Emulator:
    """Links between open devices, one file per domain in the order of `network.domains`. With an
    `owner`, a file that says when a process has ended (`os.pidfd_open`), it ends with it."""

    def __init__(
        self, network: Network, devices: list[int], server: Server, owner: int | None = None
    ) -> None:
        self.network = network
        self._owner = owner
        self._devices = devices
        self._server = server
        self._links = {
            pair: Link(spec, seed=n) for n, (pair, spec) in enumerate(network.links.items())
        }
        self._busy: dict[Link, int] = {}  # links with packets -> file at their far end
        self._by_hand: set[tuple[int, int]] = set()  # links whose rate no longer follows the trace
        self._offload = not any(link.spec.loss for link in self._links.values())
        self._row = -1  # of the trace
        self._begun = time.monotonic()
        self._stopping = False
        self._early_s = 2 * HANDOVER_S
        self._late_s = self._latest_s = 0.0
        self._deliveries = self._refused = 0

    def stop(self, *_: object) -> None:
        """End `run` soon; may be called from a signal handler."""
        self._stopping = True

    def run(self) -> None:
        """Move packets until `stop`."""
        be_first()
        awake = stay_awake()
        gc.disable()  # nothing here makes circles, and a pause would be jitter
        self._wake_up_often()
        self._begun = time.monotonic()
        sources = {fd: i for i, fd in enumerate(self._devices)}
        while not self._stopping:
            now = time.monotonic()
            self._follow_trace(now)
            wait = min((link.next_event() for link in self._busy), default=NEVER) - now
            inputs = [*self._devices, *self._server.files()]
            inputs += [] if self._owner is None else [self._owner]
            wait = min(max(wait - self._early_s, 0.0), LONGEST_WAIT_S)
            ready, _, _ = select.select(inputs, [], [], wait)
            for file in ready:
                if file in sources:
                    self._take(file, sources[file])
                elif file == self._owner:
                    self.stop()
                else:
                    self._server.serve(file, self._answer)
            self._deliver(on_time=wait > 0.0 and not ready)
        if awake is not None:
            os.close(awake)

    def _wake_up_often(self) -> None:
        """Measure what waking up takes before the first packet comes."""
        self._early_s = HANDOVER_S
        for _ in range(20):
            begun = time.monotonic()
            select.select([], [], [], 5e-3)
            self._learn(time.monotonic() - begun - 5e-3 + HANDOVER_S - self._early_s)

    def _learn(self, too_late_s: float) -> None:
        """Packets came so much later than they should; the next ones are written earlier."""
        better = self._early_s + LEARNING * min(too_late_s, OUTLIER_S)
        self._early_s = min(max(better, 0.0), MOST_EARLY_S)

    def _take(self, device: int, source: int) -> None:
        """Read what a domain sends, and queue it at its links."""
        for _ in range(BATCH):
            try:
                packet = os.read(device, tun.LARGEST)
            except BlockingIOError:
                return
            target = tun.destination(packet)
            link = self._links.get((source, target))
            if link is None:  # multicast, or an address that nobody has
                continue
            link.offer(packet, tun.wire_bytes(packet), time.monotonic())
            self._busy[link] = self._devices[target]

    def _deliver(self, on_time: bool) -> None:
        """Write out what has arrived by now; `on_time`: nothing else has held the process up."""
        now = time.monotonic() + self._early_s
        for link, device in list(self._busy.items()):
            due = link.next_event()
            if due > now:
                if due == NEVER and not link.queued_bytes:
                    del self._busy[link]
                continue
            late_s = now - self._early_s - due
            if on_time:
                self._learn(late_s + HANDOVER_S)
            self._late_s += late_s
            self._latest_s = max(self._latest_s, late_s)
            self._deliveries += 1
            for packet in link.arrived(now):
                try:
                    os.write(device, packet)
                except OSError:
                    self._refused += 1  # the receiving kernel is out of memory, or is going down

    def _follow_trace(self, now: float) -> None:
        trace = self.network.trace
        if trace is None:
            return
        row, last = int((now - self._begun) / trace.interval_s), len(trace.rates_mbps)
        row = row % last if trace.repeat else min(row, last - 1)
        if row == self._row:
            return
        self._row = row
        for (i, j), link in self._links.items():
            rate = trace.rates_mbps[row][i][j]
            if (i, j) not in self._by_hand and rate != link.spec.rate_mbps:
                link.change(replace(link.spec, rate_mbps=rate), now)

    # --- commands ---------------------------------------------------------------------------------

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to a command; ConfigError says in one line what is wrong with it."""
        command = request.get("do")
        if command == "stop":
            self.stop()
            return {"pid": os.getpid()}
        if command == "counters":
            return self.counters()
        if command == "link":
            return self._change(request)
        if command == "rewind":
            self._begun, self._row = time.monotonic(), -1
            return {"pid": os.getpid()}
        raise ConfigError(f"do: {command!r}: allowed counters, link, rewind, stop")

    def counters(self) -> dict[str, Any]:
        """Time, CPU time and lateness of the process; figures and counters of every link."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        names = self.network.domains
        return {
            "at_s": time.monotonic() - self._begun,
            "cpu_s": usage.ru_utime + usage.ru_stime,
            "trace_row": self._row,
            "late_ms_mean": 1e3 * self._late_s / max(self._deliveries, 1),
            "late_ms_max": 1e3 * self._latest_s,
            "refused_packets": self._refused,
            "links": [
                {
                    "src": names[i],
                    "dst": names[j],
                    **asdict(link.spec),
                    **asdict(link.counters),
                    "queued_bytes": link.queued_bytes,
                }
                for (i, j), link in self._links.items()
            ],
        }

    def _change(self, request: dict[str, Any]) -> dict[str, Any]:
        """Change figures of one directed link; rate_mbps None lets it follow the trace again."""
        pair = self._pair(request)
        link, given = self._links[pair], {key: request[key] for key in MATRICES if key in request}
        by_hand, follows = "rate_mbps" in given, given.get("rate_mbps", 0.0) is None
        if follows:
            given["rate_mbps"] = (
                link.spec.rate_mbps if self.network.trace else self.network.links[pair].rate_mbps
            )
        fields = {key: number_within(given[key], key, 0.0, MATRICES[key]) for key in given}
        # Nothing has been touched so far: what is refused changes nothing.
        if follows:
            self._by_hand.discard(pair)
            self._row = -1
        elif by_hand:
            self._by_hand.add(pair)
        link.change(LinkSpec(**{**asdict(link.spec), **fields}), time.monotonic())
        self._set_offload()
        return asdict(link.spec)

    def _pair(self, request: dict[str, Any]) -> tuple[int, int]:
        names = self.network.domains
        for end in ("src", "dst"):
            if request.get(end) not in names:
                raise ConfigError(f"{end}: {request.get(end)!r}: allowed {', '.join(names)}")
        if request["src"] == request["dst"]:
            raise ConfigError(f"src and dst are both {request['src']!r}; no link leads there")
        return names.index(request["src"]), names.index(request["dst"])

    def _set_offload(self) -> None:
        """Random loss is of single packets: where there is some, the kernel cuts them itself."""
        offload = not any(link.spec.loss for link in self._links.values())
        if offload != self._offload:
            self._offload = offload
            for device in self._devices:
                tun.set_offload(device, offload)


def be_first() -> None:
    """Ask the kernel to run this process as soon as it has something to do: training takes every
    core, and a packet that waits for one is late."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except OSError:  # without CAP_SYS_NICE
        with contextlib.suppress(OSError):
            os.nice(-20)


def stay_awake() -> int | None:
    """Ask the kernel to keep idle processors awake while the file that is returned is open: after a
    long pause a sleeping one takes fractions of a millisecond to come back. None where it cannot."""
    try:
        file = os.open(CPU_LATENCY, os.O_WRONLY)
    except OSError:
        return None
    with contextlib.suppress(OSError):
        os.write(file, struct.pack("=i", 0))
    return file
