"""Networks that are up: what clients measure, what commands do, what is left behind.

Limits here are wider than the emulator's own (`python -m ddp_bench.wan check`), since tests run beside
other work.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from helpers.wan import host_state, needs_networks

from analysis.records import write_json
from ddp_bench.errors import ConfigError
from ddp_bench.wan import check, clients, lifecycle, namespaces, tun
from ddp_bench.wan.__main__ import main
from ddp_bench.wan.network import LinkSpec, Network, Trace

pytestmark = needs_networks


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    before = host_state()
    yield
    lifecycle.down(check.NAME)
    assert host_state() == before


def test_round_trips_of_an_asymmetric_network():
    network = check.uneven_network(3)
    with check.brought_up(network):
        for i, j in ((0, 1), (2, 0), (1, 2)):
            asked = network.links[i, j].delay_ms + network.links[j, i].delay_ms
            found = clients.median(clients.round_trips_ms(check.NAME, i, j, 7))
            assert found == pytest.approx(asked, abs=1.5)


def test_one_flow_gets_the_rate_of_its_direction_alone():
    with check.brought_up(check.pair_network(80, 10)) as tell:
        tell(do="link", src="d1", dst="d0", rate_mbps=20.0)
        with clients.stream(check.NAME, 0, 1) as rate:
            rate(0.7)
            assert rate(1.0) == pytest.approx(80, rel=0.06)
        with clients.stream(check.NAME, 1, 0) as rate:
            rate(0.7)
            assert rate(1.0) == pytest.approx(20, rel=0.06)


def test_a_live_change_and_an_outage_take_hold():
    with check.brought_up(check.pair_network(50, 10)) as tell:
        rates = check._rates_around(tell, 10.0, 0.6, 0.05)
        assert clients.settling_s(rates[:-1], 0.05, 10.0, 0.3) <= 0.5
        tell(do="link", src="d0", dst="d1", rate_mbps=0.0)
        silent = clients.rates_over_time(check.NAME, 0, 1, 20.0, 0.4, 0.1)
        assert silent[-2:].sum() == 0.0
        assert tell(do="link", src="d0", dst="d1", rate_mbps=None)["rate_mbps"] == 50.0


def test_counters_say_what_passed_what_was_dropped_and_what_was_lost():
    with check.brought_up(check.pair_network(20, 10)) as tell:
        clients.rates_over_time(check.NAME, 0, 1, 60.0, 0.6, 0.1)
        link = tell(do="counters")["links"][0]
        assert (link["src"], link["dst"]) == ("d0", "d1")
        assert link["wire_bytes"] == pytest.approx(20e6 / 8 * 0.6, rel=0.3)
        assert link["dropped_bytes"] > 5e5 and link["lost_bytes"] == 0
        tell(do="link", src="d0", dst="d1", rate_mbps=500.0, loss=0.5)
        clients.rates_over_time(check.NAME, 0, 1, 20.0, 0.3, 0.1)
        assert tell(do="counters")["links"][0]["lost_bytes"] > 1e5


def test_a_trace_is_replayed_and_a_command_overrides_it():
    rows = [[[0.0, mbps], [mbps, 0.0]] for mbps in (40.0, 10.0)]
    spec = LinkSpec(40.0, 5.0, 262.0)
    network = Network(check.NAME, ("d0", "d1"), {(0, 1): spec, (1, 0): spec}, Trace(0.3, rows))
    with check.brought_up(network) as tell:
        tell(do="link", src="d1", dst="d0", rate_mbps=33.0)
        tell(do="link", src="d1", dst="d0", delay_ms=7.0)  # the rate stays
        with pytest.raises(ConfigError, match="rate_mbps"):  # and what is refused changes nothing
            tell(do="link", src="d0", dst="d1", rate_mbps=5000.0)
        seen = set()
        deadline = time.monotonic() + 5.0
        while len(seen) < 2 and time.monotonic() < deadline:
            forth, back = tell(do="counters")["links"]
            seen.add(forth["rate_mbps"])
            assert back["rate_mbps"] == 33.0
        assert seen == {40.0, 10.0}


def test_a_wrong_command_is_one_line(capsys):
    with check.brought_up(check.pair_network(20, 10)):
        for words in (
            ["link", "--name", "check", "--src", "d0", "--dst", "d7", "--rate_mbps", "5"],
            ["link", "--name", "check", "--src", "d0", "--dst", "d0", "--rate_mbps", "5"],
            ["link", "--name", "check", "--src", "d0", "--dst", "d1", "--rate_mbps", "5000"],
            ["link", "--name", "check", "--src", "d0", "--dst", "d1"],
            ["counters", "--name", "nobody"],
        ):
            assert main(words) == 2
            out, err = capsys.readouterr()
            assert not out and err.startswith("wan: ") and err.count("\n") == 1


def test_a_network_is_up_once(tmp_path):
    file = tmp_path / "network.json"
    write_json(file, check.pair_network(20, 10).to_json())
    with check.brought_up(check.pair_network(20, 10)):
        with pytest.raises(ConfigError, match="is up already"):
            lifecycle.up(file)
        assert lifecycle.is_up(check.NAME)


def kill_emulator(name):
    """kill -9, with a process of somebody's still inside a domain; that process."""
    sleeper = subprocess.Popen(lifecycle.command(name, "d0", ["sleep", "60"]))
    deadline = time.monotonic() + 5.0
    while not namespaces.processes(namespaces.namespace(name, 0)) and time.monotonic() < deadline:
        time.sleep(0.02)
    record = json.loads((lifecycle.STATE / f"{name}.json").read_text())
    os.kill(record["pid"], signal.SIGKILL)
    while lifecycle.is_up(name):
        time.sleep(0.01)
    return sleeper


def test_what_a_killed_emulator_left_is_cleared_by_the_next_network(tmp_path):
    file = tmp_path / "network.json"
    write_json(file, {**check.pair_network(20, 10).to_json(), "name": "first"})
    lifecycle.up(file)
    sleeper = kill_emulator("first")
    assert len(namespaces.existing("first")) == 2
    with check.brought_up(check.pair_network(20, 10)):
        assert not namespaces.existing("first") and len(namespaces.existing(check.NAME)) == 2
        assert sleeper.wait(5) != 0


def test_what_a_rebooted_machine_kept_is_cleared_by_the_same_network(tmp_path):
    """Where /run is on a disk, a reboot leaves the files of namespaces that are no more."""
    lifecycle.STATE.mkdir(exist_ok=True)
    for kind in ("lock", "json", "sock", "log"):
        (lifecycle.STATE / f"{check.NAME}.{kind}").touch()
    for domain in range(4):
        (tun.NETNS / namespaces.namespace(check.NAME, domain)).touch()
    with check.brought_up(check.pair_network(20, 10)):
        assert len(namespaces.existing(check.NAME)) == 2


def test_an_emulator_that_fails_says_why_and_leaves_nothing(tmp_path):
    file = tmp_path / "network.json"
    write_json(file, check.pair_network(20, 10).to_json())
    in_the_way = tun.NETNS / namespaces.namespace(check.NAME, 0)
    in_the_way.mkdir()  # which is no namespace, and cannot be deleted as one
    try:
        with pytest.raises(ConfigError, match=f"ip netns add {in_the_way.name}: "):
            lifecycle.up(file)
    finally:
        in_the_way.rmdir()


def test_down_all_clears_the_living_and_the_dead(tmp_path, capsys):
    if lifecycle.known():
        pytest.skip("networks of somebody else are here, and `down --all` would take them down")
    for name in ("first", "second"):
        file = tmp_path / f"{name}.json"
        write_json(file, {**check.pair_network(20, 10).to_json(), "name": name})
        assert main(["up", str(file)]) == 0
    kill_emulator("first")
    assert main(["down", "--all"]) == 0
    assert "first, second" in capsys.readouterr().out
    assert main(["down", "--all"]) == 0
    assert "nothing to take down" in capsys.readouterr().out


def test_a_network_ends_with_its_owner(tmp_path):
    file = tmp_path / "network.json"
    write_json(file, check.pair_network(20, 10).to_json())
    owner = subprocess.Popen(["sleep", "60"])
    lifecycle.up(file, owner=owner.pid)
    owner.kill()
    owner.wait()
    deadline = time.monotonic() + 10.0
    while namespaces.existing(check.NAME) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not namespaces.existing(check.NAME) and not lifecycle.is_up(check.NAME)
    with pytest.raises(ConfigError, match=f"there is no process {owner.pid}"):
        lifecycle.up(file, owner=owner.pid)


def test_nothing_is_left_of_a_check_that_is_killed(tmp_path):
    before = host_state()
    code = (
        "from ddp_bench.wan import check\n"
        "with check.brought_up(check.pair_network(20, 10)): print('up', flush=True); input()"
    )
    words = [sys.executable, "-c", code]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"up\n" and len(namespaces.existing(check.NAME)) == 2
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 10.0
    while host_state() != before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert host_state() == before


def test_eight_domains_and_both_directions_of_a_link_at_once():
    network = check.uneven_network(8)
    asked = {pair: network.links[pair].rate_mbps for pair in ((0, 1), (1, 0), (2, 3))}
    with check.brought_up(network) as tell, contextlib.ExitStack() as flows:
        rates = [flows.enter_context(clients.stream(check.NAME, *pair)) for pair in asked]
        rates[0](2.5)
        found = check._delivered_mbps(tell, lambda: rates[0](1.5))
    for (i, j), mbps in asked.items():
        assert found[f"d{i}", f"d{j}"] == pytest.approx(mbps, rel=0.08), (i, j)


def test_the_foreground_ends_on_a_signal_and_clears_up(tmp_path):
    file = tmp_path / "network.json"
    write_json(file, check.pair_network(20, 10).to_json())
    process = subprocess.Popen([sys.executable, "-m", "ddp_bench.wan", "serve", str(file)])
    deadline = time.monotonic() + 20.0
    while not lifecycle.socket_of(check.NAME).exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0
    assert not namespaces.existing(check.NAME)
