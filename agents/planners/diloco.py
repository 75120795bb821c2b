"""DiLoCo and Streaming DiLoCo: every domain trains on its own and averages now and then.

Douillard et al. 2023 (arXiv 2311.08105): each domain is one worker with its own best plan inside;
every H steps, H in {50, 100, 500}, the outer gradients are averaged around a ring in 32 bits or 8,
blocking. Douillard et al. 2025 (arXiv 2501.18512, streaming): H = 30, the model in F fragments that
are sent one after the other in 4 bits, each behind the next tau training steps; here F = 8, tau = 1, as
in the plan space. Among the regions
(two at least where there are two), rings, H and bits the best at base; static: the simulator's
fastest row is deployed, and the simulator chooses micro-batch, recomputation and schedule anew in every
interval (`static.StaticPlan`).

What a step learns under H > 1 comes from published runs (`jaxsim.learning`), so these plans have a
table of their own and never enter that of synchronous training.

The outer optimizer's state, 8 bytes per parameter and domain, is in the hosts' memory and touched
once in H steps (OpenDiLoCo, Jaghouar et al. 2024, keeps its copy of the weights there); it is not
charged to the GPUs, whose memory is the only one that the simulator knows. Divided among the GPUs
of its domain it is 6.7 GB on each for 7B on the embedded cluster, which fits beside all of these
plans.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np

from agents.planners.stage_costs import domain_orders, fastest, tensor_sizes
from jaxsim.plan import Plan, Recompute, Schedule, split_layers
from jaxsim.planning import PlanRules, TableBuilder, make_plan

PERIODS, OUTER_BITS = (50, 100, 500), (32, 8)
STREAMING_PERIODS, STREAMING_BITS = (30,), (4,)

Inside = tuple[int, int]  # tp, dp of the plan inside a domain
Stream = tuple[int, int]  # F fragments, tau steps of overlap
BLOCKING: Stream = (1, 0)
STREAM: Stream = (8, 1)


def propose(
    builder: TableBuilder,
    allowed: np.ndarray,
    periods: tuple[int, ...],
    bits: tuple[int, ...],
    stream: Stream = BLOCKING,
) -> list[Plan]:
    """The best plan of every period at base, in whichever of the `bits`."""
    settings = inside_settings(builder, allowed)
    plans = []
    for period in periods:
        found = [plan for b in bits for plan in workers(builder, settings, period, b, stream)]
        plans += fastest(builder, found, allowed, 1)
    return plans


def inside_settings(builder: TableBuilder, allowed: np.ndarray) -> dict[int, list[Inside]]:
    """{domain: (tp, dp) of the plans that fit inside it alone, best first}."""
    layers, batch = int(builder.problem.work.layers), int(builder.problem.work.global_batch)
    owners, plans = [], []
    for k in range(builder.spec.n_domains):
        for tp in tensor_sizes(builder, [k]):
            for dp in (d for d in range(1, int(builder.gpus[k]) // tp + 1) if batch % d == 0):
                plan = make_plan(((k,),), (tp, (dp,)), builder.gpus, layers, builder.n_domains)
                if plan is not None:
                    owners.append((k, (tp, dp)))
                    plans.append(plan)
    rates = builder.base_rates(plans) * allowed
    order = np.argsort(-rates.max(axis=1), kind="stable")
    settings: dict[int, list[Inside]] = {}
    for i in (i for i in order if rates[i].max() > 0):
        settings.setdefault(owners[i][0], []).append(owners[i][1])
    return settings


def workers(
    builder: TableBuilder,
    settings: dict[int, list[Inside]],
    period: int,
    bits: int,
    stream: Stream = BLOCKING,
) -> Iterator[Plan]:
    """Rings of domains that each hold a replica, every one with its best plan whose dp divides the
    largest."""
    layers = int(builder.problem.work.layers)
    for order in domain_orders(builder, at_least=2):
        if not set(order) <= set(settings):
            continue
        for largest in sorted({dp for k in order for _, dp in settings[k]}):
            inside = [s for k in order for s in [t for t in settings[k] if largest % t[1] == 0][:1]]
            if len(inside) == len(order):
                splits = [
                    split_layers(layers, [int(builder.gpus[k]) // (tp * dp)])
                    for k, (tp, dp) in zip(order, inside, strict=True)
                ]
                tps = {k: tp for k, (tp, _) in zip(order, inside, strict=True)}
                dps = tuple(dp for _, dp in inside)
                layout = tuple((k,) for k in order)
                outer = {"sync_period": period, "wire_bits": bits}
                outer |= {"fragments": stream[0], "overlap": stream[1]}
                yield Plan.assemble(layout, tps, dps, splits, builder.n_domains, **outer)


def _rules(periods: tuple[int, ...], bits: tuple[int, ...], stream: Stream = BLOCKING) -> PlanRules:
    return PlanRules(
        functools.partial(propose, periods=periods, bits=bits, stream=stream),
        (Recompute.NONE, Recompute.FULL),
        (Schedule.ONE_F_ONE_B, Schedule.EAGER_1F1B),
    )


RULES = _rules(PERIODS, OUTER_BITS)
STREAMING_RULES = _rules(STREAMING_PERIODS, STREAMING_BITS, STREAM)
