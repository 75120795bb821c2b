"""Run by tests/ddp_bench/test_runs.py: gradients and updates of uneven shares on two ranks."""

import copy

import numpy as np
import torch
from transformers import get_linear_schedule_with_warmup

from ddp_bench.arms import StaticArm
from ddp_bench.config import Settings, parse_arm
from ddp_bench.data.tokens import Collator, encode, train_wordpiece
from ddp_bench.ranks import comm
from ddp_bench.training import model as model_module
from ddp_bench.training.gradients import (
    accumulate,
    distributed_gradient,
    flat_gradient,
    global_gradient,
    relative_error,
    split_ids,
)
from ddp_bench.training.model import build_classifier
from ddp_bench.training.runner import Precision, Runner, wrap

TEXTS = [" ".join(["word"] * n) for n in (3, 1, 9, 4, 4, 12, 2, 7)]
SHARES = ([8, 0], [0, 8], [5, 3], [4, 4])
CLIP = 0.01
model_module.SMALL = {"dim": 256, "n_layers": 2, "n_heads": 4, "hidden_dim": 512}


def main() -> None:
    torch.set_num_threads(1)
    control = comm.start("gloo", 60)
    tokenizer = train_wordpiece(TEXTS)
    data = encode(TEXTS, np.arange(8) % 2, tokenizer, 64)
    collate = Collator(tokenizer, 4)
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        module = build_classifier("small", len(tokenizer), 64, 0).to(dtype).eval()
        ddp = wrap(module, torch.device("cpu"))
        wanted = global_gradient(module, collate(data, np.arange(8), False))
        for share in SHARES:
            start = sum(share[: control.rank])
            ids = np.arange(8)[start : start + share[control.rank]]
            for size in (None, 2):
                for packed in (False, True):
                    for overlap in (False, True):
                        local = [collate(data, piece, packed) for piece in split_ids(ids, size)]
                        found = distributed_gradient(ddp, local, 8, 2, overlap)
                        error = relative_error(found, wanted)
                        assert error <= tolerance, (dtype, share, size, packed, overlap, error)
    unweighted_is_wrong(control, collate, data, len(tokenizer))
    for scaled in (False, True):
        updates_are_those_of_the_global_batch(control, collate, data, len(tokenizer), scaled)
    an_overflow_on_one_rank_skips_the_update_on_all(control, collate, data, len(tokenizer))
    comm.stop(control)


def unweighted_is_wrong(control, collate, data, vocab) -> None:
    """The check can fail: plain means over unequal shares give another gradient."""
    module = build_classifier("small", vocab, 64, 0).double().eval()
    reference = copy.deepcopy(module)
    loss, _ = reference(collate(data, np.arange(8), False))
    (loss / 8).backward()
    ids = np.arange(1) if control.rank == 0 else np.arange(1, 8)
    ddp = wrap(module, torch.device("cpu"))
    accumulate(ddp, [collate(data, ids, False)], 1 / len(ids), torch.enable_grad(), overlap=True)
    wanted = flat_gradient(reference)
    assert (flat_gradient(module) - wanted).norm() > 0.05 * wanted.norm()


class UnevenArm(StaticArm):
    """One sample for rank 0, the rest for rank 1."""

    def _split(self, lengths):
        return np.arange(len(lengths))[slice(1) if self.rank == 0 else slice(1, None)]


def make_runner(control, collate, data, vocab, scaled) -> Runner:
    """A runner without dropout in float64 whose steps each hold the same 8 samples."""
    settings = Settings(
        mode="static", global_batch=8, steps=3, warmup_steps=0, max_grad_norm=CLIP, micro_batch=2
    )
    arm = UnevenArm(parse_arm("static", settings), settings, data.lengths, control, None)
    model = build_classifier("small", vocab, 64, 0).double().eval()
    none = Precision("none", torch.device("cpu"))
    runner = Runner(arm, model, settings, data, collate, control, none, 1e-3)
    if scaled:
        runner.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    return runner


def updates_are_those_of_the_global_batch(control, collate, data, vocab, scaled) -> None:
    """Weights and first moments after clipped steps, with and without a loss scaler.

    The moments show the clipping, which AdamW's first weights hardly do.
    """
    runner = make_runner(control, collate, data, vocab, scaled)
    alone = copy.deepcopy(runner.model)
    optimizer = torch.optim.AdamW(alone.parameters(), 1e-3, weight_decay=0.01)
    schedule = get_linear_schedule_with_warmup(optimizer, 0, 3)
    for step in range(2):
        runner.step(step)
        optimizer.zero_grad()
        loss, _ = alone(collate(data, np.arange(8), False))
        (loss / 8).backward()
        norm = torch.nn.utils.clip_grad_norm_(alone.parameters(), CLIP)
        assert norm > 2 * CLIP, norm  # or nothing is clipped
        optimizer.step()
        schedule.step()
        for take in (weights, first_moments):
            found, wanted = take(runner.model, runner.optimizer), take(alone, optimizer)
            assert relative_error(found, wanted) <= 1e-10, (step, scaled, take)
    assert runner.skipped == 0


def weights(model, optimizer) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def first_moments(model, optimizer) -> torch.Tensor:
    return torch.cat([optimizer.state[p]["exp_avg"].flatten() for p in model.parameters()])


def an_overflow_on_one_rank_skips_the_update_on_all(control, collate, data, vocab) -> None:
    runner = make_runner(control, collate, data, vocab, True)
    before = weights(runner.model, None)
    if control.rank == 1:
        first = next(runner.model.parameters())
        handle = first.register_hook(lambda gradient: gradient * float("inf"))
    runner.step(0)
    assert runner.skipped == 1 and runner.scaler.get_scale() == 2.0**11
    assert torch.equal(weights(runner.model, None), before)
    if control.rank == 1:
        handle.remove()
    runner.step(1)
    assert runner.skipped == 1 and not torch.equal(weights(runner.model, None), before)


if __name__ == "__main__":
    main()
