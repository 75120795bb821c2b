"""Compressed gradients of models that FSDP2 shards, on real ranks."""

import os

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from helpers import toolbox_ranks  # noqa: E402

from ddp_bench.communication import SCATTERING, Channel, Run, ShardedHook, train_on_rank  # noqa: E402
from ddp_bench.communication.training import PLAIN  # noqa: E402
from ddp_bench.toolbox import RanksFailed, on_ranks  # noqa: E402
from ddp_bench.toolbox.launch import ROOT  # noqa: E402

BITS = {"exact": 32, "fp16": 16, "bf16": 16, "int8": 8 * (1 + 4 / 1024)}


@pytest.fixture
def path(monkeypatch):
    """Ranks find the tests' helpers."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "tests")]))


def test_which_methods_scatter():
    assert SCATTERING == ("exact", "fp16", "bf16", "int8", "topk")
    with pytest.raises(ValueError, match="powersgd cannot reduce-scatter: allowed exact, fp16"):
        ShardedHook(torch.nn.Linear(1, 1), Channel(1), "powersgd")


@pytest.mark.parametrize(
    ("name", "steps", "within"),
    [
        ("exact", 2, 1e-6),
        pytest.param("fp16", 2, 1e-3, marks=pytest.mark.nightly),
        pytest.param("bf16", 2, 1e-2, marks=pytest.mark.nightly),
        ("int8", 20, 2e-3),
        pytest.param("topk", 300, 0.2, marks=pytest.mark.nightly),
    ],
)
def test_each_rank_gets_the_mean_of_its_part(path, name, steps, within):
    """With error feedback over steps, though single steps are not right; 3,000 numbers in all."""
    found = on_ranks(toolbox_ranks.scatter_gradients, 2, name, steps, -1)
    draws = [torch.randn(3000, generator=torch.Generator().manual_seed(r)) for r in (0, 1)]
    wanted = steps * sum(draws) / 2
    got = torch.cat([torch.tensor(total) for total, *_ in found])
    assert torch.linalg.norm(got - wanted) / torch.linalg.norm(wanted) < within
    if name in BITS:
        numbers = 2048 if name == "int8" else 1500  # whole blocks
        (wire,) = set(found[0][3])
        assert wire == pytest.approx(numbers * BITS[name] / 8)


@pytest.mark.parametrize(
    "name", ["int8", *(pytest.param(n, marks=pytest.mark.nightly) for n in ("fp16", "topk"))]
)
def test_a_part_that_is_not_finite_is_seen_where_it_belongs(path, name):
    """The last rank spoils a number of the first rank's part, and owes nothing of it."""
    first, last = on_ranks(toolbox_ranks.scatter_gradients, 2, name, 4, 1)
    assert first[1] is True and last[1] is False and last[2] == []
    assert np.isfinite(first[0]).all() and np.isfinite(last[0]).all()


def test_exact_gradients_are_those_of_fsdp2():
    runs = [Run(name, seed=1, steps=4, is_sharded=True) for name in ("exact", PLAIN)]
    whole = Run(PLAIN, seed=1, steps=4)  # DistributedDataParallel
    exact, plain, replicated = on_ranks(train_on_rank, 2, [*runs, whole])[0]
    assert exact.losses == pytest.approx(plain.losses, rel=1e-6)
    assert plain.losses == pytest.approx(replicated.losses, rel=1e-5)
    # Four layers and the rest: a message each.
    assert len(exact.cost.messages) == 5 and sum(wire for wire, _ in plain.cost.messages) == 0


@pytest.mark.nightly
def test_a_step_that_is_not_finite_is_skipped_by_all_and_forgotten(path):
    for name in ("int8", "topk"):
        (owed, losses), (owed_there, _) = on_ranks(toolbox_ranks.train_sharded_poisoned, 2, name, 3)
        assert owed == owed_there == [] and np.isfinite(losses).all()


@pytest.mark.nightly
def test_a_method_that_raises_ends_the_job(path):
    with pytest.raises(RanksFailed, match=r"rank [01]"):
        on_ranks(toolbox_ranks.train_sharded_with_a_raising_method, 2, timeout_s=20.0)
