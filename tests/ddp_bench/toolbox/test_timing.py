"""Medians with intervals, and rounds that are interleaved."""

import numpy as np
import pytest
from scipy.stats import binom

torch = pytest.importorskip("torch")

from ddp_bench.toolbox import (  # noqa: E402
    SHAPES,
    Llama,
    Repeats,
    Timed,
    batch_of,
    interleave,
    median_interval,
    table,
)


@pytest.mark.parametrize("n", [6, 9, 20, 101])
def test_the_interval_is_the_narrowest_of_order_statistics_with_95_percent(n):
    low, high = median_interval(tuple(map(float, range(1, n + 1))))
    k = int(low)
    assert high == n + 1 - k
    assert 1 - 2 * binom.cdf(k - 1, n, 0.5) >= 0.95
    assert 1 - 2 * binom.cdf(k, n, 0.5) < 0.95


def test_few_values_give_their_extremes():
    assert median_interval((3.0, 1.0, 2.0)) == (1.0, 3.0)


def test_the_interval_covers_the_median_as_often_as_it_says():
    random = np.random.default_rng(0)
    draws = random.exponential(size=(2000, 15))
    inside = [low <= np.log(2) <= high for low, high in map(median_interval, map(tuple, draws))]
    assert 0.94 <= np.mean(inside) <= 0.99


def test_works_take_turns():
    heard = []
    works = {name: lambda name=name: heard.append(name) for name in "abc"}
    timed = interleave(works, Repeats(2))
    assert heard == list("abcabcabc")
    assert all(
        len(t.seconds) == 2 and t.interval[0] <= t.median <= t.interval[1] for t in timed.values()
    )
    with pytest.raises(ValueError, match="rounds"):
        Repeats(0)


def test_what_is_not_steady_goes_on():
    """One work always takes as long, one is a second too long one time in two for its first 40."""
    calls = {"steady": 0, "restless": 0}

    def steady(count):
        calls["steady"] += 1
        return 1.0

    def restless(count):
        calls["restless"] += 1
        return 2.0 if calls["restless"] % 2 and calls["restless"] <= 40 else 1.0

    works = {"steady": steady, "restless": restless}
    timed = Repeats(6, warm_up=0, steady=0.05).take(works)
    assert calls["steady"] == len(timed["steady"].seconds) == 6
    # The interval of n values leaves out about n/2 - sqrt(n) on either side: a fifth of them restless.
    assert 40 < len(timed["restless"].seconds) < 100
    assert timed["restless"].spread <= 0.05
    shorter = Timed(timed["restless"].seconds[:-1])
    assert shorter.spread > 0.05  # it ended as soon as it could


def test_time_ends_what_is_never_steady():
    random = np.random.default_rng(0)
    clock = iter(range(10**6))

    def agree(row):
        """A round takes ten seconds, as the slowest rank sees it."""
        return [*row[:-1], 10.0 * next(clock)]

    timed = Repeats(4, warm_up=0, steady=0.01, limit_s=95.0).take(
        {"a": lambda count: random.uniform(1, 2)}, agree
    )
    assert len(timed["a"].seconds) == 11
    at_once = Repeats(4, warm_up=0, steady=0.01, limit_s=0.0).take(
        {"a": lambda count: random.uniform(1, 2)}
    )
    assert len(at_once["a"].seconds) == 4


def test_what_is_short_is_done_several_times():
    asked = []

    def work(count):
        asked.append(count)
        return 0.3

    Repeats(2, shortest_s=1.0).take({"a": work})
    assert asked == [1, 4, 4]


def test_tables_are_aligned():
    text = table(["name", "x"], [["a", 1.5], ["long", None]])
    assert text.splitlines() == ["name    x", "a     1.5", "long    -"]


def test_the_model_reads_no_token_before_its_time():
    torch.manual_seed(0)
    model = Llama(SHAPES["tiny"])
    tokens, targets = batch_of(SHAPES["tiny"], 2, 16)
    assert torch.equal(tokens[:, 1:], targets[:, :-1])
    changed = tokens.clone()
    changed[:, 10:] = (changed[:, 10:] + 1) % 256
    before, after = model(tokens), model(changed)
    assert torch.allclose(before[:, :10], after[:, :10], atol=1e-6)
    assert not torch.allclose(before[:, 10:], after[:, 10:], atol=1e-3)
