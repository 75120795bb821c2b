"""Whole training steps on real ranks: what they say to each other, and what it does to the weights."""

import itertools
import os

import pytest

torch = pytest.importorskip("torch")

from helpers import toolbox_ranks  # noqa: E402

from ddp_bench.microbench.steps import MODELS, TALKS, measure_on_ranks, step_of  # noqa: E402
from ddp_bench.microbench.work import repeats_within  # noqa: E402
from ddp_bench.toolbox import SHAPES, Llama, RanksFailed, Repeats, Timed, on_ranks  # noqa: E402
from ddp_bench.toolbox.launch import ROOT  # noqa: E402


@pytest.fixture
def path(monkeypatch):
    """Ranks find the tests' helpers."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "tests")]))


@pytest.mark.nightly
def test_every_model_and_talk_is_timed_in_every_round():
    found = measure_on_ranks(2, Repeats(2), 60.0)
    assert set(found) == set(itertools.product(MODELS, TALKS))
    assert all(len(timed.seconds) == 2 and min(timed.seconds) > 0 for timed in found.values())


def test_a_message_travels_beside_backward_and_changes_nothing():
    heard, weights = [], []

    class Message:
        def wait(self):
            heard.append("waited")

    def send():
        heard.append("sent")
        return Message()

    for how in (None, send):
        torch.manual_seed(0)
        model = Llama(SHAPES["tiny"])
        step_of(model, "tiny", torch.device("cpu"), how)()
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert heard == ["sent", "waited"]
    torch.testing.assert_close(*weights, rtol=0, atol=0)


def test_how_many_cells_repeat_is_counted_by_kind():
    near, far, once = Timed((1.0, 1.05)), Timed((1.0, 1.2)), Timed((1.0,))
    cells = [("gemm", near), ("gemm", far), ("steps", near), ("copy", near), ("copy", once)]
    assert repeats_within(cells) == {"total": 0.75, "gemm": 0.5, "steps": 1.0, "copy": 1.0}
    assert repeats_within([("gemm", once)]) is None and repeats_within([]) is None


@pytest.mark.nightly
def test_a_step_that_raises_is_one_line(path):
    with pytest.raises(RanksFailed) as caught:
        on_ranks(toolbox_ranks.raise_while_measuring, 2, timeout_s=30.0)
    assert str(caught.value) == "rank 1: ValueError: three is too many"


@pytest.mark.nightly
def test_losses_that_are_nan_take_their_time_all_the_same(path):
    (found, _) = on_ranks(toolbox_ranks.measure_what_is_not_finite, 2, timeout_s=60.0)
    assert set(found) == set(itertools.product(MODELS, TALKS))
    assert all(len(t.seconds) == 2 and 0 < min(t.seconds) < 60 for t in found.values())
