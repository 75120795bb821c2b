"""DeepSpeed 0.19: one job; its JSON, and a function that builds the pipeline's topology."""

from __future__ import annotations

import json

from experiments.plan.export.layout import Job, Pipeline
from experiments.plan.export.writing import Export, one_layout, script, synchronous_instead
from jaxsim.files import InputError

RELEASE = "DeepSpeed 0.19.8"


def export(job: Job) -> Export:
    """Raises InputError where one layout does not serve all groups, and for what pipelines refuse."""
    pipeline = one_layout(job, "DeepSpeed")
    if pipeline.pp > 1 and pipeline.zero > 1:
        raise InputError(
            f"format: DeepSpeed's pipelines go with ZeRO 0 or 1, this plan has {pipeline.zero}: export "
            "to torchtitan"
        )
    if pipeline.tp > 1 and pipeline.pp > 1:
        raise InputError(
            f"format: DeepSpeed splits tensors without pipelines only, this plan has tp {pipeline.tp} "
            f"and {pipeline.pp} stages: export to megatron or torchtitan"
        )
    if pipeline.cp > 1:
        raise InputError(
            f"format: DeepSpeed splits sequences inside the model's own code, this plan has cp "
            f"{pipeline.cp}: export to megatron or torchtitan"
        )
    files = {"ds_config.json": json.dumps(configuration(job, pipeline), indent=2) + "\n"}
    if pipeline.pp > 1:
        files["pipeline.py"] = _pipeline(job, pipeline)
    nodes, first = sum(p.nodes for p in job.pipelines), 0
    for group in job.pipelines:
        for site in group.sites:
            body = [
                ': "${TRAIN:?set it to your training script, which calls deepspeed.initialize}"',
                '"${TORCHRUN[@]}" "$TRAIN" --deepspeed --deepspeed_config ds_config.json "$@"',
            ]
            at = first + site.first_node
            files[f"launch-{site.name}.sh"] = script(site, at, nodes, body)
        first += group.nodes
    return Export(RELEASE, files, _exact(pipeline), tuple(_nearest(job, pipeline)), _run(pipeline))


def configuration(job: Job, pipeline: Pipeline) -> dict:
    """What deepspeed.initialize takes."""
    groups = len(job.pipelines)
    body = {
        "train_batch_size": pipeline.sequences * groups,
        "train_micro_batch_size_per_gpu": pipeline.micro_batch,
        "gradient_accumulation_steps": pipeline.micro_batches,
        "bf16": {"enabled": True},
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.9, 0.95]}},
        "zero_optimization": {"stage": pipeline.zero},
    }
    if pipeline.recompute != "none":
        body["activation_checkpointing"] = {"partition_activations": pipeline.tp > 1}
    if pipeline.tp > 1:
        body["tensor_parallel"] = {"autotp_size": pipeline.tp}
    return body


def _pipeline(job: Job, pipeline: Pipeline) -> str:
    bounds = [0]
    for held in pipeline.stages:
        bounds.append(bounds[-1] + held)
    replicas = pipeline.dp * len(job.pipelines)
    axes = '["data", "pipe"]' if len(job.pipelines) > 1 else '["pipe", "data"]'
    dims = [replicas, pipeline.pp] if len(job.pipelines) > 1 else [pipeline.pp, replicas]
    return f'''"""The pipeline of the plan for DeepSpeed's PipelineModule ({RELEASE}).

`layers` of the module: embeddings first, then one entry for each of the {job.model.layers} layers,
then norm and head.
"""

from deepspeed.pipe import PipelineModule
from deepspeed.runtime.pipe.topology import ProcessTopology

STAGES = {pipeline.pp}
LAYERS = {tuple(pipeline.stages)!r}  # of each stage


class PlannedPipeline(PipelineModule):
    """Layers where the plan puts them, not where DeepSpeed would balance them."""

    def _partition_layers(self, method="uniform"):
        bounds = {bounds!r}
        # Embeddings join the first stage, norm and head the last.
        ends = [0, *(b + 1 for b in bounds[1:-1]), len(self._layer_specs)]
        stage = self._topo.get_coord(self.global_rank).pipe
        self.parts = ends
        self._set_bounds(start=ends[stage], stop=ends[stage + 1])


def topology():
    """Ranks as the launch scripts place them: the last axis changes fastest."""
    return ProcessTopology(axes={axes}, dims={dims!r})


def build(layers, **settings):
    recompute = {1 if pipeline.recompute != "none" else 0}
    return PlannedPipeline(
        layers, topology=topology(), activation_checkpoint_interval=recompute, **settings
    )
'''


def _exact(pipeline: Pipeline) -> tuple[str, ...]:
    what = ["Global batch, micro-batch and their number, ZeRO stage, dp, tp."]
    if pipeline.pp > 1:
        what.append("Stages, their order over domains, and the layers of each (pipeline.py).")
    return tuple(what)


def _nearest(job: Job, pipeline: Pipeline) -> list[str]:
    notes = synchronous_instead(job, "DeepSpeed")
    if pipeline.pp > 1 and pipeline.schedule != "1f1b":
        notes.append(f"Schedule {pipeline.schedule}: DeepSpeed runs 1F1B.")
    if pipeline.recompute == "selective":
        notes.append("Selective recompute: DeepSpeed recomputes whole layers.")
    notes.append("DeepSpeed has no models of its own: yours must have the shape of the plan's.")
    if len(job.pipelines) > 1 and pipeline.zero > 0:
        notes.append("Shards span all groups: every step also gathers over the WAN.")
    return notes


def _run(pipeline: Pipeline) -> tuple[str, ...]:
    extra = " Build the model with `build` of pipeline.py." if pipeline.pp > 1 else ""
    return (
        f"Install {RELEASE} on every node and set TRAIN to your training script.{extra}",
        "Then, on every node of a domain: `NODE_RANK=0 MASTER_ADDR=... ./launch-DOMAIN.sh`.",
    )
