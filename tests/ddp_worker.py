"""Run under torchrun by test_ddp_runs: gradients of uneven shares, an empty one included."""

import copy

import numpy as np
import torch

from ddp_bench import comm
from ddp_bench.encode import Collator, encode, train_wordpiece
from ddp_bench.gradients import (
    accumulate,
    distributed_gradient,
    flat_gradient,
    global_gradient,
    relative_error,
    split_ids,
)
from ddp_bench.model import build_classifier
from ddp_bench.runner import wrap

TEXTS = [" ".join(["word"] * n) for n in (3, 1, 9, 4, 4, 12, 2, 7)]
SHARES = ([8, 0], [0, 8], [5, 3], [4, 4])


def main() -> None:
    torch.set_num_threads(1)
    control = comm.start("gloo", 60)
    tokenizer = train_wordpiece(TEXTS)
    data = encode(TEXTS, np.arange(8) % 2, tokenizer, 64)
    collate = Collator(tokenizer, 4)
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        module = build_classifier("small", len(tokenizer), 64, 0).to(dtype).eval()
        ddp = wrap(module, torch.device("cpu"))
        for share in SHARES:
            start = sum(share[: control.rank])
            ids = np.arange(8)[start : start + share[control.rank]]
            for size in (None, 2):
                for packed in (False, True):
                    for overlap in (False, True):
                        local = [collate(data, piece, packed) for piece in split_ids(ids, size)]
                        whole = collate(data, np.arange(8), False)
                        wanted = global_gradient(module, whole)
                        found = distributed_gradient(ddp, local, 8, 2, overlap)
                        error = relative_error(found, wanted)
                        assert error <= tolerance, (dtype, share, size, packed, overlap, error)
    unweighted_is_wrong(control, collate, data, len(tokenizer))
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


if __name__ == "__main__":
    main()
