"""Cluster, job and links as a search of plans takes them."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np

from experiments.common import load_regions, parse_weights
from experiments.plan.config import PlanConfig
from experiments.plan.whatif import changed, parse_changes
from jaxsim.cluster import POOLED, STACKS, ClusterSpec
from jaxsim.learning import read_efficiency
from jaxsim.plan import Problem
from jaxsim.planning import Objective, PlanFamily, PlanSpace, base_view
from jaxsim.step_time import NetworkView
from jaxsim.workload import JobSpec, build_workload, load_model

SECONDS_PER_DAY = 86400.0
# Domains from which on groups of one domain alone are searched: of more, orders are too many.
MOST_PIPELINED = 16


@dataclasses.dataclass(frozen=True)
class Question:
    """One cluster, one job, one state of the links."""

    spec: ClusterSpec
    job: JobSpec
    problem: Problem  # no job axis
    view: NetworkView
    gone: frozenset[str]  # domains without GPUs

    @property
    def space(self) -> PlanSpace:
        """The plans that are searched."""
        return PlanSpace.of(self.problem, MOST_PIPELINED)

    @property
    def gpus(self) -> int:
        """GPUs of the cluster."""
        return int(np.asarray(self.problem.cluster.gpus).sum())

    def scaled(self, factor: np.ndarray | float) -> NetworkView:
        """The links with their bandwidths times `factor`, a number or [K, K]."""
        rate = np.asarray(self.view.bandwidth_gb_per_s) * np.asarray(factor, np.float32)
        return self.view.replace(bandwidth_gb_per_s=jnp.asarray(rate, jnp.float32))


def asked(config: PlanConfig, with_changes: bool = False) -> Question:
    """The question of a configuration, `with_changes` as its --what-if says.

    Raises InputError that names the file and the key.
    """
    spec, gone = load_regions(config.cluster), frozenset()
    new, without = changed(spec, parse_changes(config.what_if))  # unknown names are refused at once
    for gpu in new.gpu_types:
        new.fit_of(gpu)  # and types of which a calibration file of its own says nothing
    if with_changes:
        spec, gone = new, without
    fields = {} if spec.stack == POOLED else STACKS[spec.stack].job_fields
    model = load_model(config.model)
    job = JobSpec(model, config.global_batch, config.seq, **fields)
    if config.tokens is not None:
        job = dataclasses.replace(
            job, step_budget=config.tokens / (config.global_batch * config.seq)
        )
    cluster = spec.to_arrays()
    here = jnp.asarray([name not in gone for name in spec.domains])
    left_gb = cluster.gpu.memory_gb * (1.0 - config.reserve_pct / 100.0)
    cluster = cluster.replace(
        mask=cluster.mask & here,
        gpus=jnp.where(here, cluster.gpus, 0),
        gpu=cluster.gpu.replace(memory_gb=left_gb),
    )
    problem = Problem(
        build_workload([job]).job(0),
        cluster,
        spec.calibration,
        PlanFamily(cuts=("even",)).menu,
        read_efficiency(config.efficiency),
    )
    return Question(spec, job, problem, base_view(cluster), gone)


def objective_of(config: PlanConfig) -> Objective | None:
    """Weights and limits; None where speed alone counts."""
    deadline = np.inf if config.deadline is None else config.deadline * SECONDS_PER_DAY
    return Objective.of(parse_weights(config.weights), config.budget_usd_per_hour, deadline)
