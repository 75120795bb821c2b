"""Megatron-LM (megatron-core 0.16): one job, its arguments in one file."""

from __future__ import annotations

from experiments.plan.export.layout import Job, Pipeline
from experiments.plan.export.writing import (
    SHAPE,
    Export,
    details,
    one_layout,
    script,
    synchronous_instead,
)
from jaxsim.files import InputError

RELEASE = "Megatron-LM core_v0.16.1 (megatron-core 0.16.1)"
RECOMPUTE = {
    "none": [],
    "selective": ["--recompute-granularity selective"],
    "full": [
        "--recompute-granularity full",
        "--recompute-method uniform",
        "--recompute-num-layers 1",
    ],
}


def export(job: Job) -> Export:
    """Raises InputError where one layout does not serve all groups, or for what Megatron-LM's own
    arguments refuse."""
    pipeline = one_layout(job, "Megatron-LM")
    if pipeline.schedule == "gpipe" and pipeline.pp > 1:
        raise InputError(
            "format: Megatron-LM runs 1F1B; this plan needs GPipe's order: export to torchtitan"
        )
    files = {"megatron_args.txt": "\n".join(arguments(job, pipeline)) + "\n"}
    nodes = sum(p.nodes for p in job.pipelines)
    first = 0
    for group in job.pipelines:
        for site in group.sites:
            body = [
                ': "${MEGATRON:?set it to a checkout of Megatron-LM at core_v0.16.1}"',
                ': "${DATA_ARGS:?set it to the arguments of data and tokenizer}"',
                "mapfile -t PLAN < megatron_args.txt",
                '"${TORCHRUN[@]}" "$MEGATRON/pretrain_gpt.py" ${PLAN[@]} $DATA_ARGS "$@"',
            ]
            at = first + site.first_node
            files[f"launch-{site.name}.sh"] = script(site, at, nodes, body)
        first += group.nodes
    return Export(RELEASE, files, _exact(), tuple(_nearest(job, pipeline)), _run())


def layout_text(pipeline: Pipeline) -> str:
    """Layers of every stage as --pipeline-model-parallel-layout takes them: E embeddings, t layers, L
    the loss."""
    stages = ["t" * held for held in pipeline.stages]
    return "|".join(["E" + stages[0], *stages[1:]]) + "L" if pipeline.pp > 1 else ""


def arguments(job: Job, pipeline: Pipeline) -> list[str]:
    """Arguments of pretrain_gpt.py, one a line."""
    m, groups = job.model, len(job.pipelines)
    lines = [
        "--bf16",
        f"--num-layers {m.layers}",
        f"--hidden-size {m.hidden}",
        f"--ffn-hidden-size {m.ffn}",
        f"--num-attention-heads {m.heads}",
        f"--seq-length {job.seq}",
        f"--max-position-embeddings {job.seq}",
        f"--tensor-model-parallel-size {pipeline.tp}",
        f"--pipeline-model-parallel-size {pipeline.pp}",
        f"--context-parallel-size {pipeline.cp}",
        f"--micro-batch-size {pipeline.micro_batch}",
        f"--global-batch-size {pipeline.sequences * groups}",
        "--attention-dropout 0.0",
        "--hidden-dropout 0.0",
    ]
    if m.kv_heads != m.heads:
        lines += ["--group-query-attention", f"--num-query-groups {m.kv_heads}"]
    if m.ffn_matrices == 3:
        lines += ["--swiglu", "--normalization RMSNorm", "--position-embedding-type rope"]
        lines.append("--disable-bias-linear")
    if not m.tied_embeddings:
        lines.append("--untie-embeddings-and-output-weights")
    if pipeline.tp > 1:
        lines.append("--sequence-parallel")
    if pipeline.pp > 1:
        lines.append(f"--pipeline-model-parallel-layout {layout_text(pipeline)}")
    if pipeline.zero >= 1:
        lines.append("--use-distributed-optimizer")
    if groups > 1:
        # Replicas outermost: those of a group, all their stages, are neighbours.
        lines.append("--use-tp-pp-dp-mapping")
    lines += RECOMPUTE[pipeline.recompute]
    return lines + ([f"--train-iters {job.steps}"] if job.steps else [])


def _exact() -> tuple[str, ...]:
    return (
        SHAPE,
        "Domains, order of stages, layers of every stage, tp, cp, dp, micro-batch and their number.",
        "Recompute; the optimizer's state sharded over all replicas (ZeRO 1).",
    )


def _nearest(job: Job, pipeline: Pipeline) -> list[str]:
    notes = [
        details("Megatron-LM's GPT"),
        "The size of the vocabulary is that of the tokenizer in DATA_ARGS, padded.",
        *synchronous_instead(job, "Megatron-LM"),
    ]
    if pipeline.schedule == "eager_1f1b" and pipeline.pp > 1:
        notes.append("Eager 1F1B: Megatron-LM has 1F1B, which hides less of a slow link.")
    if pipeline.zero > 1 and pipeline.dp > 1:
        notes.append(f"ZeRO {pipeline.zero}: Megatron-LM's distributed optimizer is ZeRO 1.")
    if len(job.pipelines) > 1:
        notes.append(
            "The gradient ring between groups follows NCCL's order, and where the optimizer is sharded "
            "its shards span all groups: every step also gathers weights over the WAN."
        )
    return notes


def _run() -> tuple[str, ...]:
    return (
        f"Check out {RELEASE} on every node and set MEGATRON to it; DATA_ARGS holds the arguments of "
        "data and tokenizer (`--data-path ... --tokenizer-type ... --lr ... --min-lr ...`).",
        "Then, on every node of a domain: `NODE_RANK=0 MASTER_ADDR=... ./launch-DOMAIN.sh`.",
    )
