"""The plan of most worth under an `Objective`, and how much more another may be worth.

A plan is worth at most what its bound on speed is worth on the cheapest GPUs that its groups may hold,
where nothing is sent and all domains are busy alike. The bound on speed is the search's. A setting of a
block that is slower than another may cost less: here none is left out for that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from jaxsim.cluster import Cluster
from jaxsim.plan import Plan, Problem
from jaxsim.planning import LEAST_PROGRESS, PENALTY, Exchange, Objective, Pipelines, plan_worth
from jaxsim.planning.exact.blocks import Blocks
from jaxsim.planning.exact.incumbent import Incumbent, finish, finish_each, longest_pipeline
from jaxsim.planning.exact.wide import MOST_SCORED, OPENED_TOGETHER, SpaceSearch
from jaxsim.step_time import NetworkView, StepCost
from jaxsim.trees import take

NOTHING = -np.inf  # the worth of what cannot run


@dataclasses.dataclass(frozen=True)
class WorthResult:
    """The plan of most worth found, and what the claim rests on."""

    plan: Plan  # complete, one job
    cost: StepCost
    worth: float  # [reward / s]; -inf where nothing can run
    bound: float  # [reward / s] that no plan of the space exceeds
    plans_scored: int
    exhaustive: bool  # as of `SpaceResult`


@dataclasses.dataclass(frozen=True)
class Asked:
    """An objective, and the units of its reward, as `plan_worth` takes them."""

    objective: Objective
    progress_ref: float  # [training steps] an interval's progress is measured in
    interval_s: float = 60.0

    def worths(
        self, cost: StepCost, problem: Problem, view: NetworkView
    ) -> Float[np.ndarray, " P"]:
        """[P] reward per second of plans with these costs [P, ...]; NOTHING for one that cannot run."""
        ref, interval_s = jnp.float32(self.progress_ref), jnp.float32(self.interval_s)
        worth = _worths(cost, problem, view, self.objective, ref, interval_s)
        return np.where(np.asarray(cost.runs), np.asarray(worth), NOTHING)


@dataclasses.dataclass(frozen=True)
class WorthBound:
    """Worth against speed, at best: a rising line, less what is lost beyond the limits."""

    slope: float  # [reward / training step]
    penalty: float  # [reward / s] of twice the budget, or of standing still before a deadline
    budget: float  # [USD / h]
    needed: float  # [training steps / s] that keep the deadline; 0 = none

    @staticmethod
    def of(asked: Asked, problem: Problem, view: NetworkView) -> WorthBound:
        """Of one job."""
        w, interval_s = np.asarray(asked.objective.weights, float), asked.interval_s
        peak = float(problem.cluster.peak_tflops(view.gpus_available))
        useful = float(problem.work.useful_tflop) / max(peak, 1e-9) / interval_s
        budget, deadline_s = asked.objective.budget_usd_per_hour, asked.objective.deadline_s
        steps = float(problem.work.step_budget)
        return WorthBound(
            slope=max(w[0], LEAST_PROGRESS) / asked.progress_ref + w[1] * useful,
            penalty=PENALTY / interval_s,
            budget=float(budget),
            needed=0.0 if np.isinf(steps) else steps / float(deadline_s),
        )

    def at_most(self, rate, usd_per_hour):
        """[reward / s] of a plan that trains `rate` [training steps / s] at most, on GPUs that cost
        `usd_per_hour` at least; arrays that broadcast. NOTHING where the rate is 0."""
        late = np.maximum(1.0 - rate / self.needed, 0.0) if self.needed > 0 else 0.0
        lost = self.penalty * (self._over(usd_per_hour) + late)
        return np.where(np.asarray(rate) > 0.0, self.slope * rate - lost, NOTHING)

    def rate_for(self, worth: float, usd_per_hour: float) -> float:
        """[training steps / s] up to which a plan on such GPUs is worth no more than `worth`."""
        missing = worth + self.penalty * self._over(usd_per_hour)
        if self.needed > 0:
            rate = (missing + self.penalty) / (self.slope + self.penalty / self.needed)
            if rate < self.needed:
                return max(float(rate), 0.0)
        return max(float(missing / self.slope), 0.0)

    def _over(self, usd_per_hour):
        return np.maximum(usd_per_hour / self.budget - 1.0, 0.0)


class MostWorth(Incumbent):
    """The plan of most worth so far. Bounds that are added are of rates, `rate` is what a plan has to
    exceed to be opened at all, and what waits is bounded by its worth."""

    def __init__(
        self, problem: Problem, pipelines: Pipelines, view: NetworkView, most: int, asked: Asked
    ):
        super().__init__(problem, pipelines, view, most)
        self.asked, self.of = asked, WorthBound.of(asked, problem, view)
        self.usd_per_hour = gpu_prices(pipelines, problem)
        self.worth, self.left = NOTHING, NOTHING

    def add(self, way: Exchange, bound: np.ndarray, rows: list[np.ndarray]) -> None:
        order, common, dp, _ = rows
        usd_per_hour = self.usd_per_hour[order, common, dp].sum(axis=1)
        super().add(way, self.of.at_most(bound, usd_per_hour), rows)

    @property
    def best(self) -> float:
        return self.worth

    def values(self, plans: Plan) -> Float[np.ndarray, " P"]:
        _, cost, rate = finish_each(plans, self.view, self.problem)
        return self.asked.worths(cost.replace(runs=rate > 0.0), self.problem, self.view)

    def keep(self, plan: Plan, value: float) -> None:
        self.plan, self.exchange, self.worth = plan, Exchange.of(plan), value


def most_worth(
    search: SpaceSearch,
    view: NetworkView,
    asked: Asked,
    ways: Sequence[Exchange] | None = None,
    known: Plan | None = None,
    most_scored: int = MOST_SCORED,
) -> WorthResult:
    """The plan of most worth under `view`, of those that talk in one of `ways` (all if None); `known`
    plans [P, ...] with open shares are to be beaten, and may lie outside of the space."""
    ways = search.space.exchanges() if ways is None else list(ways)
    state = MostWorth(search.problem, search.pipelines, view, most_scored, asked)
    if known is not None:
        value = state.values(known)
        state.keep(take(known, int(value.argmax())), float(value.max()))
    _, fastest, (parts, exhaustive, _), rings, rate = search.bounded(view, ways)
    if not fastest.any():
        return _result(state, state.worth, True)
    blocks = {bits: _whole(search, view, bits) for bits in {way.activation_bits for way in ways}}
    least_usd = _least_prices(search, state.usd_per_hour, parts)
    bound = state.of.at_most(rate, least_usd[None])
    pairs = np.stack(np.unravel_index(np.argsort(-bound, axis=None, kind="stable"), bound.shape))
    left = NOTHING if exhaustive else float(state.of.at_most(search._relaxed(ways, fastest), 0.0))
    for start in range(0, pairs.shape[1], OPENED_TOGETHER):
        some = pairs[:, start : start + OPENED_TOGETHER]
        top = bound[tuple(some[:, 0])]
        if top <= state.worth:
            break
        if state.scored >= most_scored:
            left = max(left, float(top))
            break
        for w, p in some.T:
            if bound[w, p] > state.worth:
                one = [int(b) for b in parts[p] if b >= 0]
                state.rate = state.of.rate_for(state.worth, float(least_usd[p]))
                args = (rings[0][int(ways[w].sync_period > 1), p], rings[1][p], view, state)
                beyond = search._open(ways[w], one, blocks, *args)
                left = max(left, float(state.of.at_most(beyond, least_usd[p])))
        state.flush()
    return _result(state, max(left, state.left, state.worth), exhaustive)


def usd_per_hour(cost: StepCost, gpus: Int[np.ndarray | Array, " K"], cluster: Cluster) -> float:
    """[USD / h] of GPUs [K] that are paid for, and of the egress of a plan that trains at `cost`."""
    paid = float(np.sum(np.asarray(gpus) * np.asarray(cluster.usd_per_gpu_hour)))
    return paid + 3600.0 * float(cost.egress_usd) / float(cost.step_s)


def gpu_prices(pipelines: Pipelines, problem: Problem) -> Float[np.ndarray, "N C D"]:
    """[N, C, D] [USD / h] of the GPUs that a group holds in each of its settings."""
    price = np.append(np.asarray(problem.cluster.usd_per_gpu_hour, float), 0.0)[pipelines.members]
    ranks = np.array([one.tp * one.cp for one in pipelines.common])
    stages = (pipelines.stages * price[:, None, None, :]).sum(axis=-1)
    return stages * ranks[None, :, None] * pipelines.dp[None, None, :]


def _least_prices(search: SpaceSearch, usd_per_hour: np.ndarray, parts: np.ndarray) -> np.ndarray:
    """[n] [USD / h] of the GPUs that the blocks of each partition hold at least."""
    each = np.where(search.pipelines.exists, usd_per_hour, np.inf).min(axis=(1, 2))
    least = [each[search.mask_of == mask].min() for mask in search.masks]
    return np.append(least, 0.0)[parts].sum(axis=1)


def _whole(search: SpaceSearch, view: NetworkView, bits: int) -> Blocks:
    """Blocks with all of their settings that can run."""
    table = search.prepare(view.gpus_available, bits)
    return search._blocks(table, view, kept=lambda settings: settings)


def _result(state: MostWorth, bound: float, exhaustive: bool) -> WorthResult:
    plan, cost = jax.device_get(finish(state.plan, state.view, state.problem))
    listed = longest_pipeline(plan) <= state.pipelines.members.shape[1]
    return WorthResult(plan, cost, state.worth, bound, state.scored, exhaustive and listed)


@jax.jit
def _worths(cost, problem, view, objective, progress_ref, interval_s) -> Array:
    def one(cost):
        worth = plan_worth(cost, problem, view, objective, progress_ref, interval_s)
        return worth.trained + worth.held

    return jax.vmap(one)(cost)
