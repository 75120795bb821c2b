"""Plans of a search that wait to be scored, and the best so far."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from jaxsim.plan import Plan, Problem, empty_plan
from jaxsim.planning import Exchange, Pipelines, share_batch
from jaxsim.planning.exact.climb import Climbed
from jaxsim.short_axes import ShortAxes
from jaxsim.step_time import NetworkView, StepCost, job_step_cost
from jaxsim.trees import take

BLOCK = 256  # plans that one compiled call scores
PROBED = 24  # plans of a kind that are tried of a partition before any is searched


@dataclasses.dataclass(frozen=True)
class SpaceResult:
    """The best plan found, and what the claim rests on."""

    plan: Plan  # complete, one job
    exchange: Exchange
    cost: StepCost
    rate: float  # [training steps / s], efficiency included; 0 where nothing can run
    bound: float  # [training steps / s] that no plan of the space exceeds
    plans_scored: int
    partitions: int
    # Every partition was bounded, the plan's too; else a beam, or a longer pipeline.
    exhaustive: bool

    @property
    def gap_pct(self) -> float:
        """How much faster than the plan found another might be."""
        if self.rate <= 0.0:
            return 0.0 if self.bound <= 0.0 else float("inf")
        return 100.0 * max(self.bound / self.rate - 1.0, 0.0)


class Incumbent:
    """The best plan so far, and plans that wait to be scored."""

    def __init__(self, problem: Problem, pipelines: Pipelines, view: NetworkView, most: int):
        self.problem, self.pipelines, self.view, self.most = problem, pipelines, view, most
        self.rate, self.scored, self.left = 0.0, 0, 0.0
        self.tried = 0  # plans of climbs
        n_domains = problem.cluster.mask.shape[0]
        self.plan, self.exchange = empty_plan(n_domains), Exchange()
        self.waiting: list[tuple[Exchange, np.ndarray, list[np.ndarray]]] = []

    def add(self, way: Exchange, bound: np.ndarray, rows: list[np.ndarray]) -> None:
        self.waiting.append((way, bound, rows))

    def probe(self) -> None:
        """Score a few plans of everything that waits, and forget the rest: those whose groups are all
        alike, good more often than not, and the most promising."""
        for n, (way, bound, rows) in enumerate(self.waiting):
            order = np.argsort(-bound, kind="stable")
            same = order[_alike(rows)[order]][:PROBED]
            some = np.unique(np.concatenate([same, order[:PROBED]]))
            self.waiting[n] = (way, bound[some], [r[some] for r in rows])
        self.flush()
        self.left = 0.0  # all of it is opened again

    def flush(self) -> None:
        """Score what waits and may beat the best, the most promising first, until enough is scored;
        `left` is the largest bound of what is not."""
        waiting, self.waiting = self.waiting, []
        if not waiting:
            return
        bound = np.concatenate([b for _, b, _ in waiting])
        owner = np.repeat(np.arange(len(waiting)), [len(b) for _, b, _ in waiting])
        place = np.concatenate([np.arange(len(b)) for _, b, _ in waiting])
        order = np.argsort(-bound, kind="stable")
        for start in range(0, len(order), BLOCK):
            some = order[start : start + BLOCK]
            some = some[bound[some] > self.best]
            if not len(some):
                continue
            if self.scored >= self.most:
                self.left = max(self.left, float(bound[order[start:]].max()))
                return
            plans = []
            for o in np.unique(owner[some]):
                way, _, rows = waiting[o]
                mine = place[some[owner[some] == o]]
                plans.append(self._plans(way, [r[mine] for r in rows]))
            every = jax.tree.map(lambda *x: np.concatenate(x), *plans)
            filled = take(every, np.minimum(np.arange(BLOCK), len(some) - 1))
            value = self.values(filled)[: len(some)]
            self.scored += len(some)
            top = int(value.argmax())
            if value[top] > self.best:
                self.keep(take(filled, top), float(value[top]))

    @property
    def best(self) -> float:
        """What a plan has to beat, in the unit of the bounds that wait."""
        return self.rate

    def values(self, plans: Plan) -> Float[np.ndarray, " P"]:
        """[P] of plans [P, ...] with open shares, in that unit."""
        return np.asarray(rates(plans, self.view, self.problem))

    def keep(self, plan: Plan, value: float) -> None:
        """The best from now on."""
        self.plan, self.exchange, self.rate = plan, Exchange.of(plan), value

    def take(self, top: Climbed) -> None:
        """Begin from what a climb came to."""
        self.plan, self.exchange, self.rate = top.plan, top.way, top.rate
        self.tried = top.tried

    def _plans(self, way: Exchange, rows: list[np.ndarray]) -> Plan:
        """[n, ...] plans with all but their shares."""
        order, common, dp, choice = rows
        n_domains = self.problem.cluster.mask.shape[0]
        plans = self.pipelines.mixed_plans(order, common, dp, n_domains)
        choices = self.problem.choices
        columns = (choices.micro_batch, choices.recompute, choices.schedule)
        menu = np.stack([np.asarray(x) for x in columns], axis=1)
        fields = {}
        for i, name in enumerate(("micro_batch", "recompute", "schedule")):
            values = np.array(getattr(plans, name))
            values[:, : order.shape[1]] = menu[choice, i]
            fields[name] = values
        for name, value in way.fields().items():
            fields[name] = np.full_like(getattr(plans, name), value)
        return plans.replace(**fields)

    def result(self, left: float, n_partitions: int, exhaustive: bool) -> SpaceResult:
        plan, cost = finish(self.plan, self.view, self.problem)
        return SpaceResult(
            plan=jax.device_get(plan),
            exchange=self.exchange,
            cost=jax.device_get(cost),
            rate=self.rate,
            bound=left,
            plans_scored=self.scored + self.tried,
            partitions=n_partitions,
            exhaustive=exhaustive and longest_pipeline(plan) <= self.pipelines.members.shape[1],
        )


def longest_pipeline(plan: Plan) -> int:
    """Domains of the longest pipeline of a plan; what is longer than all that was listed is beyond
    every bound."""
    return 1 + int(np.max(np.asarray(plan.position)))


def _alike(rows: list[np.ndarray]) -> np.ndarray:
    """[n] bool: all groups have the same settings and length."""
    _, *settings = rows
    return np.all([np.all(x == x[:, :1], axis=1) for x in settings], axis=0)


def scored(plan: Plan, view: NetworkView, problem: Problem):
    done, legal = share_batch(plan, problem, view)
    cost = job_step_cost(done, problem, view, schedules=problem.choices.schedules)
    return done, cost, jnp.where(legal & cost.runs, cost.efficiency / cost.step_s, 0.0)


@ShortAxes
def _block(plans: Plan, view: NetworkView, problem: Problem) -> tuple[Plan, StepCost, Array]:
    return jax.vmap(lambda plan: scored(plan, view, problem))(plans)


def rates(plans: Plan, view: NetworkView, problem: Problem) -> Array:
    """[P] training steps per second, 0 where a plan is illegal."""
    return _block(plans, view, problem)[2]


def _by_block(plans: Plan) -> Iterator[tuple[Plan, slice]]:
    """Plans [P, ...] by BLOCK, the last block filled up, and which of each block count."""
    size = plans.group.shape[0]
    for start in range(0, size, BLOCK):
        rows = np.minimum(np.arange(start, start + BLOCK), size - 1)
        yield take(plans, rows), slice(0, size - start)


def rates_of(plans: Plan, view: NetworkView, problem: Problem) -> Float[np.ndarray, " P"]:
    """`rates` of any number of plans with NumPy leaves, by the program of `finish_each`; what they cost
    stays where it is."""
    # All blocks are begun before any is read.
    found = [(rates(x, view, problem), some) for x, some in _by_block(plans)]
    return np.concatenate([np.asarray(rate)[some] for rate, some in found])


def finish_each(
    plans: Plan, view: NetworkView, problem: Problem
) -> tuple[Plan, StepCost, Float[np.ndarray, " P"]]:
    """Plans [P, ...] with NumPy leaves and open shares: the same with their shares, their costs, and
    [P] training steps per second, efficiency included, 0 where a plan cannot run. One program serves
    any number."""
    blocks = _by_block(plans)
    out = [take(jax.device_get(_block(x, view, problem)), some) for x, some in blocks]
    return jax.tree.map(lambda *x: np.concatenate(x), *out)


def finish(plan: Plan, view: NetworkView, problem: Problem) -> tuple[Plan, StepCost]:
    """The plan with its shares, and its cost, by the program that scores a block of plans: one of its
    own would take seconds to compile."""
    copies = jax.tree.map(lambda x: np.repeat(np.asarray(x)[None], BLOCK, axis=0), plan)
    return take(_block(copies, view, problem)[:2], 0)
