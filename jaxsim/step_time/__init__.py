"""Plan + network -> cost of one training step, and of a change of plan.

closed_form      `job_step_cost`: puts a step together
stages           what every stage computes
compute          time of operators: roofline and efficiencies
collectives      tensor, context, pipeline and data parallelism inside a domain
sharding         traffic of sharded weights and gradients (ZeRO-3, FSDP)
topology         who sends to whom, and how often
pipeline_inputs  stages, links and counts that pipelines are timed from; links that change
pipeline         the pipeline over the WAN, closed form
paths            the longest paths through a step of a fixed order
sync             gradient sync between groups
memory           memory per GPU
event_cost       the pipelines of a plan event-exact, and in the form in which plans are compared
event_exact      the pipeline, operation by operation
schedules        fixed orders of operations: 1F1B, GPipe, interleaved, ...
greedy           an order decided while the step runs
reconfiguration  restart and bytes of a change of plan
"""

from jaxsim.step_time import sync
from jaxsim.step_time.closed_form import (
    NetworkView,
    StepCost,
    assemble_step,
    bottleneck_parts,
    choice_fits,
    event_step_cost,
    group_periods,
    job_step_cost,
    prepare_step,
    sync_parts,
    time_pipelines,
)
from jaxsim.step_time.collectives import tensor_reduce_s
from jaxsim.step_time.compute import flash_alone_s, gemm_alone_s, layer_time
from jaxsim.step_time.event_cost import (
    BandwidthProfile,
    EventBounds,
    event_pipeline_time,
    fast_pipeline_time,
)
from jaxsim.step_time.event_exact import pipeline_events
from jaxsim.step_time.memory import in_flight_chunks, layer_memory, state_bytes_per_param
from jaxsim.step_time.paths import domain_ends, stage_parts
from jaxsim.step_time.pipeline import pipeline_time, run_ahead
from jaxsim.step_time.pipeline_inputs import (
    HEAD_FORWARD_SHARE,
    PipelineInputs,
    PreparedStep,
    StageTimes,
    sent_gb,
)
from jaxsim.step_time.reconfiguration import (
    LayerSpan,
    Transition,
    advance_transition,
    begin_between,
    begin_transition,
    moved_gb,
    outer_sync_gb,
    shard_fetch_s,
    transition_s,
)
from jaxsim.step_time.schedules import slot_count
from jaxsim.step_time.stages import replicas_running, stages
from jaxsim.step_time.sync import (
    communication,
    layer_overlap,
    outer_exposed_s,
    ring_bytes_gb,
    ring_rate_gb_per_s,
)
from jaxsim.step_time.topology import topology, transfers_per_micro_batch

__all__ = [
    "HEAD_FORWARD_SHARE",
    "BandwidthProfile",
    "EventBounds",
    "LayerSpan",
    "NetworkView",
    "PipelineInputs",
    "PreparedStep",
    "StageTimes",
    "StepCost",
    "Transition",
    "advance_transition",
    "assemble_step",
    "begin_between",
    "begin_transition",
    "bottleneck_parts",
    "choice_fits",
    "communication",
    "domain_ends",
    "event_pipeline_time",
    "event_step_cost",
    "fast_pipeline_time",
    "flash_alone_s",
    "gemm_alone_s",
    "group_periods",
    "in_flight_chunks",
    "job_step_cost",
    "layer_memory",
    "layer_overlap",
    "layer_time",
    "moved_gb",
    "outer_exposed_s",
    "outer_sync_gb",
    "pipeline_events",
    "pipeline_time",
    "prepare_step",
    "replicas_running",
    "ring_bytes_gb",
    "ring_rate_gb_per_s",
    "run_ahead",
    "sent_gb",
    "shard_fetch_s",
    "slot_count",
    "stage_parts",
    "stages",
    "state_bytes_per_param",
    "sync",
    "sync_parts",
    "tensor_reduce_s",
    "time_pipelines",
    "topology",
    "transfers_per_micro_batch",
    "transition_s",
]
