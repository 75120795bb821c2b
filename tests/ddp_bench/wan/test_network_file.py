"""The resolved network: it reads back to itself, and what is wrong with it is one line."""

import json

import pytest

from ddp_bench.errors import ConfigError
from ddp_bench.wan import check
from ddp_bench.wan.network import Trace, parse_network, queue_kb, read_network


def body():
    network = check.uneven_network(3)
    rates = [[0.0, 10.0, 20.0], [30.0, 0.0, 40.0], [50.0, 60.0, 0.0]]
    return {
        **network.to_json(),
        "trace": {"interval_s": 2.0, "rates_mbps": [rates], "repeat": True},
    }


def test_a_network_reads_back_to_itself(tmp_path):
    file = tmp_path / "network.json"
    file.write_text(json.dumps(body()))
    network = read_network(file)
    assert network.to_json() == body()
    assert network.links[1, 2].rate_mbps != network.links[2, 1].rate_mbps
    assert isinstance(network.trace, Trace) and network.trace.rates_mbps[0][1][2] == 40.0


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("name", "Up Per", "name: allowed are 1 to 24"),
        ("domains", ["a"], "domains: allowed are 2 to 32 names"),
        ("domains", ["a", "b", "a"], "a name stands there twice"),
        ("rate_mbps", [[0, 1, 1], [1, 0, 1], [1, 2000, 0]], "rate_mbps[2][1]: allowed is a number"),
        ("delay_ms", [[0, 1], [1, 0]], "delay_ms: allowed is a 3 x 3 matrix"),
        (
            "loss",
            [[0, 1, 0], [0, 0, 0], [0, 0, 0]],
            "loss[0][1]: allowed is a number from 0 to 0.99",
        ),
        ("queue_kb", [[0, True, 0], [0, 0, 0], [0, 0, 0]], "queue_kb[0][1]"),
        ("trace", {"interval_s": 1}, "trace: allowed is a mapping with the keys"),
        ("trace", {"interval_s": 0, "rates_mbps": [[]], "repeat": True}, "trace: interval_s"),
        ("endpoints", {"congestion": "vegas", "buffer_mb": 1, "mtu": 1500}, "allowed bbr, reno"),
        ("extra", 1, "allowed is a mapping with the keys name, domains"),
    ],
)
def test_what_is_wrong_is_one_line_that_names_the_key(key, value, said):
    with pytest.raises(ConfigError) as refusal:
        parse_network({**body(), key: value}, "net.json")
    line = str(refusal.value)
    assert line.startswith("net.json: ") and said in line and "\n" not in line


def test_what_is_no_file_or_no_json_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        read_network(tmp_path / "none.json")
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(ConfigError, match="not valid JSON"):
        read_network(tmp_path / "a.json")


def test_a_queue_holds_one_bandwidth_delay_product_and_a_burst():
    assert queue_kb(100.0, 200.0) == 2500.0
    assert queue_kb(1.0, 1.0) == pytest.approx(262.144)
