"""A plan and a model as the resolved job that `ddp_bench.parallel` trains."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxsim.cluster import ClusterSpec
from jaxsim.files import InputError, shown
from jaxsim.plan import Plan, Recompute, Schedule, whole_plan
from jaxsim.workload import JobSpec, ModelConfig, load_model

MODEL = Path(__file__).parents[1] / "configs" / "wan" / "model.yaml"
BYTES = 256  # the vocabulary: training texts are bytes
# Of a description in words, as `Plan.build` takes it; and what only real training reads.
DESCRIPTION = ("groups", "layers", "dp", "pp", "micro_batch", "batch_share", "schedule")
DESCRIPTION += ("sync_period", "wire_bits")
DESCRIPTION += ("fragments", "overlap")
TRAINING = ("reduce",)  # what the simulator does not tell apart
WHOLE = ("pipelines", "plan", "sync_period", "wire_bits", "fragments", "overlap", *TRAINING)
WHOLE += ("activation_bits", "fields")
SCHEDULES = (Schedule.GPIPE, Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED)
FP32_BITS = 32
UNCOMPRESSED_BITS = (16, 32)  # of a value between stages: what real training can send


@dataclasses.dataclass(frozen=True)
class TrainingOptions:
    """What is trained, and how long."""

    plan: str | None = None
    model: str = str(MODEL)
    global_batch: int = 16  # [sequences]
    seq: int = 64  # [tokens]
    steps: int = 20
    seed: int = 0
    ranks_per_domain: int = 1
    watch: str | None = None
    timeout_s: float = 120.0


def job_spec(options: TrainingOptions) -> JobSpec:
    """The job as jaxsim has it. Values on the wire have `wire_bits` of the plan, 32 unless it says
    otherwise; jaxsim's precision is the one that they are counted from."""
    model = load_model(options.model)
    if model.vocab != BYTES or model.ffn_matrices != 3:
        raise InputError(
            f"{options.model}: vocab, ffn_matrices: expected {BYTES} and 3 (bytes, a gated FFN), got "
            f"{model.vocab} and {model.ffn_matrices}"
        )
    return JobSpec(model, options.global_batch, options.seq, compiled=False)


def read_plan(path: str | None, spec: ClusterSpec, job: JobSpec) -> tuple[Plan, dict[str, Any]]:
    """A plan file as jaxsim's plan and as the trainer's; None = every domain a replica.

    The file is JSON: a description in the words of `Plan.build` (`groups`, ...), or pipelines as
    `hippo respond` prints them. Raises InputError that names the file and the key.
    """
    if path is None:
        body: Any = {"groups": [[name] for name in spec.domains]}
    else:
        try:
            body = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}") from None
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}: not valid JSON: {error}") from None
    return plan_of(body, path or "plan", spec, job)


def plan_of(body: Any, where: str, spec: ClusterSpec, job: JobSpec) -> tuple[Plan, dict[str, Any]]:
    """The same from a plan file's content."""
    if not isinstance(body, Mapping):
        raise InputError(f"{where}: expected a mapping, got {shown(body)}")
    whole = "pipelines" in body or "plan" in body
    keys = WHOLE if whole else (*DESCRIPTION, *TRAINING)
    strange = sorted(set(body) - set(keys))
    if strange or (not whole and "groups" not in body):
        got = f"unknown key {shown(strange[0])}" if strange else "no groups"
        raise InputError(f"{where}: {got}; known: {', '.join(keys)}")
    bits = body.get("activation_bits", FP32_BITS)
    if bits not in UNCOMPRESSED_BITS:
        raise InputError(
            f"{where}: activation_bits: real training here compresses no activations: expected 16 or "
            f"32, got {shown(bits)}"
        )
    # `fields` tells the same plan in numbers, for those who read it as a plan that runs.
    others = (*TRAINING, "fields")
    described = {key: value for key, value in body.items() if key not in others}
    if whole:
        described = _described(described, where)
    described.setdefault("pp", 1)
    described.setdefault("wire_bits", FP32_BITS)
    described["activation_bits"] = FP32_BITS  # pipelines here pass activations on as they are
    try:
        plan = Plan.build(spec, job, described.pop("groups"), **described)
    except InputError as error:
        raise InputError(f"{where}: {str(error).removeprefix('plan: ')}") from None
    extra = {key: body[key] for key in TRAINING if key in body}
    return plan, {**trained_plan(plan, spec.domains, where), **extra}


PER_DOMAIN = ("layers", "pp", "tp", "cp", "zero_stage")  # of a pipeline's domains, 1 if not said


def _described(body: dict[str, Any], where: str) -> dict[str, Any]:
    """Pipelines, as `whole_plan` lists them, in the words of `Plan.build`."""
    rows = body.pop("pipelines") if "pipelines" in body else body.pop("plan")
    try:
        stages = [stage for row in rows for stage in row["domains"]]
        found = {
            "groups": [[stage["domain"] for stage in row["domains"]] for row in rows],
            **{key: {s["domain"]: s.get(key, 1) for s in stages} for key in PER_DOMAIN},
            "dp": [row.get("dp", 1) for row in rows],
            "micro_batch": [row.get("micro_batch", 1) for row in rows],
            "batch_share": [row["micro_batches"] for row in rows],
            "schedule": [_word(row.get("schedule", "1f1b"), Schedule) for row in rows],
            "recompute": [_word(row.get("recompute", "none"), Recompute) for row in rows],
        }
    except (TypeError, KeyError, AttributeError) as error:
        raise InputError(
            f"{where}: pipelines: expected a list of pipelines, each with domains (domain, layers) "
            f"and micro_batches; {type(error).__name__}: {error}"
        ) from None
    return {**found, **body}


def _word(said: Any, kind: type) -> Any:
    """A mode by its word or by the label that tables print."""
    return next((mode.word for mode in kind if said == mode.label), said)


def trained_plan(plan: Plan, names: tuple[str, ...], where: str) -> dict[str, Any]:
    """jaxsim's plan as `ddp_bench.parallel` reads it. Raises InputError for what it does not do."""
    used = np.asarray(plan.group) >= 0
    for key in ("tp", "cp"):
        if (np.asarray(getattr(plan, key))[used] != 1).any():
            raise InputError(f"{where}: {key}: real training here splits no layer: expected 1")
    if (np.asarray(plan.zero_stage)[used] > 1).any():
        raise InputError(
            f"{where}: zero_stage: real training here shards no gradient: expected 0, 1"
        )
    rows = whole_plan(plan, names)
    for g, row in enumerate(rows):
        schedule, recompute = int(plan.schedule[g]), int(plan.recompute[g])
        if schedule not in SCHEDULES or recompute != Recompute.NONE:
            words = ", ".join(mode.word for mode in SCHEDULES)
            raise InputError(f"{where}: schedule: expected one of {words}, and recompute none")
        row["schedule"] = Schedule(schedule).word
        row.pop("recompute")
        row["domains"] = [{k: d[k] for k in ("domain", "layers", "pp")} for d in row["domains"]]
    return {
        "pipelines": rows,
        **{
            name: int(getattr(plan, name))
            for name in ("sync_period", "fragments", "overlap", "wire_bits")
        },
    }


def resolved_job(
    options: TrainingOptions, spec: ClusterSpec, job: JobSpec, plan: dict[str, Any], network: str
) -> dict[str, Any]:
    """The job as `ddp_bench.parallel` reads it: ranks are dealt to domains as the plan needs them."""
    needed = dict.fromkeys(spec.domains, options.ranks_per_domain)
    for row in plan["pipelines"]:
        for d in row["domains"]:
            needed[d["domain"]] = max(needed[d["domain"]], row["dp"] * d["pp"])
    shape: ModelConfig = job.model
    keys = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab")
    return {
        "model": {key: getattr(shape, key) for key in keys},
        "plan": plan,
        "ranks": [name for name in spec.domains for _ in range(needed[name])],
        "domains": list(spec.domains),
        "seq": options.seq,
        "global_batch": options.global_batch,
        "steps": options.steps,
        "seed": options.seed,
        "timeout_s": options.timeout_s,
        "network": network,
        "watch": None if options.watch is None else str(Path(options.watch).resolve()),
    }
