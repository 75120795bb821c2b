"""What it is worth to stay in a plan while links move and local jobs take and return GPUs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from agents.protocol import Setup, best_choices, outlook_rates, score_prior, score_rows
from jaxsim.env import resize
from jaxsim.plan import Plan
from jaxsim.planning import NEVER, Worth
from jaxsim.step_time import LayerSpan, NetworkView, replicas_running


def expected_rates(
    setup: Setup, candidates: Bool[Array, "P V"] | None = None
) -> Float[Array, " P"]:
    """[P] what every row brings per second in the mean over the setup's outlook, if it stays in force
    and the best of its `candidates` is chosen in every interval; under the prior where no outlook is
    known."""
    views = setup.outlook
    if views is None:
        return score_prior(setup, candidates).rate
    nothing = 0.0 if setup.objective is None else NEVER
    best = best_choices(outlook_rates(setup), candidates, nothing)
    worth = None
    if setup.objective is not None:
        worth = score_rows(setup, setup.table.plans, best.choice, views)[1]
    staying = staying_rates(setup, setup.table.plans, views, best.rate, worth)
    return jnp.mean(best.rate if staying is None else staying, axis=0)


def reference_rates(
    setup: Setup, candidates: Bool[Array, "P V"] | None = None
) -> Float[Array, " P"]:
    """[P] what rows bring per second where nothing is measured: under the prior, and in the mean over
    the outlook where local jobs take GPUs, of which the prior has none."""
    if setup.gpus_vary:
        return expected_rates(setup, candidates)
    return score_prior(setup, candidates).rate


def staying_rates(
    setup: Setup,
    plans: Plan,
    views: NetworkView,
    rate: Float[Array, "T P"],
    worth: Worth | None = None,
) -> Float[Array, "T P"] | None:
    """[T, P] what plans [P, ...] bring per second of an interval if they were in force before: `rate`
    less the time in which domains are laid out anew because the GPUs that they find have changed.

    None where GPUs do not vary: the same as `rate`. Views [T, ...]; in the first nothing changes.
    Under an objective `worth` [T, P] has the parts of `rate`: only training is lost.
    """
    if not setup.gpus_vary:
        return None
    lost_s = jax.vmap(lambda plan: lost_by_resizing_s(setup, plan, views), out_axes=1)(plans)
    trained = rate if worth is None else worth.trained
    return rate - trained * lost_s / setup.interval_s


def lost_by_resizing_s(setup: Setup, plan: Plan, views: NetworkView) -> Float[Array, " T"]:
    """[T] [s] of training that one job loses in each interval of views [T, ...] in which its plan is in
    force throughout, see `jaxsim.env.resize`."""
    span, problem = LayerSpan.of(plan), setup.problem
    per_replica = plan.tp * plan.pp * plan.cp
    used = jax.vmap(lambda gpus: replicas_running(plan, gpus) * per_replica)(views.gpus_available)

    def body(carry, now):
        before, behind_gb = carry
        view_gb_per_s, gpus = now
        rate = view_gb_per_s * problem.calibration.wan_efficiency
        found = resize(span, problem, before, gpus, rate, setup.interval_s, behind_gb)
        return (gpus, found.behind_gb), found.lost_s

    nothing = jnp.zeros(views.bandwidth_gb_per_s.shape[1:], jnp.float32)
    return jax.lax.scan(body, (used[0], nothing), (views.bandwidth_gb_per_s, used))[1]
