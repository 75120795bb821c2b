"""How long every domain of a plan computes on a micro-batch."""

from __future__ import annotations

import functools

import jax
import numpy as np

from experiments.plan.export.layout import Passes
from jaxsim.plan import Plan, Problem, schedules_among
from jaxsim.step_time import HEAD_FORWARD_SHARE, NetworkView, PipelineInputs, prepare_step


def passes_of(plan: Plan, problem: Problem, view: NetworkView) -> tuple[Passes, ...]:
    """One for each domain: what the simulator's pipelines are timed from."""
    schedules = schedules_among(np.asarray(plan.schedule))
    inputs = jax.device_get(_inputs(plan, problem, view, schedules))
    stage_s, forward_s, head_s = inputs.stage_s, inputs.forward_s, inputs.head_s
    return tuple(
        Passes(
            forward_s=float(forward_s[k]),
            backward_s=float(stage_s[k] - forward_s[k]),
            head_forward_s=HEAD_FORWARD_SHARE * float(head_s[k]),
            head_backward_s=(1.0 - HEAD_FORWARD_SHARE) * float(head_s[k]),
            hop_s=float(inputs.hop_s[k]),
        )
        for k in range(len(stage_s))
    )


@functools.partial(jax.jit, static_argnames="schedules")
def _inputs(
    plan: Plan, problem: Problem, view: NetworkView, schedules: tuple[int, ...]
) -> PipelineInputs:
    return prepare_step(plan, problem, view, schedules=schedules).inputs
