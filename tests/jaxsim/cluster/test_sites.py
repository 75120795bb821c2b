"""Domains with GPUs and networks of their own: the file, and what becomes of it."""

import copy
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml

from jaxsim.cluster import (
    GPU_PRESETS,
    PRIORS,
    Intra,
    Site,
    default_calibration,
    padded_calibration,
    parse_cluster,
    prior_belief,
    repeat_regions,
    site_samples,
)
from jaxsim.cluster.sites import SHARED, site_calibration
from jaxsim.files import InputError

FIGURES = {"peak_tflops": 90, "memory_gb": 16, "memory_gb_per_s": 700, "nvlink_gb_per_s": 50}
PLAIN = {
    "name": "three",
    "gpu": "A100-80GB",
    "domains": [
        {"name": name, "gpus": 8, "gpus_per_node": 8, "usd_per_gpu_hour": 2.0} for name in "abc"
    ],
    "intra_domain": {"bandwidth_gbps": 400, "rtt_ms": 0.05},
    "wan": {
        "bandwidth_gbps": (4 * (1 - np.eye(3))).tolist(),
        "rtt_ms": (30 * (1 - np.eye(3))).tolist(),
        "egress_usd_per_gb": (0.02 * (1 - np.eye(3))).tolist(),
    },
}


def cluster(*own, **changes):
    """Three domains, of which these have keys of their own."""
    body = copy.deepcopy(PLAIN) | changes
    for domain, keys in zip(body["domains"], own, strict=False):
        domain |= keys
    return parse_cluster(yaml.safe_dump(body), "c.yaml")


def test_a_domain_has_the_clusters_gpus_and_network_unless_it_states_its_own():
    spec = cluster({}, {"gpu": "H100", "intra_domain": {"fabric": "infiniband-ndr-x8"}})
    assert spec.gpu_of == ("A100-80GB", "H100-80GB", "A100-80GB")
    assert (spec.gpu_types, spec.type_of) == (["A100-80GB", "H100-80GB"], [0, 1, 0])
    assert spec.sites == (Site(), Site("H100-80GB", Intra(3200.0, 0.004)), Site())
    arrays = spec.to_arrays(pad_to=4)
    peaks = [GPU_PRESETS[name].peak_tflops for name in (*spec.gpu_of, "A100-80GB")]
    np.testing.assert_allclose(arrays.gpu.peak_tflops, peaks)
    np.testing.assert_allclose(arrays.intra_gb_per_s, [50.0, 400.0, 50.0, 50.0])
    np.testing.assert_allclose(arrays.intra_rtt_s, [5e-5, 4e-6, 5e-5, 5e-5], rtol=1e-6)
    held = jnp.array([8, 4, 0, 0])
    assert arrays.peak_tflops(held) == pytest.approx(peaks[0] * 8 + peaks[1] * 4)


def test_domains_that_state_what_all_have_change_nothing():
    """Not even the shape of a leaf: programs that are compiled serve both."""
    same = {"gpu": "A100", "intra_domain": {"bandwidth_gbps": 400, "rtt_ms": 0.05}}
    plain, stated = cluster(), cluster(same, {}, same)
    assert plain.sites == () and len(stated.sites) == 3
    for one, other in (
        (plain.to_arrays(4), stated.to_arrays(4)),
        (plain.calibration, stated.calibration),
    ):
        for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
            assert a.shape == b.shape and np.array_equal(a, b)
    assert plain.efficiency_source == stated.efficiency_source


def test_every_domain_has_the_efficiency_of_its_type_and_links_have_one():
    spec = cluster({}, {"gpu": "H100-80GB"}, {"gpu": FIGURES})
    found = spec.calibration
    of_types = [default_calibration(gpu) for gpu in spec.gpu_of]
    differ = 0
    cluster_s = float(of_types[0].restart_s)
    assert float(cluster({"gpu": FIGURES}, {"gpu": FIGURES}).calibration.restart_s) == cluster_s
    for name in PRIORS:
        own = [float(getattr(one, name)) for one in of_types]
        value = np.asarray(getattr(found, name))
        np.testing.assert_allclose(value, own[0] if name in SHARED else own, rtol=1e-6)
        differ += len(set(own)) > 1
    assert differ > 10
    cut = padded_calibration(padded_calibration(found, 5), 3)
    for a, b in zip(jax.tree.leaves(cut), jax.tree.leaves(found), strict=True):
        np.testing.assert_array_equal(a, b)
    padded = padded_calibration(found, 5)
    np.testing.assert_array_equal(padded.gemm_efficiency[3:], [found.gemm_efficiency[0]] * 2)
    assert padded.restart_s.shape == () and padded_calibration(of_types[0], 5) is not None
    source = spec.efficiency_source
    assert source.gpu == "A100-80GB, H100-80GB" and "figures" in source.why


def test_draws_of_a_type_are_alike_in_its_domains_and_independent_of_another_types():
    belief = prior_belief()
    draws = site_samples([belief, belief], [0, 1, 0], belief, 400, seed=0)
    straggler = np.log(np.asarray(draws.straggler))
    assert straggler.shape == (400, 3) and draws.wan_efficiency.shape == (400,)
    np.testing.assert_array_equal(straggler[:, 0], straggler[:, 2])
    assert abs(np.corrcoef(straggler[:, 0], straggler[:, 1])[0, 1]) < 0.15
    one = belief.calibration()
    assert site_calibration([one], [0, 0], one).straggler.shape == ()


def test_sites_survive_the_round_trip_and_the_repetition_of_regions():
    spec = cluster({"gpu": FIGURES}, {"intra_domain": {"fabric": "efa-p5"}})
    again = parse_cluster(spec.to_yaml(), "again.yaml")
    assert again.sites == spec.sites and again.gpu_of == spec.gpu_of
    assert repeat_regions(spec, 4).sites == (*spec.sites, spec.sites[0])


BAD = {
    "no such type": ({"gpu": "B300"}, ["domains[0]: gpu", "B300", "A100-80GB"]),
    "figures that lack one": (
        {"gpu": {"peak_tflops": 90}},
        ["domains[0]: gpu", "memory_gb_per_s"],
    ),
    "no such fabric": ({"intra_domain": {"fabric": "string"}}, ["domains[0].intra_domain.fabric"]),
    "a network of nothing": (
        {"intra_domain": {"bandwidth_gbps": 0, "rtt_ms": 0.1}},
        ["domains[0].intra_domain.bandwidth_gbps", "got 0"],
    ),
}


@pytest.mark.parametrize(("own", "said"), BAD.values(), ids=BAD)
def test_what_is_wrong_with_a_domain_is_one_line(own, said):
    with pytest.raises(InputError) as caught:
        cluster(own)
    assert "\n" not in str(caught.value) and all(word in str(caught.value) for word in said)


def test_a_calibration_file_must_serve_every_type(tmp_path):
    file = tmp_path / "c.yaml"
    entry = {"parameters": {"straggler": 0.02}}
    file.write_text(yaml.safe_dump({"calibrations": {"A100-80GB": entry}}))
    assert cluster(calibration=str(file)).calibration.straggler == pytest.approx(0.02)
    with pytest.raises(InputError, match="none for H100-80GB"):
        cluster({}, {"gpu": "H100-80GB"}, calibration=str(file))
    with pytest.raises(InputError, match="a type, not with figures"):
        cluster({}, {"gpu": FIGURES}, calibration=str(file))


def test_sites_are_of_all_domains_or_of_none():
    with pytest.raises(ValueError, match="2 sites for 3 domains"):
        dataclasses.replace(cluster(), sites=(Site(), Site()))
