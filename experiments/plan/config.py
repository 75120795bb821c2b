"""What a plan is asked for, and the checks of it."""

from __future__ import annotations

import dataclasses
import math

from experiments.common import GLOBAL_BATCH, MOST_OF_A_WORLD, parse_weights
from experiments.plan.whatif import parse_changes
from jaxsim.files import InputError, check_counts, check_fields

BILLS = ("used", "all")
ALLOW = ("synchronous", "any")
EXPORT_FORMATS = ("torchtitan", "megatron", "deepspeed", "maxtext", "chakra", "ns3")


@dataclasses.dataclass(frozen=True)
class PlanConfig:
    """The plan with which a model trains fastest on a cluster, in seconds: no episode is played.

    Attributes:
        cluster: cluster file; the embedded four-region cluster if none is given
        model: preset, YAML file, or a Hugging Face config.json
        global_batch: sequences per training step
        seq: tokens per sequence
        weights: w1 to w4 of progress, utilisation, cost and fairness, as w1,w2,w3,w4
        allow: the setting whose best plan is told first: synchronous = every step in 16 bits, any =
            local SGD, fewer bits and streaming as well. Both stand side by side
        efficiency: what a token is worth where replicas talk seldom: published (a model with its
            band), none (as much as any), a number up to 1, or a CSV file of parameters
        tokens: to train on; days and USD are told for them
        deadline: days for the tokens, beyond which plans lose
        budget: USD per hour, GPUs and egress, beyond which plans lose
        bill: used = the GPUs of the plan are paid, all = those that it leaves idle as well
        reserve_pct: share of every GPU's memory that plans must leave free
        checkpoint_minutes: between two checkpoints; a synchronous plan on spot GPUs loses half of it
            when they are taken away
        what_if: a change to ask about, as link=a:b,factor=0.5 (also gbps=, rtt_ms=; link=all for every
            link) or domain=c,gpus=0 (also usd_per_gpu_hour=, gpu=H100-80GB); may be given several times
        policy: a scheduler or a checkpoint that has learned how links move, such as hi_ppo+search;
            where the search is not exact, its first choice is among the plans compared. Takes minutes
        orders: time the leading plans in interleaved, ZB-H1 and greedy orders as well, which the search
            leaves out
        pareto: tell the trade-off between speed and price, and draw it
        figure: draw the map: domains, pipelines, ring, loads of the links
        quick: two plans and what bounds them, no runners-up and no thresholds
        dry_run: check the files and say how large the search is
        export: folder to write launch files into, for each domain; it must not exist, or be empty
        format: of the launch files: torchtitan, megatron, deepspeed, maxtext; or chakra
            (execution traces of a step for network simulators) or ns3 (a program of its traffic)
        out: run folder; outputs/plan-<time> if none is given
        json: file for the result as JSON; - = standard output
    """

    cluster: str | None = None
    model: str = "llama-7b"
    global_batch: int = GLOBAL_BATCH
    seq: int = 4096
    weights: str = "1,0,0,0"
    allow: str = "any"
    efficiency: str = "published"
    tokens: float | None = None
    deadline: float | None = None
    budget: float | None = None
    bill: str = "used"
    reserve_pct: float = 0.0
    checkpoint_minutes: float = 30.0
    what_if: str | None = None
    policy: str | None = None
    orders: bool = False
    pareto: bool = False
    figure: bool = False
    quick: bool = False
    dry_run: bool = False
    export: str | None = None
    format: str | None = None
    out: str | None = None
    json: str | None = None

    def __post_init__(self):
        check_counts(self, {k: v for k, v in MOST_OF_A_WORLD.items() if k != "table_size"})
        check_fields(
            self, ["checkpoint_minutes"], "a number >= 0 and <= 1e6", lambda x: 0 <= x <= 1e6
        )
        check_fields(
            self, ["reserve_pct"], "a number >= 0 and < 100, in percent", lambda x: 0 <= x < 100
        )
        given = [n for n in ("tokens", "deadline", "budget") if getattr(self, n) is not None]
        check_fields(self, given, "a number > 0 and <= 1e18", lambda x: 0 < x <= 1e18)
        for name, known in (("bill", BILLS), ("allow", ALLOW)):
            if getattr(self, name) not in known:
                got = getattr(self, name)
                raise InputError(f"{name}: expected {' or '.join(known)}, got {got!r}")
        if self.budget is not None and self.bill == "all":
            raise InputError(
                "budget: goes with --bill used: where all GPUs are paid anyway, no plan pays for fewer"
            )
        if self.export is not None and self.what_if is not None:
            raise InputError(
                "export: goes without --what-if: put the change into the cluster file, then export"
            )
        if self.deadline is not None and self.tokens is None:
            raise InputError("deadline: goes with --tokens: days for how many tokens?")
        if (self.export is None) != (self.format is None):
            raise InputError("export: goes with --format, and --format with --export")
        if self.format is not None and self.format not in EXPORT_FORMATS:
            known = ", ".join(EXPORT_FORMATS)
            raise InputError(f"format: expected one of {known}, got {self.format!r}")
        weights = parse_weights(self.weights)
        parse_changes(self.what_if)
        limits = (self.budget, self.deadline, self.reserve_pct or None)
        if self.policy is not None and (any(weights[1:]) or any(x is not None for x in limits)):
            raise InputError(
                "policy: it is asked for speed alone, and goes with neither --weights nor --budget, "
                "--deadline or --reserve-pct"
            )

    @property
    def budget_usd_per_hour(self) -> float:
        return math.inf if self.budget is None else self.budget
