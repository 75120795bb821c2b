"""What Prometheus is told."""

import re
import urllib.error
import urllib.request

import pytest

from experiments.watch.metrics import BUCKETS_S, HELP, Metrics, MetricsServer
from jaxsim.files.errors import InputError

SAMPLE = re.compile(r'[a-z_]+(\{[a-z_]+="[^"]*"(,[a-z_]+="[^"]*")*\})? -?([\d.e+-]+|inf|nan)')


def samples(text):
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert all(SAMPLE.fullmatch(line) for line in lines), lines
    return dict(line.rsplit(" ", 1) for line in lines)


def test_counts_gauges_and_the_histogram():
    metrics = Metrics()
    for result in ("used", "used", "refused"):
        metrics.add("lines_total", result=result)
    metrics.put("stale", 1.0, src="a", dst="b")
    metrics.put("stale", 0.0, src="a", dst="b")
    for seconds in (0.0004, 0.001, 0.03, 9.0):
        metrics.observe_s(seconds)
    found = samples(metrics.text())
    assert found['hippo_watch_lines_total{result="used"}'] == "2.0"
    assert found['hippo_watch_stale{dst="b",src="a"}'] == "0.0"
    # Buckets are cumulative, their limits inclusive, and the last holds everything.
    counts = [int(found[f'hippo_watch_decision_seconds_bucket{{le="{s}"}}']) for s in BUCKETS_S]
    assert counts[0] == 2 and counts[BUCKETS_S.index(0.05)] == 3 and counts[-1] == 3
    assert found['hippo_watch_decision_seconds_bucket{le="+Inf"}'] == "4"
    assert found["hippo_watch_decision_seconds_count"] == "4"
    assert float(found["hippo_watch_decision_seconds_sum"]) == pytest.approx(9.0314)
    told = re.findall(r"# TYPE hippo_watch_(\w+) ", metrics.text())
    assert told == list(HELP)


def test_the_time_within_which_decisions_are_made():
    metrics = Metrics()
    assert metrics.within_s(0.99) is None
    for k in range(1, 201):
        metrics.observe_s(0.001 * k)
    for share, exact in ((0.5, 0.1), (0.99, 0.198), (1.0, 0.2), (0.001, 0.001)):
        assert exact <= metrics.within_s(share) * (1 + 1e-9) <= 1.0101 * exact
    for _ in range(100_000):
        metrics.observe_s(0.002)
    assert metrics.within_s(0.99) < 0.00203  # and memory grows by no decision


def test_a_label_with_quotes_stays_one_label():
    metrics = Metrics()
    metrics.put("stale", 1.0, src='a"b\\c\nd')
    assert 'src="a\\"b\\\\c\\nd"' in metrics.text()


def test_the_server_answers_on_this_machine_alone():
    metrics = Metrics()
    metrics.collect = lambda: metrics.put("feasible", 1.0)
    server = MetricsServer(metrics, 0)
    try:
        assert server._server.server_address[0] == "127.0.0.1"
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics") as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            assert samples(answer.read().decode())["hippo_watch_feasible"] == "1.0"
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(f"http://127.0.0.1:{server.port}/secrets")
        with pytest.raises(InputError, match=f"port {server.port}"):
            MetricsServer(metrics, server.port)
    finally:
        server.close()
