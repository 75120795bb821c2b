"""Questions of the kind "what if": how they are written, and what they do to a cluster."""

import numpy as np
import pytest
from helpers.toy_world import cluster_spec

from experiments.plan.whatif import changed, joined, parse_changes
from jaxsim.files.errors import InputError


def after(text, n=3):
    return changed(cluster_spec(n, gpus=8), parse_changes(text))


def test_a_link_changes_in_both_directions_and_no_other():
    spec, gone = after("link=a:b,factor=0.5,rtt_ms=7")
    before = cluster_spec(3, gpus=8)
    same = np.ones((3, 3), bool)
    same[0, 1] = same[1, 0] = False
    np.testing.assert_allclose(spec.bandwidth_gbps[~same], 0.5 * before.bandwidth_gbps[~same])
    np.testing.assert_array_equal(spec.rtt_ms[~same], 7.0)
    np.testing.assert_array_equal(spec.bandwidth_gbps[same], before.bandwidth_gbps[same])
    assert not gone and spec.gpus == before.gpus


def test_all_links_and_several_changes():
    spec, _ = after("link=all,gbps=3; link=c:a,factor=2")
    assert spec.bandwidth_gbps[0, 1] == 3 and spec.bandwidth_gbps[0, 2] == 6
    assert not np.diag(spec.bandwidth_gbps).any()


def test_a_domain_loses_gpus_or_all_of_them_or_gets_dearer():
    spec, gone = after("domain=b,gpus=2,usd_per_gpu_hour=9")
    assert spec.gpus == (8, 2, 8) and spec.gpus_per_node == (8, 2, 8) and not gone
    assert spec.usd_per_gpu_hour[1] == 9
    spec, gone = after("domain=b,gpus=0")
    assert gone == {"b"} and spec.domains == ("a", "b", "c")


def test_a_domain_gets_gpus_of_another_type():
    spec, gone = after("domain=b,gpu=H100,gpus=2")
    assert spec.gpu_of == (spec.gpu, "H100-80GB", spec.gpu) and not gone
    assert spec.gpus == (8, 2, 8) and spec.intra_of[1] == spec.intra_of[0]
    spec, _ = after("domain=b,gpu=H100;domain=a,gpu=V100-32GB")
    assert spec.gpu_of[:2] == ("V100-32GB", "H100-80GB")


def test_an_option_that_is_given_several_times_is_one():
    argv = [
        "--model",
        "x",
        "--what-if",
        "link=a:b,factor=2",
        "--what_if=domain=c,gpus=0",
        "--quick",
    ]
    assert joined(argv) == [
        *["--model", "x", "--quick"],
        *["--what-if", "link=a:b,factor=2;domain=c,gpus=0"],
    ]
    assert joined(["--model", "x"]) == ["--model", "x"]
    assert joined(["--what-if"]) == ["--what-if"]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("a:b", ["what_if", "link=a:b"]),
        ("link=a:b", ["link=a:b"]),
        ("lnk=a:b,factor=2", ["link=a:b"]),
        ("link=a,factor=2", ["two domains"]),
        ("link=a:a,factor=2", ["two domains"]),
        ("link=a:b,factr=2", ["factr", "factor"]),
        ("link=a:b,gpus=2", ["gpus", "factor"]),
        ("link=a:b,factor=2,factor=3", ["factor stands twice"]),
        ("link=a:b,factor=0", ["factor", ">="]),
        ("link=a:b,factor=nan", ["factor", "nan"]),
        ("domain=a,gpus=1.5", ["gpus", "whole"]),
        ("domain=a,gpus=-1", ["gpus", "-1"]),
        ("domain=a,gpu=H99", ["what_if: gpu", "H99", "H100-80GB"]),
        ("domain=a,gpu=H100,gpu=A100", ["gpu stands twice"]),
        ("link=a:z,factor=2", ["z", "a, b, c"]),
        ("domain=z,gpus=1", ["z", "a, b, c"]),
        ("domain=a,gpus=0;domain=b,gpus=0;domain=c,gpus=0", ["no domain"]),
    ],
)
def test_a_question_that_makes_no_sense_is_refused_in_one_line(text, named):
    with pytest.raises(InputError) as error:
        after(text)
    assert all(word in str(error.value) for word in named), error.value
