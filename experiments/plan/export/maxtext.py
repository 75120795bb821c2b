"""MaxText 0.2: one job; groups are slices, DiLoCo where the plan syncs seldom."""

from __future__ import annotations

from experiments.plan.export.layout import Job, Pipeline, Site
from experiments.plan.export.writing import SHAPE, Export, details, few_bits, one_layout
from jaxsim.files import InputError, dump_yaml

RELEASE = "MaxText 0.2.5"
REMAT = {"none": "minimal", "selective": "minimal", "full": "full"}


def export(job: Job) -> Export:
    """Raises InputError where one layout does not serve all groups, and for stages that differ."""
    pipeline = one_layout(job, "MaxText")
    if len(set(pipeline.stages)) > 1:
        raise InputError(
            "format: MaxText gives every stage as many layers, and the stages of this plan differ: "
            "export to torchtitan or megatron"
        )
    if pipeline.pp > 1 and pipeline.micro_batches % pipeline.pp:
        unit = pipeline.pp * pipeline.sequences // pipeline.micro_batches * len(job.pipelines)
        below = pipeline.micro_batches // pipeline.pp * unit
        batches = f"{below} or {below + unit}" if below else f"{unit}"
        raise InputError(
            f"format: MaxText wants a multiple of the {pipeline.pp} stages as micro-batches, this plan "
            f"has {pipeline.micro_batches}: try --global-batch {batches}, or export to torchtitan or "
            "megatron"
        )
    sizes = {site.nodes * site.per_node for group in job.pipelines for site in group.sites}
    if len(sizes) > 1:
        held = " and ".join(map(str, sorted(sizes)))
        raise InputError(
            f"format: MaxText's slices are of one size, and the domains of this plan hold {held} GPUs: "
            "export to torchtitan or megatron"
        )
    if job.model.ffn_matrices != 3:
        raise InputError(
            "format: MaxText's llama2 block has gated layers; this model has plain ones"
        )
    files = {"maxtext.yml": dump_yaml(configuration(job, pipeline))}
    first = 0
    for group in job.pipelines:
        for site in group.sites:
            files[f"launch-{site.name}.sh"] = _script(site, first + site.first_node, job)
        first += group.nodes
    nearest = tuple(_nearest(job, pipeline))
    return Export(RELEASE, files, _exact(job), nearest, _run())


def configuration(job: Job, pipeline: Pipeline) -> dict:
    """The keys of MaxText's base.yml that the plan sets."""
    m, groups = job.model, len(job.pipelines)
    seldom = groups > 1 and job.sync_period > 1
    sites, split = len(pipeline.sites), pipeline.tp * pipeline.cp * pipeline.pp
    body = {
        "run_name": job.name,
        "hardware": "gpu",
        "override_model_config": True,
        "decoder_block": "llama2",
        "base_emb_dim": m.hidden,
        "base_num_query_heads": m.heads,
        "base_num_kv_heads": m.kv_heads,
        "base_mlp_dim": m.ffn,
        "base_num_decoder_layers": m.layers,
        "head_dim": m.hidden // m.heads,
        "vocab_size": m.vocab,
        "logits_via_embedding": m.tied_embeddings,
        "max_target_length": job.seq,
        # Sequences of a step over all devices; a device of a stage counts as well.
        "per_device_batch_size": pipeline.micro_batch / split,
        "gradient_accumulation_steps": pipeline.micro_batches,
        "remat_policy": REMAT[pipeline.recompute],
        "dcn_diloco_parallelism": groups if seldom else 1,
        "dcn_data_parallelism": 1 if seldom else groups,
        "dcn_pipeline_parallelism": sites,
        "ici_pipeline_parallelism": pipeline.pp // sites,
        "ici_fsdp_parallelism": pipeline.dp if pipeline.zero else 1,
        "ici_data_parallelism": 1 if pipeline.zero else pipeline.dp,
        "ici_context_parallelism": pipeline.cp,
        "ici_tensor_parallelism": pipeline.tp,
    }
    if pipeline.pp > 1:
        body |= {
            "per_device_batch_size": pipeline.micro_batch * pipeline.micro_batches / split,
            "gradient_accumulation_steps": 1,
            "num_layers_per_pipeline_stage": pipeline.stages[0],
            "num_pipeline_microbatches": pipeline.micro_batches,
        }
    if seldom:
        body |= {"enable_diloco": True, "diloco_sync_period": job.sync_period}
        if job.fragments > 1:
            period, fragments = _outer(job)
            body |= {
                "diloco_sync_period": period,
                "enable_streaming_diloco": True,
                "scan_layers": True,
                "num_diloco_fragments": fragments,
                "num_communication_overlapping_steps": job.overlap,
            }
    if job.steps:
        body["steps"] = job.steps
    return body


def _outer(job: Job) -> tuple[int, int]:
    """Sync period and fragments as MaxText takes them where it streams: one fragment for what is not in
    a layer, the others of as many layers each; a period of whole steps from one to the next."""
    layers = job.model.layers
    ways = (1 + parts for parts in range(1, layers + 1) if layers % parts == 0)
    fragments = min(ways, key=lambda n: (abs(n - job.fragments), n))
    return -(-job.sync_period // fragments) * fragments, fragments


def _script(site: Site, first_node: int, job: Job) -> str:
    nodes = sum(p.nodes for p in job.pipelines)
    return "\n".join(
        [
            "#!/usr/bin/env bash",
            f"# Runs on each of the {site.nodes} node(s) of {site.name}, from this folder.",
            "# Set before: MASTER_ADDR, a host that all nodes of the job reach; NODE_RANK, this node's",
            f"# number inside {site.name}, from 0 to {site.nodes - 1}; MAXTEXT_ARGS, keys of the data.",
            "set -euo pipefail",
            'cd "$(dirname "$0")"',
            ': "${MASTER_ADDR:?set it to a host that all nodes of the job reach}"',
            f': "${{NODE_RANK:?set it to the number of this node, 0 to {site.nodes - 1}}}"',
            ': "${MASTER_PORT:=29500}"',
            "export JAX_COORDINATOR_IP=$MASTER_ADDR JAX_COORDINATOR_PORT=$MASTER_PORT",
            f"export NNODES={nodes} NODE_RANK=$(({first_node} + NODE_RANK))",
            'python -m maxtext.trainers.pre_train.train maxtext.yml ${MAXTEXT_ARGS:-} "$@"',
            "",
        ]
    )


def _exact(job: Job) -> tuple[str, ...]:
    exact = [
        SHAPE,
        "Domains as slices, layers of every stage, tp, cp, dp, micro-batches.",
    ]
    if len(job.pipelines) > 1 and job.sync_period > 1:
        if job.fragments == 1 or _outer(job) == (job.sync_period, job.fragments):
            exact.append("The sync period of DiLoCo; fragments and delay where the plan streams.")
        else:
            exact.append("The delay of DiLoCo's fragments.")
    return tuple(exact)


def _nearest(job: Job, pipeline: Pipeline) -> list[str]:
    notes = [details("MaxText's Llama 2 block"), *few_bits(job, "MaxText")]
    seldom = len(job.pipelines) > 1 and job.sync_period > 1
    if seldom and job.wire_bits < 16:
        notes.append(
            f"Outer deltas in {job.wire_bits} bits: MaxText sends them as they are stored."
        )
    if seldom and job.fragments > 1 and _outer(job) != (job.sync_period, job.fragments):
        period, fragments = _outer(job)
        notes.append(
            f"Sync every {job.sync_period} steps in {job.fragments} fragments: MaxText wants one "
            "fragment beside those of the layers, which hold as many layers each, and a multiple "
            f"of the fragments as period; {period} steps and {fragments} fragments are the nearest."
        )
    if len(job.pipelines) * len(pipeline.sites) > 1:
        notes.append(
            "Slices: on GPUs MaxText counts what JAX reports; see in its first lines that each domain "
            "is one slice."
        )
    if pipeline.pp > 1:
        notes.append(
            f"Schedule {pipeline.schedule}: MaxText's pipeline is GPipe's with one repeat."
        )
    if 0 < pipeline.zero < 3 and pipeline.dp > 1:
        notes.append(f"ZeRO {pipeline.zero}: MaxText shards by FSDP, which is ZeRO 3.")
    if pipeline.recompute == "none":
        notes.append("No recompute: `minimal` is MaxText's policy that keeps most.")
    return notes


def _run() -> tuple[str, ...]:
    return (
        f"Install {RELEASE} on every node; MAXTEXT_ARGS holds the keys of data and output "
        "(`base_output_directory=... dataset_path=...`).",
        "Then, on every node of a domain: `NODE_RANK=0 MASTER_ADDR=... ./launch-DOMAIN.sh`.",
    )
