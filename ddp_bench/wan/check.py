"""Measures the emulator itself: does it do what its file says?

Own clients measure round trips, rates, changes and independence; iperf3 measures rates again where
it is installed. Every row holds what was asked for, what was measured, and the limit it is held to.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from analysis.records import write_json
from ddp_bench.wan import clients, lifecycle
from ddp_bench.wan.capability import missing
from ddp_bench.wan.control import ask
from ddp_bench.wan.network import LinkSpec, Network, queue_kb

RTT_MS, RATE_PCT, CHANGE_S = 0.5, 2.0, 0.5  # what the emulator is held to
NAME = "check"
PINGS = 21  # whose median is compared: a busy machine delays single ones
RAMP_S, RAMP_TRIPS = 1.5, 25  # until a TCP flow has found its rate: seconds and round trips
# A flow's rate is the median of windows [s]: once in ten seconds bbr nearly stops for 0.2 s and a round
# trip, to see how long a round trip is without its own queue.
WINDOW_S = 0.5


@dataclass(frozen=True)
class Row:
    """One measurement."""

    what: str
    client: str  # own or iperf3
    asked: float
    measured: float
    unit: str
    error: float  # in the unit of the limit
    limit: float
    limit_unit: str

    @property
    def passed(self) -> bool:
        """Whether the error is within its limit."""
        return self.error <= self.limit


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of `check`."""
    parser.add_argument("--json", type=Path, help="write the rows and the load of the CPU here")
    parser.add_argument("--quick", action="store_true", help="a few conditions, shorter flows")


def run(options: argparse.Namespace) -> int:
    """Measure, print; 0 where every row is within its limit, else 1. Without the capability: 0, and
    one line that begins with `skipped:`."""
    if reason := missing():
        print(f"skipped: {reason}")
        return 0
    rows: list[Row] = []
    load: dict[str, float] = {}
    for part in (_many_domains, _one_link, _two_flows, _changes, _directions):
        for row in part(options.quick, load):
            rows.append(row)
            print(_line(row), flush=True)
    for what, share in load.items():
        print(f"emulator's CPU, {what}: {share:.0f} % of a core")
    failed = [row for row in rows if not row.passed]
    print(f"{len(rows) - len(failed)} of {len(rows)} within their limits")
    if options.json:
        body = {"rows": [{**asdict(row), "passed": row.passed} for row in rows], "cpu_pct": load}
        write_json(options.json, body)
    return 1 if failed else 0


def _line(row: Row) -> str:
    verdict = "ok" if row.passed else "FAILED"
    return (
        f"{verdict:6} {row.what:44} {row.client:6} asked {row.asked:9.2f} {row.unit:7} measured "
        f"{row.measured:9.2f}  error {row.error:6.3f} {row.limit_unit} (limit {row.limit:g})"
    )


# --- networks -------------------------------------------------------------------------------------


def pair_network(rate_mbps: float, rtt_ms: float, domains: int = 2) -> Network:
    """Domains that are alike, every link with the same rate and half of the round trip."""
    spec = LinkSpec(rate_mbps, rtt_ms / 2, queue_kb(rate_mbps, rtt_ms))
    size = range(domains)
    links = {(i, j): spec for i in size for j in size if i != j}
    return Network(NAME, tuple(f"d{k}" for k in size), links)


def uneven_network(domains: int = 8) -> Network:
    """Every directed link differs from its reverse in rate and in delay."""
    links = {}
    for i in range(domains):
        for j in range(domains):
            if i != j:
                delay, rate = 5.0 + (7 * i + 3 * j) % 46, 50.0 + 25 * ((3 * i + 5 * j) % 7)
                links[i, j] = LinkSpec(rate, delay, queue_kb(rate, 2 * delay))
    return Network(NAME, tuple(f"d{k}" for k in range(domains)), links)


@contextmanager
def brought_up(network: Network) -> Iterator[Callable[..., dict[str, Any]]]:
    """The network, up within this block and no longer than this process lives; what it gives sends
    commands to the emulator."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "network.json"
        write_json(file, network.to_json())
        lifecycle.up(file, owner=os.getpid())
    try:
        yield lambda **request: ask(lifecycle.socket_of(network.name), network.name, **request)
    finally:
        lifecycle.down(network.name)


@contextmanager
def _cpu_share(tell: Callable[..., dict], load: dict[str, float], what: str) -> Iterator[None]:
    """Record [%] of one core that the emulator uses within this block."""
    before = tell(do="counters")
    yield
    after = tell(do="counters")
    load[what] = 100.0 * (after["cpu_s"] - before["cpu_s"]) / (after["at_s"] - before["at_s"])


# --- rows -----------------------------------------------------------------------------------------


def _rtt_row(what: str, asked: float, measured: float, client: str = "own") -> Row:
    return Row(what, client, asked, measured, "ms", abs(measured - asked), RTT_MS, "ms")


def _rate_row(what: str, asked: float, measured: float, client: str = "own") -> Row:
    error = 100.0 * abs(measured / asked - 1.0)
    return Row(what, client, asked, measured, "Mbit/s", error, RATE_PCT, "%")


def _many_domains(quick: bool, load: dict) -> Iterator[Row]:
    """Round trips of all pairs of eight uneven domains; rates of some links, one at a time."""
    network = uneven_network()
    pairs = [(i, j) for (i, j) in network.links if i < j]
    with brought_up(network) as tell:
        worst = None
        for i, j in pairs[::5] if quick else pairs:
            asked = network.links[i, j].delay_ms + network.links[j, i].delay_ms
            row = _rtt_row(
                f"round trip d{i}-d{j}",
                asked,
                clients.median(clients.round_trips_ms(NAME, i, j, PINGS)),
            )
            worst = row if worst is None or row.error > worst.error else worst
        yield Row(**{**asdict(worst), "what": f"8 uneven domains, worst {worst.what}"})
        for i, j in ((1, 6), (6, 1), (2, 3))[: 1 if quick else 3]:
            spec = network.links[i, j]
            rtt = spec.delay_ms + network.links[j, i].delay_ms
            what = f"8 uneven domains, rate d{i}>d{j}"
            yield _rate_row(what, spec.rate_mbps, _flow((i, j), rtt, quick))
            if shutil.which("iperf3"):
                yield _rate_row(what, spec.rate_mbps, _iperf3(i, j, rtt, quick), "iperf3")
        with _cpu_share(tell, load, "8 domains, all sending"):
            yield _ring_row(network, tell, quick)


def _ring_row(network: Network, tell: Callable[..., dict], quick: bool) -> Row:
    """All domains send at once, each to the next: the link that is furthest off its own rate."""
    size = len(network.domains)
    ring = [(k, (k + 1) % size) for k in range(size)]
    with ExitStack() as flows:
        rates = [flows.enter_context(clients.stream(NAME, *pair)) for pair in ring]
        rates[0](RAMP_S + 1e-3 * RAMP_TRIPS * 100.0)
        windows = [
            _delivered_mbps(tell, lambda: time.sleep(WINDOW_S)) for _ in range(_windows(quick))
        ]
    rows = [
        _rate_row(
            f"8 uneven domains, all sending, worst d{i}>d{j}",
            network.links[i, j].rate_mbps,
            clients.median([found[f"d{i}", f"d{j}"] for found in windows]),
        )
        for i, j in ring
    ]
    return max(rows, key=lambda row: row.error)


def _flow(pair: tuple[int, int], rtt_ms: float, quick: bool) -> float:
    """[Mbit/s] of one TCP flow, once it has found its rate."""
    with clients.stream(NAME, *pair) as rate:
        rate(RAMP_S + 1e-3 * RAMP_TRIPS * rtt_ms)
        return clients.median([rate(WINDOW_S) for _ in range(_windows(quick))])


def _windows(quick: bool) -> int:
    return 3 if quick else 9


def _one_link(quick: bool, load: dict) -> Iterator[Row]:
    """One flow on one link, over rates and round trips."""
    grid = [(50, 20), (1000, 20)] if quick else [(50, 10), (100, 50), (200, 200), (500, 20)]
    grid += [] if quick else [(1000, 10), (1000, 50), (1000, 200)]
    for mbps, rtt in grid:
        with brought_up(pair_network(mbps, rtt)) as tell:
            pings = clients.round_trips_ms(NAME, 0, 1, PINGS)
            yield _rtt_row(f"idle round trip, {mbps} Mbit/s", rtt, clients.median(pings))
            with _cpu_share(tell, load, f"one flow of {mbps} Mbit/s, {rtt} ms"):
                found = _flow((0, 1), rtt, quick)
            yield _rate_row(f"one flow, {rtt} ms", mbps, found)
            if shutil.which("iperf3"):
                yield _rate_row(f"one flow, {rtt} ms", mbps, _iperf3(0, 1, rtt, quick), "iperf3")


def _iperf3(
    src: int, dst: int, rtt_ms: float, quick: bool, offered_mbps: float | None = None
) -> float:
    """[Mbit/s] that iperf3 receives, its first seconds left out: by TCP, or of datagrams that are sent
    at a constant rate. Its client asks the server to send, so that the rates of its windows are those
    of the receiving end."""
    ramp = str(int(RAMP_S + 1e-3 * RAMP_TRIPS * rtt_ms) + 1)
    server = lifecycle.command(NAME, f"d{src}", ["iperf3", "-s", "-1"])
    seconds = str(math.ceil(WINDOW_S * _windows(quick)))  # it takes whole ones
    words = ["iperf3", "-J", "-R", "-c", clients.tun.address(src), "-O", ramp, "-t", seconds]
    words += ["-i", str(WINDOW_S)]
    on_wire = 1.0
    if offered_mbps is not None:
        words += ["-u", "-b", f"{offered_mbps}M", "-l", str(clients.DATAGRAM)]
        on_wire = (clients.DATAGRAM + clients.HEADERS) / clients.DATAGRAM
    process = subprocess.Popen(server, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        time.sleep(0.3)
        client = lifecycle.command(NAME, f"d{dst}", words)
        done = subprocess.run(client, capture_output=True, text=True, check=False, timeout=60)
        windows = [each["sum"] for each in json.loads(done.stdout)["intervals"]]
        kept = [w for w in windows if not w["omitted"] and w["seconds"] > 0.5 * WINDOW_S]
        return clients.median([on_wire * w["bits_per_second"] / 1e6 for w in kept])
    except (ValueError, KeyError, statistics.StatisticsError) as error:
        print(f"iperf3 failed: {error}", file=sys.stderr)
        return float("nan")
    finally:
        process.kill()
        process.wait()


def _at_once(measure: Callable[..., float], arguments: Sequence[tuple]) -> list[float]:
    """What a measurement finds for each of several arguments, taken at the same time."""
    with ThreadPoolExecutor(len(arguments)) as pool:
        return list(pool.map(lambda one: measure(*one), arguments))


def _two_flows(quick: bool, load: dict) -> Iterator[Row]:
    """Two flows of 1 Gbit/s at once, on links of their own."""
    pairs = ((0, 1), (2, 3))
    with brought_up(pair_network(1000, 20, domains=4)) as tell, ExitStack() as flows:
        rates = [flows.enter_context(clients.stream(NAME, *pair)) for pair in pairs]
        rates[0](RAMP_S)
        with _cpu_share(tell, load, "two flows of 1000 Mbit/s"):
            found = _delivered_mbps(tell, lambda: rates[0](1.5 if quick else 4.0))
        yield _rate_row("two flows, sum", 2000.0, sum(found[f"d{i}", f"d{j}"] for i, j in pairs))
    if shutil.which("iperf3"):
        with brought_up(pair_network(1000, 20, domains=4)):
            rates = _at_once(_iperf3, [(*pair, 20, quick) for pair in pairs])
        yield _rate_row("two flows, sum", 2000.0, sum(rates), "iperf3")


def _delivered_mbps(tell: Callable[..., dict], wait: Callable) -> dict[tuple[str, str], float]:
    """[Mbit/s] that every directed link delivers during `wait`, by its counters."""
    before, begun = _delivered(tell), time.perf_counter()
    wait()
    after, elapsed = _delivered(tell), time.perf_counter() - begun
    return {pair: (after[pair] - before[pair]) * 8e-6 / elapsed for pair in after}


def _delivered(tell: Callable[..., dict]) -> dict[tuple[str, str], int]:
    """[B] delivered so far by directed link."""
    return {(x["src"], x["dst"]): x["wire_bytes"] for x in tell(do="counters")["links"]}


def _changes(quick: bool, load: dict) -> Iterator[Row]:
    """A live change of rate, under more datagrams than the link can carry."""
    bin_s, half_s = 0.1, 1.0 if quick else 2.0
    network = pair_network(100, 20)
    with brought_up(network) as tell:
        for before, after in ((100.0, 25.0), (25.0, 100.0)):
            tell(do="link", src="d0", dst="d1", rate_mbps=before, queue_kb=queue_kb(25, 20))
            rates = _rates_around(tell, after, half_s, bin_s)
            settled = clients.settling_s(rates, bin_s, after, 0.1)
            what = f"change {before:g} to {after:g} Mbit/s, effective"
            yield Row(what, "own", 0.0, settled, "s", settled, CHANGE_S, "s")


def _rates_around(tell: Callable, after: float, half_s: float, bin_s: float):
    """[N] [Mbit/s] in bins from the moment at which the rate becomes `after`."""
    timer = threading.Timer(half_s, lambda: tell(do="link", src="d0", dst="d1", rate_mbps=after))
    timer.start()
    try:
        rates = clients.rates_over_time(NAME, 0, 1, 150.0, 2 * half_s, bin_s)
    finally:
        timer.join()
    return rates[round(half_s / bin_s) :]


def _directions(quick: bool, load: dict) -> Iterator[Row]:
    """Both directions of a pair at once, each with its own rate, each with more than it can carry."""
    asked = {(0, 1): 200.0, (1, 0): 40.0}
    with brought_up(pair_network(asked[0, 1], 20)) as tell:
        tell(do="link", src="d1", dst="d0", rate_mbps=asked[1, 0], queue_kb=queue_kb(40, 20))
        seconds, floods = 2.0 if quick else 4.0, []
        for (i, j), mbps in asked.items():
            arguments = (NAME, i, j, 1.3 * mbps, seconds + 1.0, 0.1)
            floods.append(threading.Thread(target=clients.rates_over_time, args=arguments))
        for flood in floods:
            flood.start()
        time.sleep(0.5)
        found = _delivered_mbps(tell, lambda: time.sleep(seconds - 1.0))
        for flood in floods:
            flood.join()
        clients_found = {"own": [found[f"d{i}", f"d{j}"] for i, j in asked]}
        if shutil.which("iperf3"):
            over = [(*pair, 20, quick, 1.3 * mbps) for pair, mbps in asked.items()]
            clients_found["iperf3"] = _at_once(_iperf3, over)
        for client, rates in clients_found.items():
            for ((i, j), mbps), rate in zip(asked.items(), rates, strict=True):
                yield _rate_row(f"both directions at once, d{i}>d{j}", mbps, rate, client)
