"""Every plan of a plan space, written down anew, and clusters that are drawn."""

import dataclasses
import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
from helpers.toy_world import GPU, JOB, calibration, cluster_spec

from jaxsim.cluster import Site
from jaxsim.cluster.sites import site_calibration
from jaxsim.plan import empty_plan
from jaxsim.planning import partitions, share_batch
from jaxsim.step_time import job_step_cost
from jaxsim.trees import take


@functools.lru_cache(maxsize=8)
def every_plan(space, gpus, pace=None, able=None):
    """Every plan of the space, written down anew: (group settings of every order) x exchanges. `gpus`:
    of the domains, a node each; `pace`: of their layers, the same if None; `able`: settings of
    groups that belong to the space, all if None."""
    plans, n = [], len(gpus)
    for masks in partitions(n, space.max_pipeline):
        members = [[k for k in range(n) if mask >> k & 1] for mask in masks]
        options = [settings_of(tuple(group), space.groups, gpus) for group in members]
        if able is not None:
            options = [[one for one in some if one in able] for some in options]
        for ring, way in itertools.product(rings_of(len(members)), space.exchanges()):
            for picked in itertools.product(*options):
                plans.append(written([picked[g] for g in ring], way, n, pace))
    return _stacked(plans, n)


def able_alone(space, gpus, view, problem):
    """Settings of groups that can train the whole batch alone: those that belong to a space."""
    n, whole = len(gpus), space.exchanges()[0]
    groups = {
        tuple(k for k in range(n) if mask >> k & 1)
        for masks in partitions(n, space.max_pipeline)
        for mask in masks
    }
    every = [one for group in groups for one in settings_of(group, space.groups, gpus)]
    plans = _stacked([written([one], whole, n) for one in every], n)
    rates = rates_of(plans, view, problem)
    return frozenset(one for one, rate in zip(every, rates, strict=True) if rate > 0)


def _stacked(plans, n):
    return empty_plan(n).replace(**{name: np.stack([p[name] for p in plans]) for name in plans[0]})


def count_plans(space, gpus):
    """How many plans `every_plan` lists."""
    listed, n = 0, len(gpus)
    for masks in partitions(n, space.max_pipeline):
        members = [tuple(k for k in range(n) if mask >> k & 1) for mask in masks]
        options = [len(settings_of(group, space.groups, gpus)) for group in members]
        listed += math.prod(options) * len(rings_of(len(members)))
    return listed * len(space.exchanges())


def rings_of(n_groups):
    """Every order of groups around a ring."""
    return [(0, *rest) for rest in itertools.permutations(range(1, n_groups))]


@functools.cache
def settings_of(group, family, gpus):
    """[(order, dp, pp of each of the order, tp, cp, zero stage, choice)] of a group of domains."""
    settings = []
    for order in itertools.permutations(group):
        degrees = {
            (dp, tuple(gpus[k] // (part * dp * tp * cp) for k in order), tp, cp)
            for part in family.parts
            for tp in family.tensor_parallel
            for cp in family.context_parallel
            for dp in range(1, max(gpus) + 1)
            if JOB.global_batch % dp == 0
        }
        able = sorted(one for one in degrees if min(one[1]) >= 1)
        for one, zero, choice in itertools.product(able, family.zero_stages, family.choices):
            settings.append((order, *one, zero, choice))
    return settings


def written(groups, way, n, pace=None):
    """Fields of a plan: a setting of `settings_of` for each group, in the ring's order."""
    plan = {name: value.copy() for name, value in _fields(n).items()}
    for g, (order, dp, stages, tp, cp, zero, choice) in enumerate(groups):
        if pace is None:
            layers, stages = layers_of(stages)
        else:
            layers = fastest_layers(stages, [pace[k] for k in order])
        plan["dp"][g] = dp
        plan["micro_batch"][g], plan["recompute"][g], plan["schedule"][g] = choice
        for i, k in enumerate(order):
            plan["group"][k], plan["position"][k] = g, i
            plan["layers"][k] = layers[i]
            plan["pp"][k], plan["zero_stage"][k] = stages[i], zero
            plan["tp"][k], plan["cp"][k] = tp, cp
    plan |= {name: np.int32(value) for name, value in way.fields().items()}
    return plan


@functools.cache
def _fields(n):
    return {name: np.array(value) for name, value in vars(empty_plan(n)).items()}


@functools.cache
def layers_of(stages):
    """(layers, stages) of each domain: stages of equal length, what is left over to the last domains.
    No more stages than the model has layers."""
    assert sum(stages) <= 8
    each, extra = divmod(8, sum(stages))
    layers = [each * s for s in stages]
    for i in reversed(range(len(stages))):
        more = min(extra, stages[i])
        layers[i], extra = layers[i] + more, extra - more
    return layers, stages


@functools.cache
def cuts_of(stages):
    """All ways to give 8 layers to domains, one at least to every stage."""
    every = itertools.product(*(range(s, 9) for s in stages))
    return [cut for cut in every if sum(cut) == 8]


def fastest_layers(stages, paces):
    """The cut whose slowest stage is the fastest; of those the evenest."""

    def worth(cut):
        pairs = list(zip(cut, stages, strict=True))
        slowest = max(-(-n // s) * p for (n, s), p in zip(pairs, paces, strict=True))
        return slowest, sum(n * n / s for n, s in pairs)

    return min(cuts_of(tuple(stages)), key=worth)


def rates_of(plans, view, problem):
    """[P] effective steps per second of plans [P, ...]."""
    return costs_of(plans, view, problem)[1]


def costs_of(plans, view, problem, size=512):
    """Costs [P, ...] and effective steps per second [P] of plans, 0 for those that cannot run.

    `size` at a time: one shape is compiled."""
    count = plans.group.shape[0]
    blocks = []
    for start in range(0, count, size):
        rows = np.minimum(np.arange(start, start + size), count - 1)
        blocks.append(jax.device_get(_costs(take(plans, rows), view, problem)))
    return jax.tree.map(lambda *x: np.concatenate(x)[:count], *blocks)


@jax.jit
def _costs(plans, view, problem):
    def one(plan):
        done, legal = share_batch(plan, problem, view)
        cost = job_step_cost(done, problem, view)
        return cost, jnp.where(legal & cost.runs, cost.efficiency / cost.step_s, 0.0)

    return jax.lax.map(one, plans, batch_size=256)


def drawn_site(rng):
    """GPUs of a quarter to twice the toy's figures."""
    return Site({name: x * 2.0 ** rng.uniform(-2, 1) for name, x in GPU.items()})


def drawn_cluster(rng, n, mixed=False):
    """Domains of 1, 2 or 4 GPUs at any price, links of 30 Mbit/s to 30 Gbit/s, the two ways of a pair
    apart, and 1 to 300 ms; `mixed`: no two with the same GPUs."""
    apart = ~np.eye(n, dtype=bool)
    rtt_ms = 10.0 ** rng.uniform(0.0, 2.5, (n, n))
    spec = cluster_spec(n, gpus=2)
    gpus = tuple(int(g) for g in rng.choice([1, 2, 4], n))
    sites = tuple(drawn_site(rng) for _ in range(n)) if mixed else ()
    return dataclasses.replace(
        spec,
        sites=sites,
        gpus=gpus,
        gpus_per_node=gpus,
        usd_per_gpu_hour=tuple(rng.uniform(0.5, 4.0, n).tolist()),
        bandwidth_gbps=np.where(apart, 10.0 ** rng.uniform(-1.5, 1.5, (n, n)), 0.0),
        rtt_ms=np.where(apart, (rtt_ms + rtt_ms.T) / 2, 0.0),
        egress_usd_per_gb=np.where(apart, rng.uniform(0.0, 0.2, (n, n)), 0.0),
    )


def drawn_calibration(rng, n):
    """Of as many GPU types."""
    types = [
        calibration(gemm_efficiency=rng.uniform(0.3, 0.7), micro_batch_s=rng.uniform(1e-4, 1e-3))
        for _ in range(n)
    ]
    return site_calibration(types, range(n), types[0])
