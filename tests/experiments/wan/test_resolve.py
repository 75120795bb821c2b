"""A cluster file and a trace as a resolved network."""

import json

import numpy as np
import pytest

from ddp_bench.wan.network import MOST_DOMAINS, MOST_MBPS, SMALLEST_QUEUE, parse_network
from experiments.cli import main
from experiments.wan import resolve as resolving
from experiments.wan.resolve import NetworkOptions, resolve, slug
from jaxsim.cluster import load_cluster
from jaxsim.files import InputError

TRACE = "t_s,src,dst,factor\n0,virginia,ohio,0.5\n60,virginia,ohio,1.5\n60,ohio,oregon,0.25\n"


@pytest.fixture
def trace(tmp_path):
    file = tmp_path / "trace.csv"
    file.write_text(TRACE)
    return str(file)


def test_links_are_those_of_the_cluster_at_scale(trace):
    spec = load_cluster()
    network = parse_network(resolve(NetworkOptions(trace=trace, scale=0.1)), "resolved")
    assert network.domains == spec.domains
    for (i, j), link in network.links.items():
        assert link.rate_mbps == pytest.approx(100 * spec.bandwidth_gbps[i, j])
        assert link.delay_ms == pytest.approx(spec.rtt_ms[i, j] / 2)
        room = max(link.rate_mbps * spec.rtt_ms[i, j] / 8, SMALLEST_QUEUE / 1e3)
        assert link.queue_kb == pytest.approx(room)


def test_a_trace_is_scaled_in_rate_and_time(trace):
    spec = load_cluster()
    network = parse_network(resolve(NetworkOptions(trace=trace, scale=0.1)), "resolved")
    rows = np.array(network.trace.rates_mbps)
    assert network.trace.interval_s == pytest.approx(6.0)
    base = 100 * np.asarray(spec.bandwidth_gbps)
    assert rows[:, 0, 1] / base[0, 1] == pytest.approx([0.5, 1.5])
    assert rows[:, 1, 2] / base[1, 2] == pytest.approx([1.0, 0.25])
    alone = resolve(NetworkOptions(trace=trace, scale=0.1, time_scale=0.5))
    assert alone["trace"]["interval_s"] == pytest.approx(30.0)
    assert alone["rate_mbps"] == network.to_json()["rate_mbps"]


def test_the_limits_are_those_of_the_emulator():
    assert (resolving.MOST_MBPS, resolving.MOST_DOMAINS) == (MOST_MBPS, MOST_DOMAINS)
    assert resolving.SMALLEST_QUEUE_KB == SMALLEST_QUEUE / 1e3


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"scale": 1.0}, "--scale 1: four-aws-regions has links of 6.72 Gbit/s"),
        (
            {"scale": 0.1, "time_scale": 1e-5},
            "--time_scale 1e-05: rows of 60 s would last 0.0006 s",
        ),
    ],
)
def test_what_cannot_be_emulated_is_refused(options, said, trace):
    with pytest.raises(InputError, match=said):
        resolve(NetworkOptions(trace=trace, **options))


def test_the_scale_that_the_refusal_names_is_accepted():
    with pytest.raises(InputError) as refusal:
        resolve(NetworkOptions(scale=5.0))
    allowed = float(str(refusal.value).rpartition(" ")[2])
    rates = np.array(resolve(NetworkOptions(scale=allowed))["rate_mbps"])
    assert 0.99 * MOST_MBPS < rates.max() <= MOST_MBPS


def test_a_cluster_of_one_domain_has_no_network(tmp_path):
    file = tmp_path / "one.yaml"
    file.write_text(
        "name: one\ngpu: A100-80GB\ndomains:\n"
        "  - {name: a, gpus: 8, gpus_per_node: 8, usd_per_gpu_hour: 2.0}\n"
        "intra_domain: {bandwidth_gbps: 400, rtt_ms: 0.05}\n"
        "wan: {bandwidth_gbps: [[0]], rtt_ms: [[0]], egress_usd_per_gb: [[0]]}\n"
    )
    with pytest.raises(InputError, match="one: domains: expected 2 to 32"):
        resolve(NetworkOptions(cluster=str(file)))


def test_a_network_is_named_after_its_cluster():
    assert slug("EU (West) / 2") == "eu-west-2" and slug("...") == "network"
    assert len(slug("a" * 99)) == 24


def test_the_command_writes_the_resolved_network(tmp_path, trace, capsys):
    file = tmp_path / "network.json"
    words = ["wan", "up", "--trace", trace, "--scale", "0.1", "--loss", "0.01", "--name", "mine"]
    assert main([*words, "--write", str(file)]) == 0
    network = parse_network(json.loads(file.read_text()), "written")
    assert network.name == "mine" and network.links[0, 1].loss == 0.01
    assert main([*words, "--write", str(tmp_path / "no" / "n.json")]) == 2
    assert "the folder does not exist" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["up", "--scale", "0"], "a number > 0"),
        (["up", "--congestion", "vegas"], "vegas"),
        (["up", "--mtu", "100"], "1280"),
        (["up", "--clusters", "x"], "did you mean --cluster?"),
        (["lnik"], "did you mean link?"),
        (["down"], "--all"),
    ],
)
def test_a_wrong_command_line_is_one_line(words, said, capsys):
    assert main(["wan", *words]) == 2
    out, err = capsys.readouterr()
    assert not out and err.count("\n") == 1 and said in err
