"""Counters and gauges, answered to Prometheus on this machine (text format 0.0.4)."""

from __future__ import annotations

import bisect
import math
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from jaxsim.files import InputError

BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
FINE = 1.01  # one class of times to the next, for quantiles
TEXT = "text/plain; version=0.0.4; charset=utf-8"
HELP = {
    "lines_total": ("counter", "lines read, by whether they were used"),
    "decisions_total": ("counter", "times the scheduler was asked"),
    "plans_total": ("counter", "plans that were said, by whether they stop the job"),
    "applied_total": ("counter", "runs of the apply command, by whether they succeeded"),
    "decision_seconds": ("histogram", "from having read a measurement to the decision"),
    "bandwidth_gbps": ("gauge", "of a link, as last measured [Gbit/s]"),
    "rtt_ms": ("gauge", "of a link, as last measured [ms]"),
    "age_seconds": ("gauge", "since a link was measured, or since the start where it was not [s]"),
    "stale": ("gauge", "1 where a link was silent for too long"),
    "gpus_available": ("gauge", "of a domain, as last measured"),
    "step_seconds": ("gauge", "a training step of the plan in force, as last decided [s]"),
    "feasible": ("gauge", "1 where a plan can run on the free GPUs"),
}


class Metrics:
    """Numbers by name and labels; written by the watcher, read by the server's threads."""

    def __init__(self) -> None:
        """Everything is at zero."""
        self._lock = threading.Lock()
        self._values: dict[str, dict[tuple[tuple[str, str], ...], float]] = defaultdict(dict)
        self.collect: Callable[[], None] = lambda: None  # brings gauges up to date
        self._buckets = [0] * (len(BUCKETS_S) + 1)
        self._sum_s = 0.0
        self._times: Counter[int] = Counter()  # by class

    def add(self, name: str, amount: float = 1.0, **labels: str) -> None:
        """Count."""
        key = tuple(sorted(labels.items()))
        with self._lock:
            self._values[name][key] = self._values[name].get(key, 0.0) + amount

    def put(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""
        with self._lock:
            self._values[name][tuple(sorted(labels.items()))] = value

    def observe_s(self, seconds: float) -> None:
        """One decision's time."""
        with self._lock:
            self._buckets[bisect.bisect_left(BUCKETS_S, seconds)] += 1
            self._sum_s += seconds
            self._times[math.ceil(math.log(max(seconds, 1e-9), FINE))] += 1

    def within_s(self, share: float) -> float | None:
        """[s] in which this share of the decisions was made, to 1 %; None where there was none."""
        with self._lock:
            left = math.ceil(share * self._times.total())
            for number in sorted(self._times):
                left -= self._times[number]
                if left <= 0:
                    return FINE**number
        return None

    def text(self) -> str:
        """As Prometheus reads it."""
        self.collect()
        with self._lock:
            return "".join(self._metric(name, *about) for name, about in HELP.items())

    def _metric(self, name: str, kind: str, about: str) -> str:
        full = f"hippo_watch_{name}"
        lines = [f"# HELP {full} {about}", f"# TYPE {full} {kind}"]
        if kind == "histogram":
            below = 0
            for limit, count in zip((*BUCKETS_S, "+Inf"), self._buckets, strict=True):
                below += count
                lines.append(f'{full}_bucket{{le="{limit}"}} {below}')
            lines += [f"{full}_sum {self._sum_s!r}", f"{full}_count {below}"]
        for labels, value in sorted(self._values[name].items()):
            inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels)
            lines.append(f"{full}{{{inside}}} {value!r}" if inside else f"{full} {value!r}")
        return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class MetricsServer:
    """http://127.0.0.1:PORT/metrics in a thread of its own."""

    def __init__(self, metrics: Metrics, port: int) -> None:
        """Serve on `port`, 0 = any that is free. Raises InputError where it is taken."""

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                found = self.path.partition("?")[0] in ("/", "/metrics")
                body = metrics.text().encode() if found else b"expected /metrics\n"
                self.send_response(200 if found else 404)
                self.send_header("Content-Type", TEXT)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Nothing: standard error is for the user."""

        try:
            self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        except OSError as error:
            raise InputError(f"metrics: port {port}: {error.strerror}") from None
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()
