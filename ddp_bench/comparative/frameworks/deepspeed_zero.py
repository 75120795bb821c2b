"""DeepSpeed: ZeRO stages 1, 2 and 3 (Rajbhandari et al. 2020, arXiv:1910.02054)."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor

from ddp_bench.comparative.frameworks.adapter import Adapter
from ddp_bench.comparative.frameworks.task import ADAMW, RANKS, Task, own_rows
from ddp_bench.toolbox import Ranks, token_loss

if torch.cuda.device_count() < RANKS:
    os.environ.setdefault("DS_ACCELERATOR", "cpu")  # read when it is imported
import deepspeed
from deepspeed.comm.torch import build_shm_op


class Zero(Adapter):
    """The engine around the same model, with the same optimizer."""

    def __init__(self, task: Task, ranks: Ranks, stage: int, **settings: Any) -> None:
        self.ranks = ranks
        model = task.llama().to(ranks.device)
        self.engine, *_ = deepspeed.initialize(
            model=model,
            optimizer=torch.optim.AdamW(model.parameters(), **ADAMW),
            config={
                "train_batch_size": task.rows,
                "train_micro_batch_size_per_gpu": task.rows // ranks.ranks,
                "zero_optimization": {"stage": stage},
                "zero_allow_untested_optimizer": True,
                "gradient_clipping": 0.0,  # 1.0 if nothing is said
            },
            dist_init_required=False,
        )

    def step(self, tokens: Tensor, targets: Tensor) -> Tensor | None:
        tokens, targets = (
            own_rows(part, self.ranks.rank, self.ranks.ranks).to(self.ranks.device)
            for part in (tokens, targets)
        )
        loss = token_loss(self.engine(tokens), targets)
        self.engine.backward(loss)
        self.engine.step()
        return loss.detach()


if __name__ == "__main__" and torch.cuda.device_count() < RANKS:
    # Its messages over shared memory are compiled when they are first needed, which both ranks would
    # do at their start. The result lies where TORCH_EXTENSIONS_DIR says.
    build_shm_op()
