"""Which layouts there are: every one can be trained, none is missing, names lead back."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_bench.layouts.layout import (
    Impossible,
    Layout,
    check_layout,
    layouts_of,
    parse_layout,
)


@dataclass(frozen=True)
class Shape:
    """Sizes that need not make a model."""

    layers: int
    heads: int
    kv_heads: int
    hidden: int


@st.composite
def shapes(draw):
    kv_heads = draw(st.integers(1, 6))
    heads = kv_heads * draw(st.integers(1, 3))
    return Shape(draw(st.integers(1, 12)), heads, kv_heads, 4 * draw(st.integers(1, 60)))


@given(shapes(), st.integers(1, 16), st.integers(1, 64))
def test_every_layout_fits_ranks_model_and_batch(shape, ranks, rows):
    found = layouts_of(shape, ranks, rows)
    assert len({layout.name for layout in found}) == len(found)
    for layout in found:
        assert layout.dp * layout.tp * layout.pp == ranks
        assert (
            shape.heads % layout.tp == shape.kv_heads % layout.tp == shape.hidden % layout.tp == 0
        )
        assert shape.layers % layout.pp == 0
        assert rows % (layout.dp * layout.micro) == 0
        assert (layout.schedule in ("gpipe", "1f1b")) == (layout.pp > 1)
        assert layout.dp > 1 or layout.zero == 0
        assert parse_layout(layout.name) == layout


@given(shapes(), st.integers(1, 16), st.integers(1, 64))
def test_replicas_are_offered_exactly_where_the_batch_can_be_shared(shape, ranks, rows):
    names = {layout.name for layout in layouts_of(shape, ranks, rows)}
    assert (f"dp{ranks}" in names) == (rows % ranks == 0)


def test_the_layouts_of_two_ranks():
    names = {layout.name for layout in layouts_of(Shape(4, 4, 2, 176), 2, 8)}
    assert names == {
        *("dp2", "dp2-zero1", "dp2-zero2", "dp2-zero3", "tp2"),
        *("pp2-gpipe-m2", "pp2-gpipe-m4", "pp2-1f1b-m2", "pp2-1f1b-m4"),
    }


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("dp4", "dp4: needs 4 ranks, there are 2"),
        ("tp4", "2 heads of keys cannot be shared by 4"),
        ("pp3-gpipe-m3", "4 layers cannot be shared by 3"),
        ("tp2-zero3", "zero3 needs replicas"),
        ("dp2-tp2-zero1", "needs 4 ranks"),
        ("pp2-gpipe-m1", "2 stages need as many micro-batches"),
        ("pp2-gpipe-m16", "8 rows of the batch cannot be shared by 16"),
        ("dp0", "cannot be shared by 0"),
    ],
)
def test_an_impossible_layout_says_why(name, said):
    with pytest.raises(Impossible, match=said) as caught:
        check_layout(parse_layout(name), Shape(4, 4, 2, 176), 2, 8)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "dp", "dp2tp2x", "pp2", "zero4", "-dp2", "2"])
def test_a_name_of_no_layout_is_refused(name):
    with pytest.raises(Impossible, match="names no layout"):
        parse_layout(name)


def test_tensor_parallelism_leaves_no_stage_one():
    with pytest.raises(Impossible, match="with tp, zero is 0, 2 or 3"):
        check_layout(Layout(dp=2, tp=2, zero=1), Shape(4, 4, 2, 176), 4, 8)
    with pytest.raises(Impossible, match="with pp, zero is 0 or 1"):
        layout = Layout(dp=2, pp=2, zero=3, schedule="1f1b", micro=2)
        check_layout(layout, Shape(4, 4, 2, 176), 4, 8)
