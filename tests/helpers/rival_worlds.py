"""Clusters on which rivals are asked for plans, and what they propose: each asked once.

All have four domains (padded where there are fewer), so that one program scores for all; but for one
of six.
"""

import dataclasses
import functools

import jax
import numpy as np
from helpers.toy_world import MODEL, calibration, cluster_spec, cost_of

from agents.registry import names, plan_rules
from jaxsim.cluster.cluster import load_cluster
from jaxsim.cluster.fits import default_calibration
from jaxsim.plan.plan import default_lower_choices
from jaxsim.planning import candidates as proposals
from jaxsim.planning.builder import TableBuilder
from jaxsim.workload.workload import MODEL_PRESETS, JobSpec, build_workload

EVERYONE = plan_rules(names())
MENU = proposals._menu(
    default_lower_choices(), proposals._demanded(default_lower_choices(), EVERYONE)
)
K = 4
BIG = JobSpec(MODEL_PRESETS["llama-7b"], global_batch=512, seq=4096)
SMALL = JobSpec(MODEL, global_batch=48, seq=1024)


def random_spec():
    rng = np.random.default_rng(3)
    spec = dataclasses.replace(cluster_spec(3, gpus=8, gbps=20.0), gpus=(8, 4, 6))
    factor = np.exp(rng.normal(0, 0.8, (3, 3)))
    return dataclasses.replace(spec, bandwidth_gbps=spec.bandwidth_gbps * factor)


def fast_spec():
    """Links so fast and near that only the domains' own work counts; memory for all of it."""
    spec = cluster_spec(3, gpus=4, gbps=1e6, rtt_ms=1e-6)
    apart = ~np.eye(3, dtype=bool)
    return dataclasses.replace(spec, bandwidth_gbps=1e6 * apart, rtt_ms=1e-6 * apart)


def few_spec():
    """So few GPUs that every plan can be listed; links that differ, fast enough to be used."""
    spec = cluster_spec(3, gpus=2, gbps=40.0, rtt_ms=4.0)
    spec = dataclasses.replace(spec, gpus=(2, 1, 2))
    return dataclasses.replace(spec, bandwidth_gbps=spec.bandwidth_gbps * np.array([[1, 3, 1]] * 3))


SPECS = {
    "random": random_spec,
    "fast": fast_spec,
    "few": few_spec,
    "one": lambda: cluster_spec(1, gpus=8),
    # Beyond five domains orders are chains along the fastest links.
    "six": lambda: cluster_spec(6, gpus=4),
}


@functools.cache
def builder(which):
    if which == "embedded":
        work = build_workload([BIG]).job(0)
        return TableBuilder(load_cluster(), work, default_calibration("A100-80GB"), MENU, K)
    spec, work = SPECS[which](), build_workload([SMALL]).job(0)
    return TableBuilder(spec, work, calibration(), MENU, max(K, spec.n_domains))


@functools.cache
def proposed(which, name):
    rules = EVERYONE[name]
    return rules.propose(builder(which), rules.allowed(MENU))


def rates(which, name, plans):
    """[P] at base, over the choices that the rules allow."""
    return (builder(which).base_rates(plans) * EVERYONE[name].allowed(MENU)).max(axis=1)


def groups(plan):
    """Domains of each group in pipeline order."""
    n = int(plan.group.max()) + 1
    members = [np.flatnonzero(plan.group == g) for g in range(n)]
    return tuple(tuple(m[np.argsort(plan.position[m])].tolist()) for m in members)


complete_cost = jax.jit(jax.vmap(cost_of, in_axes=(0, None, None, None, None)))
