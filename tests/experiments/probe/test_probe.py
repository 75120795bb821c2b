"""Probes over loopback, with tiny caps."""

import contextlib
import json
import socket
import threading

import numpy as np
import pytest

from experiments.cli import main
from experiments.probe import flow
from experiments.probe import server as module
from experiments.probe.flow import MOST_MARKS, common_rate, measure, thinned
from experiments.probe.handshake import MAGIC, NONCE, PROOF, exactly, greet_client, greet_server
from experiments.probe.server import Server
from experiments.probe.wire import Address, Limits, connected, get, put
from jaxsim.cluster.cluster import load_cluster
from jaxsim.files.errors import InputError
from jaxsim.network.trace import read_network_trace

TOKEN = b"a token of the tests"
TINY = Limits(mbytes=0.4, seconds=0.5)


@contextlib.contextmanager
def served(token=TOKEN, limits=TINY):
    """A probe of this process."""
    with Server(Address("127.0.0.1", 0), token, limits) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield Address("127.0.0.1", server.port)
        finally:
            server.shutdown()


def test_a_link_is_measured_within_its_caps():
    with served() as to:
        found = measure(to, TOKEN, TINY, flows=2, pings=5)
    assert 0 < found["rtt_ms"] < 1000 and found["bandwidth_gbps"] > 0
    # Every byte that was allowed arrived, and not one more.
    assert found["mbytes"] == pytest.approx(TINY.mbytes, abs=1e-6)


def test_the_time_ends_a_measurement_as_well():
    with served(limits=Limits(1e5, 0.3)) as to:
        found = measure(to, TOKEN, Limits(1e5, 0.3), flows=1, pings=1)
    assert 0 < found["mbytes"] < 1e5


def test_the_rate_is_that_of_the_second_half():
    """Slow start and a queue that drains are not part of it: 10 B/s, then 100 B/s."""
    marks = [(0.0, 0)] + [(0.1 * n, n if n <= 10 else 10 + 10 * (n - 10)) for n in range(1, 31)]
    assert common_rate([marks]) == pytest.approx(100.0)
    assert common_rate([[(0.0, 0), (0.001, 50)]]) == pytest.approx(50_000)  # too short for halves


def test_flows_that_end_at_different_times_never_add_up_to_more_than_the_link():
    """A link of 100 B/s: one flow has 75 of them and ends after 2 s, the other has all of it then."""
    fast = [(5.0 + 0.1 * n, int(7.5 * n)) for n in range(21)]
    slow = [(5.0 + 0.1 * n, int(2.5 * n if n <= 20 else 50 + 10 * (n - 20))) for n in range(31)]
    assert common_rate([fast, slow]) == pytest.approx(100.0, rel=0.02)
    assert common_rate([slow, fast]) == pytest.approx(100.0, rel=0.02)
    alone = [common_rate([one]) for one in (fast, slow)]
    assert sum(alone) > 140  # each by its own second half


def test_flows_that_never_run_at_once_count_over_the_whole_time():
    first, second = [(0.0, 0), (1.0, 100)], [(1.0, 0), (2.0, 100)]
    assert common_rate([first, second]) == pytest.approx(100.0)


def test_few_marks_are_told_the_ends_among_them():
    marks = [(0.005 * n, n * n) for n in range(4000)]
    told = thinned(marks)
    assert len(told) <= MOST_MARKS and (told[0], told[-1]) == (marks[0], marks[-1])
    assert common_rate([told]) == pytest.approx(common_rate([marks]), rel=0.01)
    assert thinned(marks[:10]) == marks[:10]


def test_a_probe_that_tells_no_marks_is_named(monkeypatch):
    monkeypatch.setattr(flow, "_send", lambda *_: {"gbps": 1.0, "mbytes": 1.0, "seconds": 1.0})
    with served() as to, pytest.raises(ConnectionError, match="another version"):
        measure(to, TOKEN, TINY, flows=1, pings=1)


def test_an_unknown_client_is_refused_and_told_nothing(capsys):
    with served() as to:
        with pytest.raises(ConnectionError, match="refuses the token"):
            connected(to, b"another token of the tests")
        # Reflection: its own challenge sent back, and what it expects of a server.
        with socket.create_connection(to, timeout=5) as connection:
            greeting = exactly(connection, len(MAGIC) + NONCE)
            connection.sendall(greeting[len(MAGIC) :] + bytes(PROOF))
            assert connection.recv(1) == b""
        with connected(to, TOKEN):
            pass
    assert capsys.readouterr().err.count("refused 127.0.0.1: it does not know the token") == 2


def test_a_server_that_does_not_know_the_token_is_refused():
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=lambda: theirs.sendall(MAGIC + bytes(NONCE + PROOF)))
    thread.start()
    with ours, theirs, pytest.raises(ConnectionError, match="does not know the token"):
        greet_server(ours, TOKEN)
    ours, theirs = socket.socketpair()
    theirs.sendall(b"HTTP/1.1 400 Bad Request, and more text than a greeting is long\r\n\r\n")
    with ours, theirs, pytest.raises(ConnectionError, match="is no `hippo probe serve`"):
        greet_server(ours, TOKEN)


class Recorded:
    """A socket and what was sent over it."""

    def __init__(self, connection):
        self.connection, self.sent = connection, b""

    def recv(self, count):
        return self.connection.recv(count)

    def sendall(self, data):
        self.sent += data
        self.connection.sendall(data)


def greeted(client):
    """Let `client` speak to a server that knows the token; whether it was taken for one who does."""
    ours, theirs = socket.socketpair()
    known = []
    with ours, theirs:
        thread = threading.Thread(target=lambda: known.append(greet_client(theirs, TOKEN)))
        thread.start()
        client(ours)
        thread.join()
    return known[0]


def test_a_recorded_handshake_cannot_be_replayed():
    records = []

    def honest(connection):
        records.append(Recorded(connection))
        greet_server(records[0], TOKEN)

    assert greeted(honest) is True
    assert greeted(lambda connection: connection.sendall(records[0].sent)) is False


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        ({"do": "receive", "mbytes": 0.5, "seconds": 0.1}, "mbytes: expected a number > 0 and <="),
        ({"do": "receive", "mbytes": 0.1, "seconds": 9}, "seconds: expected"),
        ({"do": "receive", "mbytes": "all", "seconds": 0.1}, "mbytes"),
        ({"do": "echo", "count": -1}, "count"),
        ({"do": "shell"}, "do: expected echo, receive or measure"),
        ({}, "do: expected"),
        ({"do": "measure", "host": "192.0.2.1", "port": 80}, "bound to loopback"),
        ({"do": "measure", "host": "127.0.0.1", "port": 0}, "port"),
    ],
)
def test_what_is_beyond_the_limits_is_refused(request_, why):
    with served() as to, connected(to, TOKEN) as connection:
        put(connection, request_)
        with pytest.raises(ConnectionError, match=why):
            get(connection)


def test_a_sender_that_sends_more_than_it_said_is_cut_off(capsys):
    with served() as to, connected(to, TOKEN) as connection:
        put(connection, {"do": "receive", "mbytes": 0.01, "seconds": 0.5})
        get(connection)
        with pytest.raises(OSError):
            for _ in range(10_000):
                connection.sendall(bytes(65_536))
        connection.close()


def test_too_many_connections_at_once_are_closed(monkeypatch):
    monkeypatch.setattr(module, "MOST_AT_ONCE", 1)
    with served() as to, connected(to, TOKEN), pytest.raises(OSError):
        connected(to, TOKEN)


# --- the command ----------------------------------------------------------------------------------


@pytest.fixture
def token(tmp_path):
    (tmp_path / "token.txt").write_bytes(TOKEN + b"\n")
    return str(tmp_path / "token.txt")


def test_all_pairs_become_a_cluster_file_and_a_trace(tmp_path, token, capsys):
    out, trace = tmp_path / "sites.yaml", tmp_path / "sites.csv"
    with contextlib.ExitStack() as stack:
        names = ("north", "south", "west")
        hosts = ",".join(f"{name}={stack.enter_context(served())}" for name in names)
        words = ["--hosts", hosts, "--mbytes", "0.2", "--seconds", "0.5", "--flows", "1"]
        words += ["--pings", "3", "--rounds", "2", "--every", "0.01", "--gpus", "16,16,8"]
        words += ["--out", str(out), "--trace", str(trace), "--token", token]
        assert main(["probe", "run", *words]) == 0
    assert "2.4 MB will be sent at most" in capsys.readouterr().out
    spec = load_cluster(out)
    assert spec.domains == names and spec.gpus == (16, 16, 8)
    rows = [line.split(",") for line in trace.read_text().splitlines()[1:]]
    assert len(rows) == 12 and {(r[1], r[2]) for r in rows[:6]} == {
        (a, b) for a in names for b in names if a != b
    }
    mean = np.mean([float(r[3]) for r in rows if r[1:3] == ["north", "west"]])
    assert spec.bandwidth_gbps[0, 2] == pytest.approx(mean, abs=1e-6)
    # The trace moves around the file's own base: its mean factor is 1.
    factors = read_network_trace(trace, spec, 1000.0)
    assert factors[0, 0, 2] == pytest.approx(1.0, rel=1e-4)


def test_links_of_a_cluster_file_are_replaced_and_the_rest_stays(tmp_path, token):
    base = tmp_path / "base.yaml"
    spec = load_cluster()
    base.write_text(spec.to_yaml())
    with contextlib.ExitStack() as stack:
        hosts = ",".join(f"{name}={stack.enter_context(served())}" for name in spec.domains)
        words = ["--hosts", hosts, "--mbytes", "0.1", "--seconds", "0.5", "--flows", "1"]
        words += ["--pings", "1", "--rounds", "1", "--cluster", str(base), "--token", token]
        assert main(["probe", "measure", *words, "--out", str(tmp_path / "new.yaml")]) == 0
    new = load_cluster(tmp_path / "new.yaml")
    assert (new.gpus, new.usd_per_gpu_hour, new.gpu) == (spec.gpus, spec.usd_per_gpu_hour, spec.gpu)
    assert np.array_equal(new.egress_usd_per_gb, spec.egress_usd_per_gb)
    assert (new.rtt_ms != spec.rtt_ms)[~np.eye(4, dtype=bool)].all()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--hosts", "north=127.0.0.1:1"], "two hosts"),
        (["--hosts", "north,south"], "NAME=HOST:PORT"),
        (["--hosts", "a=h:1,a=h:2"], "every name once"),
        (["--hosts", "a=127.0.0.1:1,b=127.0.0.1:2"], "a to b"),
        (["--hosts", "a=127.0.0.1:1,b=127.0.0.1:2", "--token", "nowhere"], "nowhere"),
        (["--hosts", "a=127.0.0.1:1,b=127.0.0.1:2", "--flows", "99"], "--flows"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(tmp_path, token, capsys, words, named):
    out = tmp_path / "sites.yaml"
    assert main(["probe", "run", "--token", token, "--out", str(out), *words]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and named in err and not out.exists()


def test_a_token_is_needed_and_a_short_one_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("HIPPO_PROBE_TOKEN", raising=False)
    assert main(["probe", "serve"]) == 2
    assert "HIPPO_PROBE_TOKEN" in capsys.readouterr().err
    (tmp_path / "short").write_text("secret\n")
    assert main(["probe", "serve", "--token", str(tmp_path / "short")]) == 2
    assert "at least 16 bytes" in capsys.readouterr().err


# --- iperf3 ---------------------------------------------------------------------------------------


def iperf3(seconds, gbps, rtt_ms):
    return {
        "start": {"timestamp": {"timesecs": seconds}},
        "end": {
            "streams": [{"sender": {"min_rtt": 1000 * rtt_ms, "mean_rtt": 9000 * rtt_ms}}],
            "sum_received": {"bits_per_second": 1e9 * gbps},
        },
    }


def test_tests_of_iperf3_become_the_same_files(tmp_path):
    tests = tmp_path / "tests"
    tests.mkdir()
    for name, body in {
        "north--south--2": iperf3(1160, 2.0, 32),
        "north--south": iperf3(1100, 3.0, 30),
        "south--north": iperf3(1130, 1.0, 31),
    }.items():
        (tests / f"{name}.json").write_text(json.dumps(body))
    out, trace = tmp_path / "two.yaml", tmp_path / "two.csv"
    words = ["--results", str(tests), "--out", str(out), "--trace", str(trace)]
    assert main(["probe", "iperf3", *words]) == 0
    spec = load_cluster(out)
    assert spec.domains == ("north", "south")
    assert spec.bandwidth_gbps.tolist() == [[0, 2.5], [1.0, 0]]
    assert spec.rtt_ms.tolist() == [[0, 31.0], [31.0, 0]]
    assert [line.split(",")[0] for line in trace.read_text().splitlines()[1:]] == [
        *("0.000", "30.000", "60.000")
    ]


@pytest.mark.parametrize(
    ("name", "body", "named"),
    [
        ("north--south", {"error": "unable to connect"}, "unable to connect"),
        ("north--south", {**iperf3(0, 1, 1), "start": {}}, "start.timestamp.timesecs"),
        ("north--south", {**iperf3(1, 1, 1), "end": {"streams": []}}, "sum_received"),
        ("north-south", iperf3(1, 1, 1), "SRC--DST.json"),
        ("north--south", iperf3(1, 1, 1), "south to north"),
        ("north--south", [1], "expected a number"),
    ],
)
def test_a_bad_test_of_iperf3_is_one_line(tmp_path, capsys, name, body, named):
    (tmp_path / f"{name}.json").write_text(json.dumps(body))
    words = ["--results", str(tmp_path), "--out", str(tmp_path / "out.yaml")]
    assert main(["probe", "iperf3", *words]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and named in err and not (tmp_path / "out.yaml").exists()


def test_the_limits_of_a_message_hold():
    with served() as to, connected(to, TOKEN) as connection:
        connection.sendall(b"x" * 5000)
        assert connection.recv(1) == b""
    with pytest.raises(InputError, match="bind, port"):
        Server(Address("192.0.2.1", 1), TOKEN, TINY)
