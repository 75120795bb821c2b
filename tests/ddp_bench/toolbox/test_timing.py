"""Medians with intervals, and rounds that are interleaved."""

import numpy as np
import pytest
from scipy.stats import binom

torch = pytest.importorskip("torch")

from ddp_bench.toolbox import SHAPES, Llama, batch_of, interleave, median_interval, table  # noqa: E402


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
    timed = interleave(works, repeats=2, warm_up=1)
    assert heard == list("abcabcabc")
    assert all(
        len(t.seconds) == 2 and t.interval[0] <= t.median <= t.interval[1] for t in timed.values()
    )
    with pytest.raises(ValueError, match="repeats"):
        interleave(works, repeats=0)


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
