"""What a process that answers measurements is asked for."""

from __future__ import annotations

import dataclasses

from experiments.common import GLOBAL_BATCH, LAYOUT_LIMIT, MOST_LAYOUTS, MOST_OF_A_WORLD
from jaxsim.files import check_counts, check_fields


@dataclasses.dataclass(frozen=True)
class RespondConfig:
    """A process that answers measurements with plans.

    Attributes:
        scheduler: a name or a checkpoint; hi_ppo = the one that ships. Its upper level decides at
            every measurement
        cluster: cluster file; the embedded four-region cluster if none is given
        model: preset or YAML file
        global_batch: sequences per training step
        seq: tokens per sequence
        table_size: plans in the table at most
        layout_limit: layouts of domains that are searched at most for the table
        efficiency: what a token is worth where replicas talk seldom: published, none, a number up to
            1, or a CSV file of parameters
        allow: plans of the table: synchronous, or any (local SGD, fewer bits, streaming as well)
        running: file with the plan that runs already, as hippo plan --json, respond or watch tells it;
            the scheduler's first choice if none is given
        interval_s: seconds that pass between two measurements, as the scheduler takes it
    """

    scheduler: str = "hi_ppo"
    cluster: str | None = None
    model: str = "llama-7b"
    global_batch: int = GLOBAL_BATCH
    seq: int = 4096
    table_size: int = 48
    layout_limit: int = LAYOUT_LIMIT
    efficiency: str = "published"
    allow: str = "synchronous"
    running: str | None = None
    interval_s: float = 60.0

    def __post_init__(self):
        check_counts(self, {**MOST_OF_A_WORLD, "layout_limit": MOST_LAYOUTS})
        allowed = "a number > 0 and <= 1e9"
        check_fields(self, ("interval_s",), allowed, lambda x: 0 < x <= 1e9)
