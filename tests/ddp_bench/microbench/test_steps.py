"""Whole training steps on real ranks: what they say to each other, and what it does to the weights."""

import itertools

import pytest

torch = pytest.importorskip("torch")

from ddp_bench.microbench.steps import MODELS, TALKS, measure_on_ranks, step_of  # noqa: E402
from ddp_bench.toolbox import SHAPES, Llama  # noqa: E402


def test_every_model_and_talk_is_timed_in_every_round():
    found = measure_on_ranks(2, 2, 60.0)
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
