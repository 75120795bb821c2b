"""Scores and pipelines against sums by hand."""

from collections import defaultdict
from dataclasses import dataclass

import pytest

from ddp_bench.layouts.adapt import decide
from ddp_bench.layouts.layout import Layout, layouts_of
from ddp_bench.layouts.schedule import order_of, play
from ddp_bench.layouts.score import (
    Need,
    Profile,
    end_numbers,
    layer_numbers,
    ranked,
    score,
    terms_of,
    top1_gap,
)


@dataclass(frozen=True)
class Shape:
    layers: int = 4
    width: int = 8
    heads: int = 2
    kv_heads: int = 2
    hidden: int = 16
    vocab: int = 10


@dataclass(frozen=True)
class Work:
    shape: Shape = Shape()
    rows: int = 8
    length: int = 3


PARTS = {"layer": (1.0, 2.0), "ends": (0.5, 0.5), "first": (0.25, 0.25), "last": (0.25, 0.25)}


def profile(layouts, other=0.125, parts=PARTS, slowdown=None):
    """Every part takes what `parts` says, and everything else `other` seconds."""
    needs = set().union(*(terms_of(layout, Work()).needs() for layout in layouts))
    return Profile(
        {n: parts[n.kind] for n in needs if n.kind in parts},
        {n: other for n in needs if n.kind not in parts},
        slowdown or {1: 1.0},
    )


def test_weights_are_counted_as_torch_counts_them():
    torch = pytest.importorskip("torch")
    from ddp_bench.toolbox import SHAPES, Llama

    for shape in SHAPES.values():
        with torch.device("meta"):
            model = Llama(shape)
        assert sum(p.numel() for p in model.layers[0].parameters()) == layer_numbers(shape)
        assert model.embedding.weight.numel() == end_numbers(shape)[0]
        last = sum(p.numel() for m in (model.norm, model.head) for p in m.parameters())
        assert last == end_numbers(shape)[1]


def test_replicas():
    """Four layers of 3 s and ends of 1 s; one message; an update of four layers and the ends."""
    layout = Layout(dp=2)
    found = score(layout, Work(), profile([layout]))
    assert found.parts() == {
        "compute_s": 13.0,
        "collectives_s": 0.125,
        "bubble_s": 0.0,
        "optimizer_s": 5 * 0.125,
    }
    assert found.seconds == 13.75


def test_shared_optimizer_state_halves_the_update_and_tells_the_weights():
    layout = Layout(dp=2, zero=1)
    found = score(layout, Work(), profile([layout]))
    assert found.optimizer_s == 5 * 0.125 / 2
    assert found.collectives_s == 3 * 0.125  # gradients, and the weights of two owners


def test_messages_inside_of_a_layer_are_not_counted_twice():
    layout = Layout(tp=2)
    found = score(layout, Work(), profile([layout]))
    assert found.collectives_s == 17 * 0.125  # four of every layer, one behind the head
    assert found.compute_s + found.collectives_s == 13.0


def test_weights_that_are_gathered():
    for zero, gathers in ((2, 1), (3, 2)):
        layout = Layout(dp=2, zero=zero)
        found = score(layout, Work(), profile([layout]))
        assert found.collectives_s == (4 * gathers + 1 + 4 + 1) * 0.125


def test_the_ends_of_a_model_of_one_layer_are_gathered_once():
    work = Work(Shape(layers=1))
    times = {n.size: t for t, n in terms_of(Layout(dp=2, zero=3), work).inside if "all" in n.what}
    assert times == {4 * layer_numbers(work.shape): 2, 4 * sum(end_numbers(work.shape)): 1}


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_a_pipeline_of_equal_stages_waits_for_its_filling(schedule):
    """(micro + stages - 1) turns of forward and backward."""
    found = play(schedule, 4, [1.0] * 3, [2.0] * 3)
    assert found.seconds == 6 * 3.0
    assert found.busy == (12.0, 12.0, 12.0) and found.bubble == 6.0


def test_orders_are_those_of_torch():
    assert order_of("gpipe", 0, 2, 2) == [
        *(("forward", 0), ("forward", 1), ("backward", 0), ("backward", 1))
    ]
    assert order_of("1f1b", 0, 2, 3) == [
        *(("forward", 0), ("forward", 1), ("backward", 0), ("forward", 2)),
        *(("backward", 1), ("backward", 2)),
    ]
    assert order_of("1f1b", 1, 2, 2) == [
        *(("forward", 0), ("backward", 0), ("forward", 1), ("backward", 1))
    ]


def test_stages_that_share_one_core_lose_nothing_in_bubbles():
    found = play("gpipe", 4, [1.0, 1.0], [2.0, 2.0], slow=float)
    assert found.seconds == pytest.approx(2 * 4 * 3.0)


def test_a_pipeline_is_scored_from_its_stages():
    """Two stages of two layers and an end: 2.25 s and 4.25 s, and what handing on takes."""
    layout = Layout(pp=2, schedule="gpipe", micro=2)
    found = score(layout, Work(), profile([layout], other=0.6))
    turn = 0.6 / (2 * (2 + 2 - 1))
    assert found.seconds == pytest.approx(3 * (6.5 + 2 * turn) + 3 * 0.6)
    assert found.bubble_s == pytest.approx(6.5 + 2 * turn)
    assert found.compute_s == pytest.approx(2 * 6.5)
    assert found.collectives_s == pytest.approx(4 * turn)


def test_a_machine_with_one_core_hides_the_bubble():
    layout = Layout(pp=2, schedule="gpipe", micro=2)
    both = score(layout, Work(), profile([layout], other=0.0, slowdown={1: 1.0, 2: 2.0}))
    # Parts were measured while both computed: each alone takes half of that.
    assert both.seconds == pytest.approx(2 * 6.5)


def test_slowdowns_between_those_that_were_measured():
    found = Profile({}, {}, {1: 1.0, 2: 1.0, 4: 2.0})
    assert [found.slow(n) for n in (1, 2, 3, 4, 8)] == [1.0, 1.0, 1.5, 2.0, 2.0]


def test_every_layout_is_scored_and_they_are_ranked():
    layouts = layouts_of(Shape(), 4, 8)
    found = ranked(layouts, Work(), profile(layouts))
    assert {s.layout for s in found} == set(layouts)
    seconds = [s.seconds for s in found]
    assert seconds == sorted(seconds)
    for each in found:
        assert sum(each.parts().values()) == pytest.approx(each.seconds)
        assert min(each.parts().values()) >= 0


def test_what_a_profile_lacks_is_noticed():
    with pytest.raises(KeyError):
        score(Layout(dp=2), Work(), Profile({}, {}))


def test_messages_are_those_of_the_layout():
    """Gradients of a stage of two layers and the larger end, split over no one."""
    terms = terms_of(Layout(dp=2, pp=2, schedule="1f1b", micro=2), Work())
    ((times, need),) = terms.after
    size = 4 * (2 * layer_numbers(Shape()) + end_numbers(Shape())[1])
    assert (times, need) == (1.0, Need("message", "reduce dp", 2, 1, 2, size=size))


def test_the_gap_is_that_of_the_first_in_prediction():
    measured = {"a": 1.2, "b": 1.0, "c": 3.0}
    assert top1_gap({"a": 1.0, "b": 2.0, "c": 3.0}, measured) == pytest.approx(20)
    assert top1_gap({"a": 2.0, "b": 1.0, "c": 3.0}, measured) == 0


def test_a_move_must_earn_its_cost():
    seconds = defaultdict(float, {"slow": 2.0, "fast": 1.5})
    assert decide("slow", seconds, 10.0, 20, 0.9) == "fast"  # gains 10 s
    assert decide("slow", seconds, 10.0, 20, 1.0) == "slow"
    assert decide("slow", seconds, 10.0, 19, 0.99) == "slow"
    assert decide("fast", seconds, 0.0, 10**6, 0.0) == "fast"
