"""The inputs of an evaluation, read before anything is built."""

from __future__ import annotations

from experiments.common import (
    check_job,
    load_regions,
    parse_weights,
    read_running,
    read_traces,
)
from experiments.evaluate import jobs as evaluate_jobs
from experiments.evaluate.config import EvaluateConfig
from experiments.evaluate.contestants import requested
from jaxsim.cluster import ClusterSpec
from jaxsim.learning import read_efficiency
from jaxsim.load import read_jobs
from jaxsim.plan import Plan
from jaxsim.planning import PlanSpace
from jaxsim.workload import load_model


def check_inputs(config: EvaluateConfig) -> None:
    """Read what an evaluation names, and build nothing: a suite is refused before its first scene.

    Raises InputError.
    """
    settings = config.world_settings
    read_efficiency(config.efficiency)
    PlanSpace(config.allow)
    settings.links()
    parse_weights(config.weights)
    if config.jobs is None:
        requested(config.schedulers, config.checkpoint)
        load_model(config.model)
    else:
        evaluate_jobs.requested_for_jobs(config.schedulers, config.checkpoint)
        evaluate_jobs.arriving(read_jobs(config.jobs), settings, config.jobs)
    spec = load_regions(config.cluster, config.domains)
    fixed_plan(config, spec)
    read_traces(config.trace, config.load, spec, settings.interval_s)


def fixed_plan(config: EvaluateConfig, spec: ClusterSpec) -> Plan | None:
    """The plan that plays as it is, NumPy leaves, no job axis; None where none is given. Raises
    InputError, for one of another cluster or job too."""
    if config.plan is None:
        return None
    plan = read_running(config.plan, spec, config.allow)
    check_job(plan, config.plan, load_model(config.model).layers, config.global_batch)
    return plan
