"""Cluster files: what they say, and one clear line for everything that is wrong with one."""

import copy
import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from helpers.toy_world import cluster_spec

from jaxsim.cluster.cluster import load_cluster, repeat_regions
from jaxsim.cluster.gpu import GPU_ALIASES, GPU_PRESETS
from jaxsim.files.errors import InputError

BODY = {
    "name": "two",
    "gpu": "A100-80GB",
    "domains": [
        {"name": "east", "gpus": 16, "gpus_per_node": 8, "usd_per_gpu_hour": 2.0},
        {"name": "west", "gpus": 8, "gpus_per_node": 4, "usd_per_gpu_hour": 1.5},
    ],
    "intra_domain": {"bandwidth_gbps": 400, "rtt_ms": 0.05},
    "wan": {
        "bandwidth_gbps": [[0, 4.0], [2.0, 0]],
        "rtt_ms": [[0, 60.0], [62.0, 0]],
        "egress_usd_per_gb": [[0, 0.02], [0.08, 0]],
    },
}
REMOVE = object()


def changed(*path_and_value):
    """The body with one entry replaced, added or removed."""
    *path, last, value = path_and_value
    body = copy.deepcopy(BODY)
    place = body
    for key in path:
        place = place[key]
    if value is REMOVE:
        del place[last]
    else:
        place[last] = value
    return body


def test_units_and_orientation(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(BODY))
    spec = load_cluster(path)
    cluster = spec.to_arrays(pad_to=4)
    np.testing.assert_allclose(cluster.bandwidth_gb_per_s[:2, :2], [[0, 0.5], [0.25, 0]])
    np.testing.assert_allclose(cluster.rtt_s[:2, :2], [[0, 0.06], [0.062, 0]], rtol=1e-6)
    np.testing.assert_allclose(cluster.egress_usd_per_gb[:2, :2], [[0, 0.02], [0.08, 0]], rtol=1e-6)
    np.testing.assert_allclose(cluster.intra_gb_per_s, 50.0)
    np.testing.assert_array_equal(cluster.mask, [True, True, False, False])
    np.testing.assert_array_equal(cluster.gpus, [16, 8, 0, 0])
    np.testing.assert_array_equal(cluster.gpus_per_node[:2], [8, 4])
    assert np.all(np.asarray(cluster.bandwidth_gb_per_s)[2:] == 0)
    # 80 GiB in 1e9 bytes.
    np.testing.assert_allclose(cluster.gpu.memory_gb, 80 * 2**30 / 1e9, rtol=1e-4)
    with pytest.raises(InputError, match="cannot pad 2 domains to 1"):
        spec.to_arrays(pad_to=1)


@pytest.mark.parametrize("path", [None, "file"])
def test_a_cluster_survives_the_round_trip_through_its_file(tmp_path, path):
    if path is not None:
        path = tmp_path / "c.yaml"
        path.write_text(yaml.safe_dump(changed("gpu", {
            "peak_tflops": 90, "memory_gb": 16.5, "memory_gb_per_s": 700, "nvlink_gb_per_s": 50,
        })))  # fmt: skip
    first = load_cluster(path)
    again = tmp_path / "again.yaml"
    again.write_text(first.to_yaml())
    second = load_cluster(again)
    for field, value in vars(first).items():
        np.testing.assert_array_equal(getattr(second, field), value, err_msg=field)


OFFER = {"usd_per_gpu_hour": 0.7, "reclaims_per_day": 3, "away_minutes": 12.5}


def test_spot_offers_survive_the_round_trip_and_the_repetition_of_regions(tmp_path):
    assert load_cluster().spot == ()
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(changed("domains", 1, "spot", OFFER)))
    first = load_cluster(path)
    assert first.spot[0] is None
    offer = first.spot[1]
    assert offer.away_s == 750.0 and offer.reclaims_per_s * 86400.0 == pytest.approx(3.0)
    assert offer.there(2.0) == pytest.approx(1.0 / (1.0 + 6.0 * 750.0 / 86400.0))
    path.write_text(first.to_yaml())
    assert load_cluster(path).spot == first.spot
    assert repeat_regions(first, 4).spot == (None, offer, None, offer)


@pytest.mark.parametrize(("alias", "name"), GPU_ALIASES.items())
def test_an_alias_is_the_gpu_that_it_stands_for(tmp_path, alias, name):
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(changed("gpu", alias)))
    spec = load_cluster(path)
    assert spec.gpu == name and spec.gpu_specs[0] == GPU_PRESETS[name]


BAD = {
    "spot GPUs without a price": (
        changed("domains", 1, "spot", {k: v for k, v in OFFER.items() if "usd" not in k}),
        ["domains[1].spot", "usd_per_gpu_hour"],
    ),
    "spot GPUs that are away for less than no time": (
        changed("domains", 1, "spot", {**OFFER, "away_minutes": -1}),
        ["domains[1].spot.away_minutes", ">= 0", "-1"],
    ),
    "spot GPUs taken every second": (
        changed("domains", 1, "spot", {**OFFER, "reclaims_per_day": 86400}),
        ["domains[1].spot.reclaims_per_day", "at most 1440", "86400"],
    ),
    "three rows for two domains": (
        changed("wan", "bandwidth_gbps", [[0, 1], [1, 0], [1, 1]]),
        ["wan.bandwidth_gbps", "2 x 2", "east, west"],
    ),
    "a short row": (changed("wan", "rtt_ms", [[0, 1], [1]]), ["wan.rtt_ms", "2 x 2"]),
    "no matrix": (changed("wan", "rtt_ms", 5), ["wan.rtt_ms", "2 x 2", "got 5"]),
    "a negative bandwidth": (
        changed("wan", "bandwidth_gbps", 0, 1, -4.0),
        ["wan.bandwidth_gbps[east][west]", ">= 1e-09", "-4.0"],
    ),
    "a dead link": (
        changed("wan", "bandwidth_gbps", 1, 0, 0),
        ["wan.bandwidth_gbps[west][east]", ">= 1e-09", "got 0"],
    ),
    "NaN": (
        changed("wan", "egress_usd_per_gb", 0, 1, float("nan")),
        ["wan.egress_usd_per_gb[east][west]", ">= 0", "nan"],
    ),
    "infinity": (
        changed("wan", "bandwidth_gbps", 0, 1, float("inf")),
        ["wan.bandwidth_gbps[east][west]", "inf"],
    ),
    "a word for a number": (
        changed("domains", 1, "usd_per_gpu_hour", "cheap"),
        ["domains[1].usd_per_gpu_hour", ">= 0", "'cheap'"],
    ),
    "half a GPU": (changed("domains", 0, "gpus", 7.5), ["domains[0].gpus", "integer >= 1", "7.5"]),
    "more GPUs than can be counted": (
        changed("domains", 0, "gpus", 4_000_000_000),
        ["domains[0].gpus", "at most 16777216", "got 4000000000"],
    ),
    "a bandwidth of 400 digits": (
        changed("wan", "bandwidth_gbps", 0, 1, 10**399),
        ["wan.bandwidth_gbps[east][west]", "at most 1e+12", "got 1000"],
    ),
    "a memory of 400 digits": (
        changed("gpu", {
            "peak_tflops": 1, "memory_gb": 10**399, "memory_gb_per_s": 1, "nvlink_gb_per_s": 1,
        }),
        ["gpu.memory_gb", "at most 1e+12", "got 1000"],
    ),
    "a link of a domain to itself": (
        changed("wan", "rtt_ms", 1, 1, 0.5),
        ["wan.rtt_ms[west][west]", "expected 0, got 0.5", "intra_domain"],
    ),
    "no GPU": (changed("domains", 0, "gpus", 0), ["domains[0].gpus", "integer >= 1", "got 0"]),
    "a boolean": (changed("domains", 0, "gpus", True), ["domains[0].gpus", "integer >= 1"]),
    "more GPUs in a node than in the domain": (
        changed("domains", 1, "gpus_per_node", 9),
        ["domains[1].gpus_per_node", "from 1 to 8", "got 9"],
    ),
    "no name": (changed("domains", 0, "name", None), ["domains[0].name", "text", "None"]),
    "a list for a GPU": (changed("gpu", ["A100-80GB"]), ["gpu", "expected a preset or a mapping"]),
    "a misspelt GPU": (changed("gpu", "A100-80BG"), ["'A100-80BG' (did you mean A100-80GB?)"]),
    "a GPU too slow for float32": (
        changed("gpu", {
            "peak_tflops": 1e-40, "memory_gb": 1, "memory_gb_per_s": 1, "nvlink_gb_per_s": 1,
        }),
        ["gpu.peak_tflops", "> 0 (at least 1e-06)", "1e-40"],
    ),
    "an unknown GPU": (changed("gpu", "B300"), ["gpu", "'B300'", *GPU_PRESETS]),
    "a GPU without memory": (
        changed("gpu", {"peak_tflops": 300}),
        ["gpu", "peak_tflops, memory_gb, memory_gb_per_s, nvlink_gb_per_s"],
    ),
    "a GPU of infinite speed": (
        changed("gpu", {
            "peak_tflops": float("inf"),
            "memory_gb": 1,
            "memory_gb_per_s": 1,
            "nvlink_gb_per_s": 1,
        }),
        ["gpu.peak_tflops", "> 0", "at most 1e+12", "inf"],
    ),
    "a GPU with a numeric key": (
        changed("gpu", {1: 2, "peak_tflops": 300}),
        ["gpu", "peak_tflops, memory_gb"],
    ),
    "an unknown key at the top": (changed("colour", "red"), ["'colour'", "allowed: name, gpu"]),
    "an unknown key in a domain": (
        changed("domains", 1, "gpu_count", 8),
        ["domains[1]", "'gpu_count'", "allowed: name, gpus, gpus_per_node, usd_per_gpu_hour"],
    ),
    "a missing key at the top": (changed("wan", REMOVE), ["missing key 'wan'"]),
    "a missing key in a domain": (
        changed("domains", 0, "gpus", REMOVE),
        ["domains[0]", "missing key 'gpus'"],
    ),
    "a missing matrix": (changed("wan", "rtt_ms", REMOVE), ["wan", "missing key 'rtt_ms'"]),
    "no domains": (changed("domains", []), ["domains", "at least one"]),
    "a domain that is a word": (changed("domains", 0, "east"), ["domains[0]", "mapping"]),
    "a name twice": (changed("domains", 1, "name", "east"), ["domains", "'east'", "twice"]),
    "no intra bandwidth": (
        changed("intra_domain", "bandwidth_gbps", 0),
        ["intra_domain.bandwidth_gbps", ">= 1e-09"],
    ),
    "a list": ([1, 2], ["mapping", "name, gpu, domains, intra_domain, wan"]),
}  # fmt: skip


def refuse(path, words):
    with pytest.raises(InputError) as error:
        load_cluster(path)
    text = str(error.value)
    assert "\n" not in text
    for word in [str(path), *words]:
        assert word in text, f"{word!r} is not in {text!r}"


@pytest.mark.parametrize("case", BAD)
def test_bad_cluster_file_is_one_line_naming_file_and_key(tmp_path, case):
    body, words = BAD[case]
    path = tmp_path / "bad.yaml"
    path.write_text(yaml.safe_dump(body))
    refuse(path, words)


def test_files_that_are_no_cluster_files(tmp_path):
    refuse(tmp_path / "missing.yaml", ["cannot be read"])
    broken = tmp_path / "broken.yaml"
    broken.write_text("name: two\ndomains: [1, 2\n")
    refuse(broken, ["not valid YAML"])
    twice = tmp_path / "twice.yaml"
    twice.write_text(yaml.safe_dump(BODY) + "gpu: H100-80GB\n")
    refuse(twice, ["not valid YAML", "'gpu' stands twice"])
    long = tmp_path / "long.yaml"
    long.write_text(yaml.safe_dump(BODY).replace("400", "4" * 5000))
    refuse(long, ["not valid YAML", "digits"])
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x81")
    refuse(binary, ["cannot be read"])
    control = tmp_path / "control.yaml"
    control.write_text("name: \x00two")
    refuse(control, ["not valid YAML"])


@pytest.mark.parametrize("name", ["mixed-aws-regions", "large-aws-regions"])
def test_larger_clusters_scale_the_published_links_by_the_nodes_that_take_part(name):
    """In eight-aws-regions a link is four node pairs; here as many as the smaller region has nodes."""
    published, larger = load_cluster("eight-aws-regions"), load_cluster(name)
    nodes = np.array(larger.gpus) // np.array(larger.gpus_per_node)
    pairs = np.minimum(nodes[:, None], nodes[None, :])
    np.testing.assert_allclose(
        larger.bandwidth_gbps, published.bandwidth_gbps / 4 * pairs, rtol=1e-3
    )
    np.testing.assert_array_equal(larger.rtt_ms, published.rtt_ms)
    np.testing.assert_array_equal(larger.egress_usd_per_gb, published.egress_usd_per_gb)
    assert larger.domains == published.domains
    # A replica of 70B, or of 405B, takes 16 bytes a parameter and more.
    billions = {"mixed-aws-regions": 70, "large-aws-regions": 405}[name]
    alone = np.array(larger.gpus) * larger.gpu_specs[0].memory_gb > 16 * billions
    assert alone.sum() == {"mixed-aws-regions": 5, "large-aws-regions": 0}[name]


def test_traffic_in_a_standstill_is_set_against_the_price_of_one_gpu():
    """Two domains at 2 and 3 USD an hour, one of padding: half an hour of 4 + 2 GPUs, then of none."""
    spec = cluster_spec(2, gpus=4)
    cluster = dataclasses.replace(spec, usd_per_gpu_hour=(2.0, 3.0)).to_arrays(3)
    half_an_hour = jnp.float32(1800.0)
    held = cluster.gpu_usd(jnp.array([4.0, 2.0, 0.0]), half_an_hour)
    assert float(held) == pytest.approx(0.5 * (4 * 2 + 2 * 3))
    assert float(cluster.gpu_usd(jnp.zeros(3), half_an_hour)) == pytest.approx(0.5 * 2)
