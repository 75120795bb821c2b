"""A training job as its resolved JSON file states it: model, batch, ranks, plan, network."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from ddp_bench.errors import ConfigError
from ddp_bench.parallel.plan import TrainPlan, parse_plan


@dataclass(frozen=True)
class ModelShape:
    """A Llama-shaped transformer: RMSNorm, rotary positions, grouped queries, gated FFN."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int = 256  # bytes

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"model: {name} is {value!r}: allowed is a whole number >= 1")
        if self.hidden % (2 * self.heads) or self.heads % self.kv_heads:
            raise ConfigError("model: allowed are heads that divide hidden evenly, kv_heads heads")
        if self.vocab != 256:
            raise ConfigError(f"model: vocab is {self.vocab}: allowed is 256, the corpus is bytes")

    @property
    def params(self) -> int:
        """Parameters, both tables included."""
        head = self.hidden // self.heads
        attention = self.hidden * head * 2 * (self.heads + self.kv_heads)
        layer = attention + 3 * self.hidden * self.ffn + 2 * self.hidden
        return self.layers * layer + 2 * self.vocab * self.hidden + self.hidden


@dataclass(frozen=True)
class Job:
    """Everything that the ranks of a run need to know."""

    model: ModelShape
    plan: TrainPlan
    ranks: tuple[str, ...]  # domain of every rank
    domains: tuple[str, ...]
    seq: int  # [tokens]
    global_batch: int  # [sequences]
    steps: int
    seed: int = 0
    learning_rate: float = 1e-3
    outer_learning_rate: float = 0.7  # Douillard et al. 2023, table 5
    outer_momentum: float = 0.9
    bucket_mb: float = 4.0  # [MB] of gradients that travel together
    timeout_s: float = 120.0  # a message that takes longer ends the job
    network: str | None = None  # that is up; None = all ranks on the host, for tests
    then: tuple[tuple[int, TrainPlan], ...] = ()  # plans that follow, each with its first step
    watch: str | None = None  # a file: its plan is put into force when it changes
    activation_bits: int = 32  # of a value between stages; 16 halves them on the wire
    seconds: float | None = None  # [s] of training, after which it ends; None = all steps
    # [s] that a layer takes for a sequence beside its real computation: a slower processor, which does
    # not share its cores with the other ranks.
    pace_s: float = 0.0
    held_out: int = 0  # sequences whose loss is taken; for pipelines of one stage
    evaluate_every: int = 0  # steps between two such losses; 0 = at the end alone
    inject: str = ""  # fault drill KIND:RANK:WHERE

    def to_json(self) -> dict[str, Any]:
        """What `parse_job` reads back to the same job."""
        return asdict(self)


def read_job(path: str | Path) -> Job:
    """Read a resolved job. Raises ConfigError, one line: file, key, allowed values."""
    return parse_job(read_json(path), str(path))


def read_json(path: str | Path) -> Any:
    """The content of a JSON file; ConfigError where there is none."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid JSON: {error}") from None


def parse_job(body: Any, where: str) -> Job:
    """A job from the content of its file."""
    fields = Job.__dataclass_fields__
    if not isinstance(body, dict) or not set(body) <= set(fields):
        raise ConfigError(f"{where}: allowed is a mapping with keys of {', '.join(fields)}")
    body = dict(body)
    missing = [key for key in ("model", "plan", "ranks", "domains", "seq") if key not in body]
    missing += [key for key in ("global_batch", "steps") if key not in body]
    if missing:
        raise ConfigError(f"{where}: lacks the keys {', '.join(missing)}")
    for key in ("seq", "global_batch", "steps"):
        if isinstance(body[key], bool) or not isinstance(body[key], int) or body[key] < 1:
            raise ConfigError(f"{where}: {key} is {body[key]!r}: allowed is a whole number >= 1")
    try:
        model = ModelShape(**body.pop("model"))
    except TypeError:
        keys = ", ".join(ModelShape.__dataclass_fields__)
        raise ConfigError(f"{where}: model: allowed is a mapping with the keys {keys}") from None
    ranks, domains = tuple(body.pop("ranks")), tuple(body.pop("domains"))
    if body.get("activation_bits", 32) not in (16, 32):
        raise ConfigError(f"{where}: activation_bits: allowed 16, 32")
    strange = sorted(set(ranks) - set(domains))
    if strange or not ranks:
        raise ConfigError(f"{where}: ranks: {strange}: allowed are domains: {', '.join(domains)}")

    def read(plan: Any) -> TrainPlan:
        return parse_plan(plan, where, ranks, model.layers, body["global_batch"])

    plan, rows = read(body.pop("plan")), body.pop("then", ())
    then = tuple((step, read(row)) for step, row in rows)
    if any(b <= a for (a, _), (b, _) in pairwise([(0, plan), *then])):
        raise ConfigError(f"{where}: then: allowed are steps that rise, from 1 on")
    return Job(model=model, plan=plan, ranks=ranks, domains=domains, then=then, **body)
