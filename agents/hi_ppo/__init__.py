"""Hi-PPO: features, networks, PPO on two time scales, checkpoints, the trained scheduler.

checkpoint  Checkpoints: one file, written whole or not at all, that says what it is
features    What Hi-PPO remembers and sees: statistics of every row's rate, proposals, their
gae         Generalised advantage estimation on one time scale; the upper one is semi-Markov
networks    Networks of Hi-PPO: a graph encoder, a scorer over proposed plans, a lower policy
ppo         Clipped policy optimisation of one policy: loss and update, the same for both levels
scheduler   A trained Hi-PPO behind the protocol of all schedulers
settings    How Hi-PPO is trained: sizes, schedule, both levels
training    Training Hi-PPO: one compiled epoch is one batch of whole episodes, the host loops
"""

from agents.hi_ppo.checkpoint import (
    FILE_NAME,
    Checkpoint,
    load_checkpoint,
    load_shipped,
    load_trained,
    policies,
    restore,
    save_checkpoint,
    schedulers,
)
from agents.hi_ppo.features import init_statistics, make_reference, update_statistics
from agents.hi_ppo.scheduler import HiPPO, decide_lower, decide_upper, measure
from agents.hi_ppo.settings import TrainSettings, check_sizes
from agents.hi_ppo.training import EpochMetrics, Trainer, make_tape

__all__ = [
    "FILE_NAME",
    "Checkpoint",
    "EpochMetrics",
    "HiPPO",
    "TrainSettings",
    "Trainer",
    "check_sizes",
    "decide_lower",
    "decide_upper",
    "init_statistics",
    "load_checkpoint",
    "load_shipped",
    "load_trained",
    "make_reference",
    "make_tape",
    "measure",
    "policies",
    "restore",
    "save_checkpoint",
    "schedulers",
    "update_statistics",
]
