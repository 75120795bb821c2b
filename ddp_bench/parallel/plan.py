"""The plan of a training run, and which rank does what under it. Pure.

A plan is a list of pipelines, which are data-parallel replicas of each other. A pipeline runs over
domains in order; each domain holds some layers, split into its own stages. Every pipeline may have
several replicas inside its domains (`dp`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ddp_bench.errors import ConfigError

SCHEDULES = ("gpipe", "1f1b", "interleaved")
REDUCTIONS = ("flat", "hierarchical")
WIRE_BITS = (8, 16, 32)
CHUNKS = 2  # model chunks per stage of an interleaved pipeline
# The last of these are in plan files of `hippo watch` and leave no choice here.
PIPELINE_KEYS = ("domains", "dp", "micro_batches", "micro_batch", "schedule", "recompute")
STAGE_KEYS = ("domain", "layers", "pp", "tp", "cp", "zero_stage")
# Of such files too: the plan in numbers, which says nothing more, and bits of a value between stages,
# of which a job has its own.
BESIDE, ACTIVATION_BITS = ("fields", "activation_bits"), (16, 32)
# Schedules as plan files of `hippo watch` print them. torch has no eager 1F1B; GPipe comes closest to
# it, with more micro-batches in flight.
LABELS = {"GPipe": "gpipe", "1F1B": "1f1b", "eager 1F1B": "gpipe"}
NOTHING = ("none", "nothing")  # is computed twice


@dataclass(frozen=True)
class Domain:
    """What one domain holds of a pipeline."""

    domain: str
    layers: int
    pp: int = 1  # stages inside the domain


@dataclass(frozen=True)
class Pipeline:
    """Domains in order, and how they share a step."""

    domains: tuple[Domain, ...]
    dp: int = 1  # replicas inside the domains
    micro_batches: int = 1  # per replica and step
    micro_batch: int = 1  # [sequences]
    schedule: str = "1f1b"

    @property
    def stages(self) -> int:
        """Stages, each on one rank."""
        return sum(d.pp for d in self.domains)

    @property
    def sequences(self) -> int:
        """[sequences] of a step, all replicas together."""
        return self.dp * self.micro_batches * self.micro_batch


@dataclass(frozen=True)
class TrainPlan:
    """The whole decision: pipelines, and how they are kept together."""

    pipelines: tuple[Pipeline, ...]
    sync_period: int = 1  # H; 1 = gradients are summed in every step
    fragments: int = 1  # parts of the model that are synchronised in turn (H > 1)
    overlap: int = 0  # steps between the start of an outer sync and its use (H > 1)
    wire_bits: int = 32  # of a value between pipelines
    reduce: str = "flat"  # or hierarchical: inside the domain first

    def to_json(self) -> dict[str, Any]:
        """What `parse_plan` reads back to the same plan."""
        return asdict(self)


@dataclass(frozen=True)
class Seat:
    """The place of one rank in a plan."""

    pipeline: int
    replica: int
    stage: int


def parse_plan(body: Any, where: str, ranks: Sequence[str], layers: int, batch: int) -> TrainPlan:
    """A plan from the content of its file, once it is certain that it can be carried out.

    `ranks` holds the domain of every rank, `layers` and `batch` [sequences] are the model's and the
    step's. Raises ConfigError, one line: where, the key, what is allowed.
    """
    known = tuple(TrainPlan.__dataclass_fields__)
    if not isinstance(body, dict) or not set(body) <= {*known, *BESIDE} or "pipelines" not in body:
        raise ConfigError(f"{where}: allowed is a mapping with keys of {', '.join(known)}")
    _choice(body.get("activation_bits", 16), f"{where}: activation_bits", ACTIVATION_BITS)
    rows = body["pipelines"]
    if not isinstance(rows, list | tuple) or not rows:
        raise ConfigError(f"{where}: pipelines: allowed is a list of at least one")
    plan = TrainPlan(
        tuple(_pipeline(row, f"{where}: pipelines[{i}]") for i, row in enumerate(rows)),
        **{
            key: _choice(body[key], f"{where}: {key}", allowed)
            for key, allowed in (("wire_bits", WIRE_BITS), ("reduce", REDUCTIONS))
            if key in body
        },
        **{
            key: _count(body[key], f"{where}: {key}", least)
            for key, least in (("sync_period", 1), ("fragments", 1), ("overlap", 0))
            if key in body
        },
    )
    _check(plan, where, ranks, layers, batch)
    return plan


def _pipeline(body: Any, where: str) -> Pipeline:
    if not isinstance(body, dict) or not {"domains"} <= set(body) <= set(PIPELINE_KEYS):
        raise ConfigError(f"{where}: allowed is a mapping with keys of {', '.join(PIPELINE_KEYS)}")
    rows = body["domains"]
    if not isinstance(rows, list | tuple) or not rows:
        raise ConfigError(f"{where}: domains: allowed is a list of at least one")
    domains = []
    for i, row in enumerate(rows):
        here = f"{where}: domains[{i}]"
        if not isinstance(row, dict) or not {"domain", "layers"} <= set(row) <= set(STAGE_KEYS):
            raise ConfigError(f"{here}: allowed is a mapping with the keys {', '.join(STAGE_KEYS)}")
        layers, pp = (_count(row.get(key, 1), f"{here}: {key}", 1) for key in ("layers", "pp"))
        for key, allowed in (("tp", (1,)), ("cp", (1,)), ("zero_stage", (0, 1))):
            _choice(row.get(key, 1), f"{here}: {key}", allowed)
        domains.append(Domain(row["domain"], layers, pp))
    counts = {
        key: _count(body[key], f"{where}: {key}", 1)
        for key in ("dp", "micro_batches", "micro_batch")
        if key in body
    }
    _choice(body.get("recompute", "none"), f"{where}: recompute", NOTHING)
    schedule = body.get("schedule", "1f1b")
    if isinstance(schedule, str):
        schedule = LABELS.get(schedule, schedule)
    schedule = _choice(schedule, f"{where}: schedule", SCHEDULES)
    return Pipeline(tuple(domains), schedule=schedule, **counts)


def _count(value: Any, where: str, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= 10**6:
        raise ConfigError(f"{where}: allowed is a whole number from {least} to 1000000")
    return value


def _choice(value: Any, where: str, allowed: tuple) -> Any:
    if value not in allowed or isinstance(value, bool):
        raise ConfigError(f"{where}: {value!r}: allowed {', '.join(map(str, allowed))}")
    return value


def _check(plan: TrainPlan, where: str, ranks: Sequence[str], layers: int, batch: int) -> None:
    """Refuse what these ranks, this model and this batch cannot do."""
    names = [d.domain for p in plan.pipelines for d in p.domains]
    for name in names:
        if name not in ranks:
            known = ", ".join(sorted(set(ranks)))
            raise ConfigError(f"{where}: domain {name!r} has no ranks here: allowed {known}")
        if names.count(name) > 1:
            raise ConfigError(f"{where}: domain {name!r} is used twice: allowed is once")
    for pipeline in plan.pipelines:
        held = sum(d.layers for d in pipeline.domains)
        if held != layers:
            raise ConfigError(f"{where}: layers: a pipeline holds {held}; allowed is {layers}")
        for d in pipeline.domains:
            there, needed = list(ranks).count(d.domain), d.pp * pipeline.dp
            if needed > there:
                raise ConfigError(
                    f"{where}: {d.domain}: dp x pp is {needed}; allowed up to {there}"
                )
            chunks = d.pp * (CHUNKS if pipeline.schedule == "interleaved" else 1)
            if chunks > d.layers:
                raise ConfigError(
                    f"{where}: {d.domain}: {d.layers} layers for {chunks} chunks; allowed are as "
                    "many layers or more"
                )
        _check_schedule(pipeline, where)
    total = sum(p.sequences for p in plan.pipelines)
    if total != batch:
        raise ConfigError(f"{where}: micro-batches hold {total} sequences; allowed is {batch}")
    if plan.sync_period == 1 and (plan.fragments > 1 or plan.overlap):
        raise ConfigError(f"{where}: fragments and overlap: allowed with sync_period > 1 only")
    if plan.fragments > min(layers, plan.sync_period):
        most = min(layers, plan.sync_period)
        raise ConfigError(f"{where}: fragments is {plan.fragments}: allowed up to {most}")
    if plan.overlap * plan.fragments > plan.sync_period - (plan.sync_period > 1):
        raise ConfigError(
            f"{where}: overlap is {plan.overlap}: allowed is less than sync_period / fragments"
        )


def _check_schedule(pipeline: Pipeline, where: str) -> None:
    if pipeline.schedule == "interleaved":
        if pipeline.stages < 2:
            raise ConfigError(f"{where}: schedule interleaved: allowed with 2 stages or more")
        if pipeline.micro_batches % pipeline.stages:
            raise ConfigError(
                f"{where}: micro_batches is {pipeline.micro_batches}: allowed for interleaved are "
                f"multiples of {pipeline.stages}, its stages"
            )


# --- who does what --------------------------------------------------------------------------------


def seats(plan: TrainPlan, ranks: Sequence[str]) -> dict[int, Seat]:
    """Rank -> its place; ranks that the plan does not use are left out.

    A domain's ranks are taken in order, the stages of one replica side by side.
    """
    of_domain: dict[str, list[int]] = {}
    for rank, domain in enumerate(ranks):
        of_domain.setdefault(domain, []).append(rank)
    out = {}
    for g, pipeline in enumerate(plan.pipelines):
        before = 0
        for d in pipeline.domains:
            free = iter(of_domain[d.domain])
            for replica in range(pipeline.dp):
                for own in range(d.pp):
                    out[next(free)] = Seat(g, replica, before + own)
            before += d.pp
    return out


def even_split(count: int, parts: int) -> list[int]:
    """`count` in `parts` that differ by at most one, the larger ones last."""
    each, extra = divmod(count, parts)
    return [each + (i >= parts - extra) for i in range(parts)]


def chunk_sizes(pipeline: Pipeline) -> list[int]:
    """Layers of each model chunk, in the order in which an activation passes them.

    Without interleaving a stage has one chunk. With it, chunk c belongs to stage c mod stages
    (Narayanan et al., SC 2021).
    """
    chunks = CHUNKS if pipeline.schedule == "interleaved" else 1
    per_stage = [n for d in pipeline.domains for n in even_split(d.layers, d.pp)]
    each = [even_split(n, chunks) for n in per_stage]
    return [each[s][c] for c in range(chunks) for s in range(len(per_stage))]


def units_of(plan: TrainPlan, seat: Seat, layers: int) -> list[list[int]]:
    """What a rank holds, one list per chunk: unit 0 is the embedding, 1 to `layers` are the layers,
    the one after them is the head."""
    pipeline = plan.pipelines[seat.pipeline]
    sizes, out, begin = chunk_sizes(pipeline), [], 1
    for c, size in enumerate(sizes):
        if c % pipeline.stages == seat.stage:
            first, last = c == 0, c == len(sizes) - 1
            out.append([0] * first + list(range(begin, begin + size)) + [layers + 1] * last)
        begin += size
    return out


def holders(plan: TrainPlan, ranks: Sequence[str], layers: int) -> list[list[list[int]]]:
    """[unit][pipeline] -> ranks that hold the unit, one per replica, the first replica first."""
    found = [[[] for _ in plan.pipelines] for _ in range(layers + 2)]
    ordered = sorted(seats(plan, ranks).items(), key=lambda item: item[1].replica)
    for rank, seat in ordered:
        for unit in (u for chunk in units_of(plan, seat, layers) for u in chunk):
            found[unit][seat.pipeline].append(rank)
    return found


def sequences_of(plan: TrainPlan, seat: Seat) -> tuple[int, int]:
    """The first of a step's sequences that a rank's replica computes, and one past the last."""
    begin = sum(p.sequences for p in plan.pipelines[: seat.pipeline])
    pipeline = plan.pipelines[seat.pipeline]
    count = pipeline.micro_batches * pipeline.micro_batch
    return begin + seat.replica * count, begin + (seat.replica + 1) * count
