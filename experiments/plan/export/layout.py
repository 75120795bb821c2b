"""A plan as launches: what every framework needs to know, in the order of ranks."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxsim.cluster import ClusterSpec
from jaxsim.files import InputError
from jaxsim.plan import Plan, Recompute, Schedule
from jaxsim.workload import JobSpec, ModelConfig


@dataclasses.dataclass(frozen=True)
class Passes:
    """[s] One micro-batch in the fullest stage of a domain, as the simulator believes it."""

    forward_s: float
    backward_s: float
    head_forward_s: float  # the logits, in a pipeline's last stage
    head_backward_s: float
    hop_s: float  # one way to the next stage of the same domain

    def of(self, forward: bool, last: bool) -> float:
        """[s] of a pass; `last` stages compute the logits."""
        body, head = (
            (self.forward_s, self.head_forward_s)
            if forward
            else (self.backward_s, self.head_backward_s)
        )
        return body + (head if last else 0.0)


@dataclasses.dataclass(frozen=True)
class Link:
    """The way from one domain to another."""

    source: str
    target: str
    gbps: float  # [Gbit/s]
    one_way_s: float  # [s] half of the round trip


@dataclasses.dataclass(frozen=True)
class Site:
    """A domain's part of a pipeline. Nodes run `per_node` processes each; `first_node` counts from the
    pipeline's first."""

    name: str
    nodes: int
    per_node: int
    first_node: int
    stages: tuple[int, ...]  # layers of each stage
    passes: Passes


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """One group of the plan. Ranks run over stages first, then replicas, then parts of sequences, then
    slices of tensors: a domain's ranks are neighbours."""

    sites: tuple[Site, ...]
    tp: int
    cp: int
    dp: int
    micro_batch: int  # [sequences]
    micro_batches: int  # of one replica and step
    recompute: str
    schedule: str
    zero: int
    reshard: int  # index into RESHARD, or as the job says

    @property
    def stages(self) -> tuple[int, ...]:
        """Layers of each stage."""
        return tuple(layers for site in self.sites for layers in site.stages)

    @property
    def pp(self) -> int:
        return len(self.stages)

    @property
    def gpus(self) -> int:
        return self.tp * self.cp * self.dp * self.pp

    @property
    def nodes(self) -> int:
        return sum(site.nodes for site in self.sites)

    @property
    def sequences(self) -> int:
        """Of one step."""
        return self.dp * self.micro_batch * self.micro_batches

    @property
    def settings(self) -> tuple:
        """Equal for pipelines that one job can run side by side."""
        kind = (self.micro_batch, self.micro_batches, self.recompute, self.schedule, self.zero)
        return (self.stages, self.tp, self.cp, self.dp, *kind)


@dataclasses.dataclass(frozen=True)
class Job:
    """What is to be launched."""

    name: str
    model_name: str
    model: ModelConfig
    global_batch: int
    seq: int
    steps: int | None  # of the tokens asked for
    pipelines: tuple[Pipeline, ...]
    sync_period: int
    wire_bits: int
    activation_bits: int
    fragments: int
    overlap: int
    cluster: str
    links: tuple[Link, ...]  # between all domains of the cluster, by source
    virtual_stages: int  # by which the prediction divides what pipelines take to fill
    stack: str  # of the prediction
    predicted: Mapping[str, Any]  # of the answer: step_s, effective_tokens_per_s, ...

    @property
    def alike(self) -> bool:
        """All groups have the same settings and shares."""
        return len({pipeline.settings for pipeline in self.pipelines}) == 1

    @property
    def crosses(self) -> bool:
        """A pipeline spans domains."""
        return any(len(pipeline.sites) > 1 for pipeline in self.pipelines)


def job_of(
    plan: Plan,
    spec: ClusterSpec,
    job: JobSpec,
    model_name: str,
    predicted: Mapping[str, Any],
    passes: Sequence[Passes],
) -> Job:
    """The launches of one job's plan with NumPy leaves; `passes` are those of every domain.

    Raises InputError, one line, for what no framework runs: domains of one pipeline that split tensors,
    sequences or optimizer state differently, and shards over several groups.
    """
    if int(plan.shard_groups) > 1:
        raise InputError(
            f"export: this plan shards over {int(plan.shard_groups)} groups, and no format has that"
        )
    group, position = np.asarray(plan.group), np.asarray(plan.position)
    pipelines = []
    for g in range(int(group.max()) + 1):
        members = np.flatnonzero(group == g)
        pipelines.append(
            _pipeline(plan, spec, passes, members[np.argsort(position[members])].tolist())
        )
    ways = ("sync_period", "wire_bits", "activation_bits", "fragments", "overlap")
    return Job(
        name=f"{model_name.rpartition('/')[2].removesuffix('.json')}-{spec.name}",
        model_name=model_name,
        model=job.model,
        global_batch=job.global_batch,
        seq=job.seq,
        steps=int(np.ceil(job.step_budget)) if np.isfinite(job.step_budget) else None,
        pipelines=tuple(pipelines),
        cluster=spec.name,
        links=links_of(spec),
        virtual_stages=job.virtual_stages,
        stack=spec.stack,
        predicted=predicted,
        **{name: int(getattr(plan, name)) for name in ways},
    )


def links_of(spec: ClusterSpec) -> tuple[Link, ...]:
    """Every way between two domains, as the cluster file says."""
    names, rate, rtt_ms = spec.domains, spec.bandwidth_gbps, spec.rtt_ms
    return tuple(
        Link(names[i], names[j], float(rate[i][j]), 0.5e-3 * float(rtt_ms[i][j]))
        for i, j in itertools.permutations(range(spec.n_domains), 2)
    )


def _pipeline(
    plan: Plan, spec: ClusterSpec, passes: Sequence[Passes], members: Sequence[int]
) -> Pipeline:
    g, k = int(plan.group[members[0]]), members[0]
    for name in ("tp", "cp", "zero_stage"):
        if len(found := {int(getattr(plan, name)[i]) for i in members}) > 1:
            told = " and ".join(map(str, sorted(found)))
            raise InputError(
                f"export: the domains of one pipeline have {name} {told}, and no format has that"
            )
    tp, cp, dp, first_node, sites = int(plan.tp[k]), int(plan.cp[k]), int(plan.dp[g]), 0, []
    for k in members:
        stages, layers = int(plan.pp[k]), int(plan.layers[k])
        each, extra = divmod(layers, stages)
        held = (each,) * (stages - extra) + (each + 1,) * extra
        gpus = stages * tp * cp * dp
        per_node = _per_node(gpus, tp, spec.gpus_per_node[k])
        nodes = gpus // per_node
        if nodes > (there := math.ceil(spec.gpus[k] / spec.gpus_per_node[k])):
            raise InputError(
                f"export: {gpus} processes in {spec.domains[k]} are {nodes} nodes of {per_node}, and "
                f"it has {there} of {spec.gpus_per_node[k]}: they do not fill its nodes evenly"
            )
        sites.append(Site(spec.domains[k], nodes, per_node, first_node, held, passes[k]))
        first_node += nodes
    k = members[0]
    return Pipeline(
        sites=tuple(sites),
        tp=tp,
        cp=cp,
        dp=dp,
        micro_batch=int(plan.micro_batch[g]),
        micro_batches=int(plan.batch_share[g]),
        recompute=Recompute(int(plan.recompute[g])).word,
        schedule=Schedule(int(plan.schedule[g])).word,
        zero=int(plan.zero_stage[k]),
        reshard=int(plan.reshard[k]),
    )


def _per_node(gpus: int, tp: int, most: int) -> int:
    """The most processes of a node that divide the GPUs and hold whole tensor-parallel groups."""
    return max(n for n in range(1, min(most, gpus) + 1) if gpus % n == 0 and n % tp == 0)
