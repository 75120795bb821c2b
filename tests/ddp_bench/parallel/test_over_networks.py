"""Training over emulated links: sums that spare the WAN, an outage, a network that dies."""

import json
import os
import signal
import threading
import time

import pytest
from helpers.wan import host_state, needs_networks
from helpers.wan_jobs import ALONE, DATA_PARALLEL, PIPELINE, job, losses, pipeline, plan, train

from analysis.records import write_json
from ddp_bench.errors import ConfigError
from ddp_bench.parallel.launch import RankEnded, checked
from ddp_bench.wan import LinkSpec, Network, ask, down, socket_of, up
from ddp_bench.wan.lifecycle import STATE

pytestmark = [needs_networks, pytest.mark.nightly]
NAME = "tested"


@pytest.fixture
def network(tmp_path):
    """Two domains, a and b, 200 Mbit/s and 10 ms apart; what it gives sends commands."""
    before = host_state()
    links = {pair: LinkSpec(200.0, 5.0, 300.0) for pair in ((0, 1), (1, 0))}
    write_json(tmp_path / "net.json", Network(NAME, ("a", "b"), links).to_json())
    up(tmp_path / "net.json")
    yield lambda **request: ask(socket_of(NAME), NAME, **request)
    down(NAME)
    assert host_state() == before


def after_steps(folder, count, work):
    """Call `work` in a thread once rank 0 has done `count` steps."""

    def wait():
        rows = folder / "ranks" / "rank0.jsonl"
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if rows.exists() and rows.read_text().count('"steps"') >= count:
                return work()
            time.sleep(0.02)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def test_replicas_of_a_domain_sum_before_they_use_the_wan(network, tmp_path):
    halves = [pipeline((d, 4), dp=2, micro_batches=1, micro_batch=2) for d in "ab"]
    sent = {}
    for reduce in ("flat", "hierarchical"):
        body = plan(*halves, reduce=reduce)
        record = train(tmp_path / reduce, body, ("a", "a", "b", "b"), network=NAME)
        links = record.table("links").query("step > 0")
        sent[reduce] = links["sent_mb"].sum()
        volume = 3 * 4e-6 * job(body, ("a", "a", "b", "b")).model.params
        # Two of the ranks share the sums: each sends the whole once each way.
        if reduce == "hierarchical":
            assert links.groupby("src")["sent_mb"].sum().to_list() == pytest.approx(
                2 * [volume], rel=0.2
            )
    assert sent["hierarchical"] < 0.8 * sent["flat"]


def test_a_change_of_plan_waits_for_an_outage_to_pass(network, tmp_path):
    """Domain a trains alone, and uses no link. Its link is out when a plan comes that needs it."""

    folder, at = tmp_path / "run", 200

    def outage():
        network(do="link", src="a", dst="b", rate_mbps=0.0)
        after_steps(folder, at, lambda: time.sleep(3.0)).join()
        network(do="link", src="a", dst="b", rate_mbps=200.0)

    still = losses(train(tmp_path / "still", ALONE, steps=at + 10))
    thread = after_steps(folder, 2, outage)
    record = train(folder, ALONE, steps=at + 10, network=NAME, then=[[at, PIPELINE]])
    thread.join()
    before = record.table("steps").query(f"step < {at}")
    assert before["wall_s"].max() < 1.0  # no step waited
    assert record.table("transitions")["lost_s"].max() > 2.0
    assert losses(record) == pytest.approx(still, rel=1e-4)


def test_a_change_of_plan_in_an_outage_that_does_not_pass_ends_with_one_line(network, tmp_path):
    folder = tmp_path / "run"
    out = dict(do="link", src="a", dst="b", rate_mbps=0.0)
    thread = after_steps(folder, 2, lambda: network(**out))
    # Rank b waits for a plan that gives it a part; whichever of the two fails first is named.
    when = r"(after step \d+|before its first step)"
    with pytest.raises(RankEnded, match=rf"rank \d \([ab]\) failed {when}: "):
        train(folder, ALONE, steps=400, network=NAME, timeout_s=5.0, then=[[390, PIPELINE]])
    thread.join()


def test_a_network_that_dies_ends_the_run_with_one_line(network, tmp_path):
    folder = tmp_path / "run"
    pid = json.loads((STATE / f"{NAME}.json").read_text())["pid"]
    thread = after_steps(folder, 2, lambda: os.kill(pid, signal.SIGKILL))
    with pytest.raises(RankEnded, match=r"rank \d \([ab]\) failed after step \d+: "):
        train(folder, DATA_PARALLEL, steps=1000, network=NAME, timeout_s=6.0)
    thread.join()


def test_training_needs_a_network_that_is_up():
    with pytest.raises(ConfigError, match="network 'nobody' is not up"):
        checked(job(DATA_PARALLEL, network="nobody"))
