"""The gradient of the global mean from unequal local batches, rank by rank in one process."""

import contextlib
from itertools import pairwise

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from ddp_bench.training.gradients import (  # noqa: E402
    accumulate,
    distributed_gradient,
    flat_gradient,
    global_gradient,
    reduce,
    relative_error,
    split_ids,
)


class Model(torch.nn.Module):
    """Summed squared error of a small network; without a batch its loss is zero."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(5, 4), torch.nn.Linear(4, 1)
        self.unused = torch.nn.Parameter(torch.ones(3))

    def forward(self, batch):
        if batch is None:
            return sum(
                0.0 * p.sum() for p in (*self.first.parameters(), *self.second.parameters())
            ), 0
        out = self.second(torch.tanh(self.first(batch["inputs"])))[:, 0]
        return ((out - batch["labels"]) ** 2).sum(), len(out)


class OneRank:
    """What DistributedDataParallel is to its users, with nobody to talk to: it counts in which
    backward passes it would have reduced."""

    def __init__(self, module):
        self.module, self.local, self.reduced = module, False, []
        self.zero_grad = module.zero_grad

    def __call__(self, batch):
        loss, n = self.module(batch)
        if loss.requires_grad:
            loss.register_hook(lambda _: self.reduced.append(not self.local))
        return loss, n

    @contextlib.contextmanager
    def no_sync(self):
        self.local = True
        yield
        self.local = False


def model():
    torch.manual_seed(0)
    return Model().double()


def samples(n, seed=1):
    generator = torch.Generator().manual_seed(seed)
    draw = torch.randn(n, 6, generator=generator, dtype=torch.double)
    return {"inputs": draw[:, :5], "labels": draw[:, 5]}


def part(batch, start, stop):
    return {name: values[start:stop] for name, values in batch.items()}


@pytest.mark.parametrize("counts", [(4, 4, 4), (9, 2, 1), (12, 0, 0)])
@pytest.mark.parametrize("size", [None, 2])
@pytest.mark.parametrize("overlap", [False, True])
def test_the_mean_over_ranks_is_the_gradient_of_the_global_mean(counts, size, overlap):
    """DDP averages over ranks; with the local sums scaled by G / B that is (1 / B) sum of all."""
    everything, net = samples(12), model()
    wanted = global_gradient(net, everything)
    assert float(wanted.norm()) > 0.1
    edges = np.cumsum([0, *counts])
    each = []
    for start, stop in pairwise(edges):
        pieces = split_ids(np.arange(start, stop), size)
        local = [part(everything, ids[0], ids[-1] + 1) for ids in pieces]
        each.append(distributed_gradient(OneRank(net), local, 12, len(counts), overlap))
    found = torch.stack(each).mean(dim=0)
    assert relative_error(found, wanted) < 1e-12
    assert all(p.grad is None for p in net.parameters()), "it leaves nothing behind"


@pytest.mark.parametrize(
    ("overlap", "expected"), [(True, [False, False, True]), (False, [False] * 3)]
)
def test_only_the_last_backward_pass_may_reduce(overlap, expected):
    ddp, batch = OneRank(model()), samples(6)
    pieces = [part(batch, i, i + 2) for i in (0, 2, 4)]
    total = accumulate(ddp, pieces, 0.5, contextlib.nullcontext(), overlap=overlap)
    assert ddp.reduced == expected
    assert total == pytest.approx(float(ddp.module(batch)[0].detach()), rel=1e-12), (
        "summed, not scaled"
    )


def test_gradients_stay_local_unless_asked_for():
    ddp = OneRank(model())
    accumulate(ddp, [samples(2)], 1.0, contextlib.nullcontext())
    assert ddp.reduced == [False]
    before = flat_gradient(ddp.module)
    reduce(ddp)
    assert ddp.reduced == [False, True]
    assert torch.equal(flat_gradient(ddp.module), before), "the pass adds zero"


def test_a_loss_is_scaled_up_before_the_backward_pass():
    class Scaler:
        def scale(self, loss):
            return 1024.0 * loss

    plain, scaled = OneRank(model()), OneRank(model())
    accumulate(plain, [samples(3)], 1.0, contextlib.nullcontext())
    accumulate(scaled, [samples(3)], 1.0, contextlib.nullcontext(), Scaler())
    wanted = 1024.0 * flat_gradient(plain.module)
    assert relative_error(flat_gradient(scaled.module), wanted) < 1e-12


def test_missing_gradients_are_zero():
    net = model()
    accumulate(OneRank(net), [samples(2)], 1.0, contextlib.nullcontext())
    flat = flat_gradient(net)
    assert flat.numel() == sum(p.numel() for p in net.parameters())
    assert net.unused.grad is None and (flat == 0).sum() >= 3


@pytest.mark.parametrize(
    ("n", "size", "expected"),
    [(0, 4, []), (5, None, [5]), (4, 4, [4]), (5, 4, [3, 2]), (9, 4, [3, 3, 3]), (3, 1, [1, 1, 1])],
)
def test_a_local_batch_is_split_as_evenly_as_possible(n, size, expected):
    pieces = split_ids(np.arange(n), size)
    assert [len(p) for p in pieces] == expected
    assert np.concatenate([*pieces, []]).tolist() == list(range(n))


def test_a_relative_error_is_of_what_was_wanted():
    found, wanted = torch.tensor([3.0, 4.0]), torch.tensor([0.0, 2.0])
    assert relative_error(found, wanted) == pytest.approx(np.sqrt(13) / 2)
