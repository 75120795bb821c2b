"""What a comparison of re-planners is asked for."""

from __future__ import annotations

import dataclasses

from experiments.common import (
    GLOBAL_BATCH,
    LAYOUT_LIMIT,
    MOST_LAYOUTS,
    MOST_OF_A_WORLD,
    MOST_SCENARIOS,
    smaller,
)
from jaxsim.files import check_counts
from jaxsim.scenario import MOST_INTERVALS

MOST_FUTURES, LONGEST = 4096, 1024
QUICK = {
    **{"seeds": 4, "steps": 16, "tuning_scenarios": 2, "layout_limit": 200},
    **{"futures": [4], "horizons": [8]},
}


@dataclasses.dataclass(frozen=True)
class ForesightConfig:
    """A comparison of re-planners.

    Attributes:
        cluster: cluster file or name; the embedded cluster if none is given
        model: preset or model file
        global_batch: sequences per training step
        seq: tokens per sequence
        jitters: how links move, one world each, separated by commas; as --jitter of evaluate
        load_share: mean share of the GPUs that local jobs hold, moving by 20 % of itself
        seeds: scenarios of each world
        steps: decision intervals per episode
        tuning_scenarios: training scenarios on which rivals are tuned, 0 = defaults
        futures: numbers of futures that rollout samples
        horizons: numbers of intervals that rollout looks ahead
        table_size: plans in the table at most
        layout_limit: layouts of domains that are searched at most for the table
        quick: small sizes where none are given, to go through all of it once; its figures mean little
        dry_run: check the files, say how much there is to play and how long runs like it took
        json: file for the result, - = standard output and nothing else there
        out: run folder; outputs/foresight-<time> if none is given
    """

    cluster: str | None = None
    model: str = "llama-7b"
    global_batch: int = GLOBAL_BATCH
    seq: int = 4096
    jitters: str = "ou,heavy,regime"
    load_share: float = 0.0
    seeds: int = 192
    steps: int = 128
    tuning_scenarios: int = 32
    futures: list[int] = dataclasses.field(default_factory=lambda: [1, 4, 8, 16])
    horizons: list[int] = dataclasses.field(default_factory=lambda: [8, 24])
    table_size: int = 48
    layout_limit: int = LAYOUT_LIMIT
    quick: bool = False
    dry_run: bool = False
    json: str | None = None
    out: str | None = None

    def __post_init__(self):
        check_counts(self, {"seeds": MOST_SCENARIOS, "steps": MOST_INTERVALS})
        check_counts(self, {**MOST_OF_A_WORLD, "layout_limit": MOST_LAYOUTS})
        check_counts(self, {"tuning_scenarios": MOST_SCENARIOS}, least=0)
        for name, most in (("futures", MOST_FUTURES), ("horizons", LONGEST)):
            given = getattr(self, name)
            if not given or not all(1 <= x <= most for x in given):
                raise ValueError(f"{name}: expected integers from 1 to {most}, got {given}")
        if not 0.0 <= self.load_share <= 1.0:
            raise ValueError(f"load_share: expected a number from 0 to 1, got {self.load_share}")

    def with_dependent_defaults(self, given: list[str]) -> ForesightConfig:
        """Sizes of a quick run are small unless they are `given`."""
        return smaller(self, QUICK, given) if self.quick else self
