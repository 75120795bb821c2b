"""Collectives on real ranks, and the model of their time."""

import os

import numpy as np
import pytest

pytest.importorskip("torch")

from helpers import toolbox_ranks

from ddp_bench.microbench import (
    COLLECTIVES,
    Point,
    fit_collective,
    left_out_errors,
    measure_collectives,
)
from ddp_bench.microbench.profile import profile_name, write_profile
from ddp_bench.toolbox import RanksFailed, Repeats, Timed, on_ranks
from ddp_bench.toolbox.launch import ROOT
from jaxsim.calibration.profiles import load_profile

SIZES = [2**n for n in range(16, 25)]


@pytest.fixture
def path(monkeypatch):
    """Ranks find the tests' helpers."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "tests")]))


@pytest.mark.parametrize(
    ("collective", "ranks", "factor"),
    [
        ("all_reduce", 2, 1.0),
        ("all_reduce", 4, 1.5),
        ("all_gather", 4, 0.75),
        ("reduce_scatter", 8, 0.875),
        ("all_to_all", 2, 0.5),
        ("broadcast", 4, 1.0),
        ("send_recv", 4, 1.0),
    ],
)
def test_rates_are_those_of_nccl_tests(collective, ranks, factor):
    point = Point(collective, ranks, 8000, Timed((1e-3, 2e-3, 4e-3)))
    assert point.algbw == 4e6 and point.busbw == pytest.approx(factor * 4e6)


def test_messages_do_what_their_names_say(path):
    first, second = on_ranks(toolbox_ranks.send_everything, 2)
    assert first["all_reduce"] == second["all_reduce"] == [[3.0] * 4]
    assert [1.0, 1.0, 2.0, 2.0] in first["all_gather"] and [1.0, 1.0, 2.0, 2.0] in second[
        "all_gather"
    ]
    assert [3.0, 3.0] in first["reduce_scatter"] and [3.0, 3.0] in second["reduce_scatter"]
    assert first["broadcast"] == second["broadcast"] == [[1.0] * 4]
    assert [1.0, 1.0, 2.0, 2.0] in first["all_to_all"] and [1.0, 1.0, 2.0, 2.0] in second[
        "all_to_all"
    ]
    assert [2.0] * 4 in first["send_recv"] and [1.0] * 4 in second["send_recv"]


def test_every_kind_and_size_is_timed_in_every_round():
    points = measure_collectives(2, [1000, 1 << 16], Repeats(3))
    assert {p.collective for p in points} == set(COLLECTIVES)
    assert {p.size for p in points} == {1000, 1 << 16}
    assert all(len(p.timed.seconds) == 3 and min(p.timed.seconds) > 0 for p in points)


def test_a_rank_that_dies_while_measuring_is_named(path):
    with pytest.raises(RanksFailed, match="rank 1: ended by SIGKILL"):
        on_ranks(toolbox_ranks.die_while_measuring, 2, 0.5, timeout_s=30.0)


def test_a_line_is_found_again():
    seconds = [1e-4 + size / 2e9 for size in SIZES]
    model = fit_collective(SIZES, seconds)
    assert model.form == "line" and model.coefficients == pytest.approx((1e-4, 5e-10), rel=1e-6)
    assert max(left_out_errors(SIZES, seconds)) < 1e-6


def test_small_messages_count_as_much_as_large_ones():
    """A least-squares fit of seconds is off by half at the small end here; a relative one is not."""
    random = np.random.default_rng(1)
    seconds = (1e-4 + np.array(SIZES) / 2e9) * random.normal(1, 0.05, len(SIZES))
    predicted = [fit_collective(SIZES, seconds).seconds(size) for size in SIZES]
    assert max(abs(p / t - 1) for p, t in zip(predicted, seconds, strict=True)) < 0.15


@pytest.mark.parametrize("seed", range(5))
def test_left_out_sizes_are_predicted_within_15_percent(seed):
    """Rates that fall where caches end, and noise of 5 %."""
    random = np.random.default_rng(seed)
    sizes = np.array(SIZES, float)
    rate = 4e9 / (1 + (sizes / 2**20) ** 0.5)
    seconds = (5e-5 + sizes / rate) * np.exp(random.normal(0, 0.05, len(sizes)))
    assert np.mean(left_out_errors(sizes, seconds)) < 0.15


def test_a_left_out_size_is_not_known_to_its_model():
    """What is predicted for it does not change with what was measured there."""
    seconds = [1e-4 + size / 2e9 for size in SIZES]
    for i in range(len(SIZES)):
        spoilt = [10 * t if j == i else t for j, t in enumerate(seconds)]
        assert left_out_errors(SIZES, spoilt)[i] == pytest.approx(0.9, abs=1e-6)


@pytest.mark.parametrize(
    ("sizes", "seconds"), [([1, 2], [1, 2]), ([1, 2, 3], [1, 0, 1]), ([1, 2, 3], [1, 2])]
)
def test_what_no_model_can_be_fitted_to_is_refused(sizes, seconds):
    with pytest.raises(ValueError, match="at least three"):
        fit_collective(sizes, seconds)


def test_calibration_reads_what_was_measured(tmp_path):
    points = [
        Point("all_reduce", ranks, size, Timed((1e-5 + size / 1e11,)))
        for ranks in (2, 4)
        for size in SIZES
    ]
    points.append(Point("broadcast", 2, 1 << 20, Timed((1.0,))))
    path = tmp_path / profile_name("NVIDIA H100 80GB HBM3")
    write_profile(path, points)
    profile = load_profile(path)
    assert (profile.kind, profile.gpu) == ("collectives", "H100-80GB")
    assert profile.measured_s == pytest.approx([p.timed.median for p in points[:-1]], rel=1e-4)
