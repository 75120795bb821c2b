"""What bounds a plan: the largest part of its step, the link that a faster one would help most, the
slowest stage."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.plan.question import Question
from jaxsim.plan import Plan, Problem, schedules_among
from jaxsim.step_time import NetworkView, StepCost, job_step_cost, prepare_step

# Parts of a step, in the words of the screen.
PARTS = {
    "compute_s": "arithmetic of the slowest stage",
    "tensor_parallel_s": "tensor parallelism",
    "context_parallel_s": "context parallelism",
    "bubble_s": "pipeline bubble",
    "exposed_wan_s": "activations over the WAN",
    "sync_s": "gradient or outer sync",
    "optimizer_s": "optimizer",
}
FASTER = 1.1  # a link is tried with this factor
LEAST_GAIN = 1e-3  # of the step, below which a link bounds nothing


def bound_by(plan: Plan, cost: StepCost, question: Question) -> dict[str, Any]:
    """Parts of the step as shares of it; the largest; the link by which the step would shorten most if
    it were a tenth faster, or None; the domain with the slowest stage."""
    step_s = float(cost.step_s)
    shares = {name: float(getattr(cost, name)) / step_s for name in PARTS}
    largest = max(shares, key=lambda name: shares[name])
    names = question.spec.domains
    links = np.argwhere(np.asarray(cost.wan_gb) > 1e-9)
    gain, stage_s = link_gains(plan, question)
    link = None
    if len(links):
        i, j = max(links.tolist(), key=lambda at: gain[at[0], at[1]])
        if gain[i, j] > LEAST_GAIN:
            link = {"src": names[i], "dst": names[j], "step_shorter_pct": 100.0 * float(gain[i, j])}
    used = np.asarray(plan.group) >= 0
    slowest = int(np.argmax(np.where(used, stage_s, -np.inf)))
    stage = {"domain": names[slowest], "stage_s": float(stage_s[slowest])}
    return {
        "part": largest.removesuffix("_s"),
        "share": shares[largest],
        "shares": {name.removesuffix("_s"): share for name, share in shares.items()},
        "link": link,
        "stage": stage,
    }


def link_gains(plan: Plan, question: Question) -> tuple[np.ndarray, np.ndarray]:
    """[K, K] by which share a step is shorter where one link alone is FASTER; [K] [s] of a stage for
    one micro-batch, there and back."""
    schedules = schedules_among(np.asarray(plan.schedule))
    found = _gains(plan, question.view, question.problem, schedules)
    return np.asarray(found[0]), np.asarray(found[1])


@functools.partial(jax.jit, static_argnames="schedules")
def _gains(
    plan: Plan, view: NetworkView, problem: Problem, schedules: tuple[int, ...]
) -> tuple[jax.Array, jax.Array]:
    k = view.rtt_s.shape[-1]

    def step_s(at):
        hot = jnp.arange(k * k).reshape(k, k) == at
        rate = jnp.where(hot, FASTER * view.bandwidth_gb_per_s, view.bandwidth_gb_per_s)
        changed = view.replace(bandwidth_gb_per_s=rate)
        return job_step_cost(plan, problem, changed, schedules=schedules).step_s

    inputs = prepare_step(plan, problem, view, schedules=schedules).inputs
    head_s = jnp.where(inputs.topo.last, inputs.head_s, 0.0)
    every_s = jax.vmap(step_s)(jnp.arange(-1, k * k))  # -1: all as they are
    gain = (1.0 - every_s[1:] / every_s[0]).reshape(k, k)
    return gain, inputs.stage_s + head_s
