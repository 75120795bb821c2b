"""What it is worth to stay in a plan while links move and local jobs take and return GPUs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from agents.protocol import (
    Estimate,
    Setup,
    best_choices,
    nothing,
    outlook_rates,
    score_prior,
    score_rows,
    table_rates,
)
from jaxsim.env import Samples, resize
from jaxsim.plan import Plan
from jaxsim.planning import Worth
from jaxsim.pytree import Pytree
from jaxsim.step_time import LayerSpan, NetworkView, replicas_running

UNSEEN = -1  # GPUs of a plan before the first measurement


def expected_rates(
    setup: Setup, candidates: Bool[Array, "P V"] | None = None
) -> Float[Array, " P"]:
    """[P] what every row brings per second in the mean over the setup's outlook, if it stays in force
    and the best of its `candidates` is chosen in every interval (where free GPUs change, the one that
    was best in the interval before); under the prior where no outlook is known."""
    rate, lost = _expected(setup, candidates)
    return rate - lost


def expected_losses(
    setup: Setup, candidates: Bool[Array, "P V"] | None = None
) -> Float[Array, " P"]:
    """[P] what of that is lost per second because domains are laid out anew; 0 where GPUs do not vary
    or no outlook is known."""
    return _expected(setup, candidates)[1]


def _expected(setup: Setup, candidates: Bool[Array, "P V"] | None) -> tuple[Array, Array]:
    """[P] the mean rate over the outlook, and [P] what of it is lost to laying out anew."""
    samples = setup.outlook
    if samples is None:
        rate = score_prior(setup, candidates).rate
        return rate, jnp.zeros_like(rate)
    if not setup.gpus_vary:
        rate = best_choices(outlook_rates(setup), candidates, nothing(setup)).rate.mean(axis=0)
        return rate, jnp.zeros_like(rate)
    played = _as_played(setup, samples, candidates)
    trained = _trained(setup, played, samples.now, samples.before)
    lost_s = _lost_between(setup, setup.table.plans, samples)
    return played.rate.mean(axis=0), jnp.mean(trained * lost_s, axis=0) / setup.interval_s


def _as_played(
    setup: Setup, samples: Samples, candidates: Bool[Array, "P V"] | None = None
) -> Estimate:
    """[W, P] what every row brings in each sample with the lower choice that is best of its
    `candidates` [P, V] in the state before: who plays has measured nothing newer."""
    before = None if setup.scored is None else setup.scored.before
    if before is None:
        before = table_rates(setup, samples.before)
    choice = best_choices(before, candidates, nothing(setup)).choice
    rates = outlook_rates(setup)
    if candidates is not None:
        rates = jnp.where(candidates, rates, nothing(setup))
    rate = jnp.take_along_axis(rates, choice[..., None], axis=-1)[..., 0]
    return Estimate(rate, choice)


def _trained(
    setup: Setup, rows: Estimate, views: NetworkView, balanced: NetworkView | None = None
) -> Float[Array, "W P"]:
    """[W, P] what of the table's rates under views [W, ...] is of training: that alone can be lost."""
    if setup.objective is None:
        return rows.rate
    worth = score_rows(setup, setup.table.plans, rows.choice, views, balanced)[1]
    return rows.rate if worth is None else worth.trained


def _lost_between(setup: Setup, plans: Plan, samples: Samples) -> Float[Array, "W P"]:
    """[W, P] [s] that plans [P, ...] lose between each of the samples and the state before it."""

    def one(before, now):
        both = jax.tree.map(lambda x, y: jnp.stack([x, y]), before, now)
        return jax.vmap(lambda plan: lost_by_resizing_s(setup, plan, both)[1])(plans)

    return jax.vmap(one)(samples.before, samples.now)


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


def losses_along(
    setup: Setup, views: NetworkView, rate: Float[Array, "T P"], worth: Worth | None = None
) -> Float[Array, "T P"]:
    """[T, P] what `staying_rates` takes off the `rate` of the table's rows."""
    staying = staying_rates(setup, setup.table.plans, views, rate, worth)
    return jnp.zeros_like(rate) if staying is None else rate - staying


def lost_by_resizing_s(setup: Setup, plan: Plan, views: NetworkView) -> Float[Array, " T"]:
    """[T] [s] of training that one job loses in each interval of views [T, ...] in which its plan is in
    force throughout, see `jaxsim.env.resize`."""
    span = LayerSpan.of(plan)

    def body(before, view):
        lost_s, now = _laid_out(setup, plan, span, before, view)
        return now, lost_s

    return jax.lax.scan(body, Layouts.unseen(plan), views)[1]


class Layouts(Pytree):
    """How plans would have been laid out in the last interval, had they been in force."""

    gpus: Int[Array, "*batch K"]  # used, UNSEEN before the first measurement
    behind_gb: Float[Array, "*batch K K"]  # [GB] that groups lacked at its end

    @staticmethod
    def unseen(plans: Plan) -> Layouts:
        """Before anything was measured, of plans [..., K]."""
        shape = plans.group.shape
        behind = jnp.zeros((*shape, shape[-1]), jnp.float32)
        return Layouts(jnp.full(shape, UNSEEN, jnp.int32), behind)


def losses(
    setup: Setup, before: Layouts | None, now: Estimate, view: NetworkView
) -> tuple[Float[Array, " P"], Layouts | None]:
    """[P] what the table's rows lost per second of the measured interval because domains were laid out
    anew, each as if it had been in force in the one before as well, and how they are laid out:
    `losses_along` interval by interval.

    `before` is None where GPUs do not vary, and nothing is lost.
    """
    if before is None:
        return jnp.zeros_like(now.rate), None
    plans = setup.table.plans

    def one(plan, before):
        return _laid_out(setup, plan, LayerSpan.of(plan), before, view)

    lost_s, after = jax.vmap(one)(plans, before)
    trained = _trained(setup, *jax.tree.map(lambda x: x[None], (now, view)))[0]
    return trained * lost_s / setup.interval_s, after


def first_layouts(setup: Setup) -> Layouts | None:
    """Of the table's rows, before anything was measured; None where GPUs do not vary."""
    return Layouts.unseen(setup.table.plans) if setup.gpus_vary else None


def _laid_out(
    setup: Setup, plan: Plan, span: LayerSpan, before: Layouts, view: NetworkView
) -> tuple[Float[Array, ""], Layouts]:
    """[] [s] of training that one plan loses in an interval, and how it is laid out in it."""
    problem = setup.problem
    gpus = replicas_running(plan, view.gpus_available) * (plan.tp * plan.pp * plan.cp)
    then = jnp.where(before.gpus == UNSEEN, gpus, before.gpus)
    rate = view.bandwidth_gb_per_s * problem.calibration.wan_efficiency
    found = resize(span, problem, then, gpus, rate, setup.interval_s, before.behind_gb)
    behind_gb = before.behind_gb if found.behind_gb is None else found.behind_gb
    return found.lost_s, Layouts(gpus, behind_gb)
