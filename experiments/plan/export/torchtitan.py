"""torchtitan 0.3: a configuration function for each group, in one Python module; several groups are
replica groups of its torchft experiment (semi-synchronous where the plan syncs seldom)."""

from __future__ import annotations

from experiments.plan.export.layout import Job, Pipeline
from experiments.plan.export.writing import SHAPE, Export, details, few_bits, script
from jaxsim.files import InputError
from jaxsim.workload import RESHARD

RELEASE = "torchtitan 0.3.0 with torchft 0.2.0"
SCHEDULES = {"1f1b": "1F1B", "gpipe": "GPipe", "eager_1f1b": "1F1B"}
RECOMPUTE = {"none": "None", "selective": "SelectiveAC.Config()", "full": "FullAC.Config()"}
MODULE = "hippo_plan"


def export(job: Job) -> Export:
    """Raises InputError for models that torchtitan's Llama cannot be."""
    if job.model.ffn_matrices != 3:
        raise InputError("format: torchtitan's Llama has gated layers; this model has plain ones")
    if job.model.tied_embeddings and any(p.pp > 1 for p in job.pipelines):
        raise InputError(
            "format: torchtitan ties embeddings without pipelines only; this plan has them"
        )
    several = len(job.pipelines) > 1
    nearest: list[str] = []
    period, fragments = _outer(job, nearest)
    functions = [
        _group(job, g, pipeline, several, period, fragments)
        for g, pipeline in enumerate(job.pipelines)
    ]
    files = {f"{MODULE}.py": "\n\n\n".join([_head(job, several), *functions]) + "\n"}
    for g, pipeline in enumerate(job.pipelines):
        for site in pipeline.sites:
            files[f"launch-{site.name}.sh"] = _script(site, g, pipeline, several)
    return Export(
        RELEASE,
        files,
        _exact(job, several),
        tuple(nearest + _nearest(job, several)),
        _run(job, several),
    )


def _outer(job: Job, nearest: list[str]) -> tuple[int, int]:
    """Sync period and fragments as torchft takes them."""
    period, fragments = job.sync_period, job.fragments
    if fragments > 1 and any(p.pp > 1 for p in job.pipelines):
        fragments = 1
        nearest.append(
            f"{job.fragments} fragments: torchft splits the model of one process, and a stage of a "
            "pipeline need not hold a part of each. One fragment is sent whole, with the planned delay."
        )
    if period % fragments:
        period = -(-period // fragments) * fragments
        nearest.append(
            f"Sync every {job.sync_period} steps in {fragments} fragments: torchft wants a multiple of "
            f"the fragments; {period} is the nearest above."
        )
    return period, fragments


def _head(job: Job, several: bool) -> str:
    m = job.model
    imports = [
        "from torchtitan.components.loss import CrossEntropyLoss",
        "from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw",
        "from torchtitan.config import ParallelismConfig, TrainingConfig",
        "from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC  # noqa: F401",
        "from torchtitan.distributed.pipeline_parallel import pipeline_llm",
        "from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader",
        "from torchtitan.models import llama3",
        "from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm",
    ]
    if several:
        imports += [
            "from torchtitan.experiments.torchft.checkpoint import TorchFTCheckpointManager",
            "from torchtitan.experiments.torchft.config.job_config import (",
            "    FaultTolerance,",
            "    FaultTolerantModelSpec,",
            ")",
            "from torchtitan.experiments.torchft.diloco import fragment_llm",
            "from torchtitan.experiments.torchft.optimizer import TorchFTOptimizersContainer",
            "from torchtitan.experiments.torchft.trainer import FaultTolerantTrainer",
        ]
    else:
        imports += [
            "from torchtitan.protocols.model_spec import ModelSpec",
            "from torchtitan.trainer import Trainer",
        ]
    spec = "FaultTolerantModelSpec" if several else "ModelSpec"
    init = "_EMBEDDING_SKIP_INIT" if m.tied_embeddings else "_EMBEDDING_INIT"
    fragment = ["        fragment_fn=fragment_llm,"] if several else []
    body = [
        f'"""{job.model_name} on {job.cluster}, a configuration for each group of the plan.',
        "",
        f"For {RELEASE}.",
        "",
        "The shape of the model is the plan's. Rotary base, data, learning rate and steps are yours.",
        '"""',
        "",
        "import os",
        "",
        *imports,
        "",
        f"DIM, VOCAB, LAYERS, SEQ = {m.hidden}, {m.vocab}, {m.layers}, {job.seq}",
        "",
        "",
        f"def model_spec() -> {spec}:",
        f"    rope = ComplexRoPE.Config(dim=DIM // {m.heads}, max_seq_len=SEQ, theta=10000)",
        "    layers = llama3._build_llama3_layers(",
        f"        n_layers=LAYERS, dim=DIM, n_heads={m.heads}, n_kv_heads={m.kv_heads},",
        f'        hidden_dim={m.ffn}, rope=rope, attn_backend="flex",',
        "    )",
        "    head = llama3._output_linear_init(DIM)",
        "    norm = RMSNorm.Config(normalized_shape=DIM, param_init=llama3._NORM_INIT)",
        "    embeddings = Embedding.Config(",
        f"        num_embeddings=VOCAB, embedding_dim=DIM, param_init=llama3.{init}",
        "    )",
        "    model = llama3.Llama3Model.Config(",
        f"        dim=DIM, vocab_size=VOCAB, enable_weight_tying={m.tied_embeddings},",
        "        tok_embeddings=embeddings, norm=norm, layers=layers,",
        "        lm_head=Linear.Config(in_features=DIM, out_features=VOCAB, param_init=head),",
        "    )",
        f"    return {spec}(",
        f'        name="{"torchft/llama3" if several else "llama3"}",',
        f'        flavor="{job.name}",',
        "        model=model,",
        "        parallelize_fn=llama3.parallelize_llama,",
        "        pipelining_fn=pipeline_llm,",
        "        post_optimizer_build_fn=None,",
        "        state_dict_adapter=llama3.Llama3StateDictAdapter,",
        *fragment,
        "    )",
    ]

    return "\n".join(body)


def _sizes(job: Job, pipeline: Pipeline) -> list[str]:
    """Comments on the size of the batch and the number of steps."""
    groups = len(job.pipelines)
    lines = []
    if groups > 1:
        lines.append(f"divided by {groups} groups: this one trains on {pipeline.sequences} of them")
    if not job.steps:
        lines.append("steps: no --tokens were given, so this number is none of the plan's")
    return lines


def _group(job: Job, g: int, pipeline: Pipeline, several: bool, period: int, fragments: int) -> str:
    trainer = "FaultTolerantTrainer" if several else "Trainer"
    groups = len(job.pipelines)
    # With pipelines a local batch is all micro-batches of a step; without, one of them.
    local = pipeline.micro_batch * (pipeline.micro_batches if pipeline.pp > 1 else 1)
    lines = [
        f"def group_{g + 1}() -> {trainer}.Config:",
        f'    """{" > ".join(site.name for site in pipeline.sites)}: {pipeline.gpus} GPUs."""',
        f"    return {trainer}.Config(",
        "        loss=CrossEntropyLoss.Config(global_vocab_size=VOCAB),",
        '        hf_assets_path=os.environ.get("HF_ASSETS", "./assets"),',
        "        model_spec=model_spec(),",
        *_optimizer(several),
        "        lr_scheduler=LRSchedulersContainer.Config(warmup_steps=2000),",
        "        dataloader=HuggingFaceTextDataLoader.Config(),",
        "        training=TrainingConfig(",
        f"            local_batch_size={local},",
        *(f"            # {line}" for line in _sizes(job, pipeline)),
        f"            global_batch_size={pipeline.sequences * groups},",
        "            seq_len=SEQ,",
        f"            steps={job.steps or 10000},",
        # torchtitan refuses CUDA graphs in pipelines.
        f"            disable_cuda_graphs={pipeline.pp > 1},",
        "        ),",
        "        parallelism=ParallelismConfig(",
        *_parallelism(pipeline),
        "        ),",
        f"        activation_checkpoint={RECOMPUTE[pipeline.recompute]},",
    ]
    if several:
        lines += [
            "        checkpoint=TorchFTCheckpointManager.Config(),",
            "        fault_tolerance=FaultTolerance(",
            "            enable=True,",
            f'            process_group="{"nccl" if _quantised(job) else "gloo"}",',
            "            process_group_timeout_ms=600000,",
            f"            replica_id={g},",
            f"            group_size={groups},",
            f"            min_replica_size={groups},",
        ]
        if job.sync_period > 1:
            lines += [
                '            semi_sync_method="diloco",',
                f"            sync_steps={period},",
                f"            num_fragments={fragments},",
                f"            fragment_sync_delay={job.overlap},",
                f"            should_quantize={_quantised(job)},",
            ]
        lines.append("        ),")
    return "\n".join([*lines, "    )"])


def _quantised(job: Job) -> bool:
    """Does torchft send outer syncs in 8 bits? Its sum of quantised tensors is for NCCL."""
    return job.sync_period > 1 and job.wire_bits <= 8


def _optimizer(several: bool) -> list[str]:
    if not several:
        return ["        optimizer=default_adamw(lr=3e-4),"]
    return [
        "        optimizer=TorchFTOptimizersContainer.Config(",
        "            param_groups=default_adamw(lr=3e-4).param_groups",
        "        ),",
    ]


def _parallelism(pipeline: Pipeline) -> list[str]:
    sharded = pipeline.zero > 0
    fields = {
        "data_parallel_replicate_degree": 1 if sharded else pipeline.dp,
        "data_parallel_shard_degree": pipeline.dp if sharded else 1,
        "fsdp_reshard_after_forward": _reshard(pipeline),
        "context_parallel_degree": pipeline.cp,
        "tensor_parallel_degree": pipeline.tp,
        "pipeline_parallel_degree": pipeline.pp,
    }
    if pipeline.cp > 1:
        fields["context_parallel_load_balancer"] = "ptrr"  # the one that flex attention takes
    if pipeline.pp > 1:
        fields |= {
            "pipeline_parallel_schedule": SCHEDULES[pipeline.schedule],
            "pipeline_parallel_microbatch_size": pipeline.micro_batch,
        }
    lines = [f"            {key}={value!r}," for key, value in fields.items()]
    if pipeline.pp > 1:
        lines.append("            module_fqns_per_model_part=[")
        start = 0
        for number, held in enumerate(pipeline.stages):
            first = '"tok_embeddings", ' if number == 0 else ""
            last = ', "norm", "lm_head"' if number == pipeline.pp - 1 else ""
            layers = f'*(f"layers.{{i}}" for i in range({start}, {start + held}))'
            lines.append(f"                [{first}{layers}{last}],")
            start += held
        lines.append("            ],")
    return lines


def _reshard(pipeline: Pipeline) -> str:
    if pipeline.zero < 3:
        return "never"
    word = RESHARD[pipeline.reshard] if pipeline.reshard >= 0 else "unless-pipelined"
    return {"unless-pipelined": "default"}.get(word, word)


def _script(site, g: int, pipeline: Pipeline, several: bool) -> str:
    body = ["export PYTHONPATH=$PWD:${PYTHONPATH:-}"]
    if several:
        body += [
            ': "${TORCHFT_LIGHTHOUSE:?set it to http://HOST:29510 of the lighthouse}"',
            "export TORCHFT_LIGHTHOUSE",
        ]
    body.append(
        f'"${{TORCHRUN[@]}}" -m torchtitan.train --module {MODULE} --config group_{g + 1} "$@"'
    )
    return script(site, site.first_node, pipeline.nodes, body)


def _exact(job: Job, several: bool) -> tuple[str, ...]:
    exact = [
        SHAPE,
        "Domains, order of stages, layers of every stage, tp, cp, dp, micro-batch and their number.",
        "Recompute none or full.",
    ]
    if several and job.sync_period > 1:
        exact.append(
            f"An outer sync with a delay of {job.overlap} inner step(s) (DiLoCo of torchft)."
        )
    return tuple(exact)


def _nearest(job: Job, several: bool) -> list[str]:
    notes = [details("torchtitan's Llama 3"), *few_bits(job, "torchtitan")]
    pipelines = job.pipelines
    if any(p.cp > 1 for p in pipelines):
        notes.append(
            "Context parallelism: torchtitan also shards weights over the parts of a sequence."
        )
    if any(p.schedule == "eager_1f1b" and p.pp > 1 for p in pipelines):
        notes.append("Eager 1F1B: torchtitan has 1F1B, which hides less of a slow link.")
    if any(0 < p.zero < 3 and p.dp > 1 for p in pipelines):
        notes.append(
            "ZeRO 1 and 2: torchtitan shards by FSDP 2. Weights stay gathered after the forward pass "
            "(`never`), which needs the memory of ZeRO 2 plus the gathered weights."
        )
    if any(p.recompute == "selective" for p in pipelines):
        notes.append("Selective recompute: torchtitan's own choice of operators.")
    if several and job.sync_period > 1 and job.wire_bits < 16:
        notes.append(f"Outer deltas in {job.wire_bits} bits: torchft quantises to 8.")
    if several and len({p.sequences for p in pipelines}) > 1:
        notes.append(
            "Unequal shares of the batch: torchft averages groups alike, not by sequences."
        )
    if several and job.sync_period > 1 and any(p.pp > 1 for p in pipelines):
        notes.append(
            "Pipelines inside replica groups: the torchft experiment's own tests cover none; try a "
            "short run first."
        )
    if several:
        notes.append("torchft's ring is not ordered: it follows the replica ids of its quorum.")
    return notes


def _run(job: Job, several: bool) -> tuple[str, ...]:
    lines = [
        f"Install {RELEASE} on every node, and put the tokenizer's files where HF_ASSETS says."
    ]
    if several:
        lines.append(
            "Start the lighthouse on a host that all reach: `torchft_lighthouse --min_replicas "
            f"{len(job.pipelines)} --bind 0.0.0.0:29510`. MASTER_ADDR is one host for each group."
        )
    lines.append(
        f"Data, learning rate and warm-up are placeholders in `{MODULE}.py`: give `dataset` and `lr` "
        "there. torchtitan's own data set, `c4_test`, is a file of its repository, not of its package."
    )
    lighthouse = "TORCHFT_LIGHTHOUSE=http://HOST:29510 " if several else ""
    lines.append(
        "Then, on every node of a domain: `NODE_RANK=0 MASTER_ADDR=... HF_ASSETS=... "
        f"{lighthouse}./launch-DOMAIN.sh`. MASTER_PORT is 29500 unless you set it."
    )
    if several:
        lines.append(
            "Between domains the lighthouse's port must be open and those that gloo takes (any above "
            "1024; GLOO_SOCKET_IFNAME names the interface)."
        )
    return tuple(lines)
