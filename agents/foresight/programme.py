"""The dynamic programme over (time x plan table): how much can still be had from each row.

Over one known future its optimum is exact over sequences of table rows that finish each move before
the next begins (clairvoyant's). Over several futures it is the best policy that depends on the time
and the row alone: a decision is taken on the mean over futures, so that it cannot wait for what only
some of them hold. The environment also lets a move be given up when its target loses a domain; where
local jobs take whole domains in the midst of moves, a schedule that uses this could do better.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from agents.protocol import Setup
from jaxsim.plan import Plan, Problem, needs_reconfiguration
from jaxsim.planning import NEVER, Transfers, Worth
from jaxsim.pytree import Pytree
from jaxsim.step_time import begin_transition


class MigrationTable(Pytree):
    """Reconfigurations between all rows of a table."""

    restart_s: Float[Array, "*batch P P"]  # [s], 0 where nothing stops the job
    bytes_gb: Float[Array, "*batch P P K K"]  # [GB]
    fabric_s: Float[Array, "*batch P P"]  # [s] inside domains, beside the transfers
    goes_on: Float[Array, "*batch P P"]  # share of the batch that trains meanwhile
    transfers: Transfers | None = None  # the bytes told apart, where that is known

    @property
    def sends(self) -> Transfers:
        """The amounts that moves send."""
        return Transfers.of(self.bytes_gb) if self.transfers is None else self.transfers


FIELDS = ("restart_s", "bytes_gb", "fabric_s", "goes_on")


def migration_table(
    plans: Plan, problem: Problem, transfers: Transfers | None = None
) -> MigrationTable:
    """What each reconfiguration between plans [P, ...] costs, before any network is known; `transfers`
    where they are known already."""

    def one(old, new):
        return begin_transition(old, new, problem)

    every = jax.vmap(jax.vmap(one, (None, 0)), (0, None))(plans, plans)
    # Rows that differ in nothing that stops a job, such as the bits they send, are no move apart.
    apart = jax.vmap(jax.vmap(needs_reconfiguration, (None, 0)), (0, None))(plans, plans)

    def of_moves(x):
        return jnp.where(apart.reshape(apart.shape + (1,) * (x.ndim - 2)), x, 0.0)

    known = {name: of_moves(getattr(every, name)) for name in FIELDS}
    return MigrationTable(**known, transfers=transfers)


def distinct_transfers(plans: Plan, problem: Problem) -> Transfers:
    """What moves between plans [P, ...] send, told apart: that takes the host a moment and spares every
    programme over them most of its work."""
    return Transfers.distinct(np.asarray(_bytes_of_moves(plans, problem)))


@jax.jit
def _bytes_of_moves(plans: Plan, problem: Problem) -> Array:
    return migration_table(plans, problem).bytes_gb


class Course(Pytree):
    """What a future holds for moves and for rows."""

    rate: Float[Array, "*batch T P"]  # [training steps / s], or [reward / s]
    worth: Worth | None  # [T, P]
    speed: Float[Array, "*batch T E"]  # [GB/s] of the links
    done_gb: Float[Array, "*batch _ E"]  # [T + 1, E] what a link carries until each interval begins


def make_course(
    rate: Float[Array, "*batch T P"],
    bandwidth_gb_per_s: Float[Array, "*batch T K K"],
    setup: Setup,
    worth: Worth | None = None,
) -> Course:
    """From what rows bring and links carry in each interval."""
    speed = bandwidth_gb_per_s * setup.problem.calibration.wan_efficiency
    speed = speed.reshape(*speed.shape[:-2], -1)
    done_gb = jnp.cumsum(speed * setup.interval_s, axis=-2)
    nothing = jnp.zeros_like(speed[..., :1, :])
    return Course(rate, worth, speed, jnp.concatenate([nothing, done_gb], axis=-2))


class Solved(NamedTuple):
    """What the programme finds for every row and interval, see `values_of_rows`."""

    value: Float[Array, "_ P"]  # [T + 1, P] training steps (or reward) still to be had
    best: Int[Array, "T P"]  # the best row to be in or to move to
    options: Float[
        Array, "T P P"
    ]  # to be had by staying, or by moving to each row, and the best then


def values_of_rows(
    rate: Float[Array, "W T P"],
    bandwidth_gb_per_s: Float[Array, "W T K K"],
    moves: MigrationTable,
    mask: Bool[Array, " P"],
    setup: Setup,
    worth: Worth | None = None,
    staying: Float[Array, "W T P"] | None = None,
) -> Solved:
    """Training steps (or reward) still to be had from the start of each interval in each row, in the
    mean over W futures of T intervals, and the best row to be in or move to.

    From row p at the start of interval t one either stays, rate[t, p] x interval steps richer, or
    moves to q: a restart, then each link carries its bytes through the intervals as they come; the
    job trains at rate[a, q] for what is left of the interval a of arrival, and decides again at
    a + 1. Links work in parallel, the slowest decides: `_links_done`. Where a part of the batch goes on
    meanwhile, it does so as p brings it, and in the interval of arrival as q does. `staying` [W, T, P]
    is what rows bring that were in force in the interval before, None = `rate`. Rows outside `mask` are
    never moved to. Under an objective `worth` [W, T, P] has the parts of `rate`: what a row brings
    while it is in force without training, and what a move's traffic costs (exact while the price of
    the GPUs in force stays the same during the move).
    """
    interval = setup.interval_s
    _, length, n_rows = rate.shape
    courses = make_course(rate, bandwidth_gb_per_s, setup, worth)
    never = 0.0 if worth is None else NEVER

    def moved(course, links, sent_s, values, t):
        """[P, P] what one future gives for each move begun at t."""
        outcome = _outcomes(course, moves, t, setup, links, sent_s)
        column = jnp.broadcast_to(jnp.arange(n_rows)[None, :], outcome.landed.shape)
        later = jnp.where(outcome.inside, values[outcome.landed + 1, column], 0.0)
        return jnp.where(mask[None, :], outcome.gained + later, never)

    def backward(carry, t):
        values, latest = carry  # [T + 1, P]: filled from t + 1 on
        links = jax.vmap(lambda *x: _links_done(moves, t, setup, *x))(courses, latest)
        sent_s = moves.sends.slowest(jnp.moveaxis(links.done_s, 0, -1))
        found = courses, links, jnp.moveaxis(sent_s, -1, 0)
        move = _mean(jax.vmap(moved, (0, 0, 0, None, None))(*found, values, t))
        stay = _mean(rate[:, t] if staying is None else staying[:, t]) * interval + values[t + 1]
        options = jnp.where(jnp.eye(n_rows, dtype=bool), stay[None, :], move)
        # Ties go to staying: argmax alone would prefer a lower row.
        best = jnp.argmax(options, axis=1).astype(jnp.int32)
        best = jnp.where(options.max(axis=1) > stay, best, jnp.arange(n_rows, dtype=jnp.int32))
        value = jnp.maximum(options.max(axis=1), stay)
        return (values.at[t].set(value), links.carried), (best, options)

    empty = jnp.zeros((length + 1, n_rows), jnp.float32)
    start = empty, never_done(moves, length, rate.shape[:1])
    (value, _), found = jax.lax.scan(backward, start, jnp.arange(length), reverse=True)
    return Solved(value, *found)


def never_done(
    moves: MigrationTable, length: int, batch: tuple[int, ...] = ()
) -> Int[Array, "*batch U L"]:
    """The `carried` of no moves yet."""
    return jnp.full((*batch, *moves.sends.lots), length, jnp.int32)


class OutcomesOfMoves(NamedTuple):
    """What moves between all rows bring that begin in one interval, [P, P] each."""

    gained: Array  # training steps (or reward) until the next decision, or the end
    landed: Array  # int32 interval of arrival, the last where it comes too late
    inside: Array  # bool, does it come in time?
    # int32 interval in which links have carried each of `Transfers.lots`, T = never
    carried: Array


def outcomes_of_moves(
    course: Course,
    moves: MigrationTable,
    t: Int[Array, ""],
    setup: Setup,
    latest: Int[Array, "U L"] | None = None,
) -> OutcomesOfMoves:
    """Moves that begin in interval t of one future, see `values_of_rows`; the next decision is taken
    in the interval after the arrival's. `latest` is `carried` of moves that begin later, and spares
    work: who begins sooner is done no later."""
    links = _links_done(moves, t, setup, course, latest)
    return _outcomes(course, moves, t, setup, links, moves.sends.slowest(links.done_s))


def _outcomes(
    course: Course,
    moves: MigrationTable,
    t: Int[Array, ""],
    setup: Setup,
    links: LinksDone,
    sent_s: Float[Array, "P P"],
) -> OutcomesOfMoves:
    """`outcomes_of_moves` where links are known to be done at `sent_s`."""
    interval, start = setup.interval_s, _begins_s(moves, t, setup)
    arrival_s = jnp.maximum(sent_s, start + moves.fabric_s)
    # Rows that are no move apart are there at once.
    moved = (moves.restart_s > 0.0) | (moves.fabric_s > 0.0) | (sent_s > start)
    arrival_s = jnp.where(moved, arrival_s, t.astype(jnp.float32) * interval)
    landed, inside, left_s = _landing(arrival_s, course, interval)
    left_s = jnp.where(inside, left_s, 0.0)
    column = jnp.broadcast_to(jnp.arange(landed.shape[1])[None, :], landed.shape)
    meanwhile = moves.goes_on * _meanwhile(course, landed, inside, left_s, t, interval)
    gained = course.rate[landed, column] * left_s + meanwhile
    if course.worth is not None:
        idle = course.worth.held[landed, column] * (interval - left_s)
        bytes_gb = moves.bytes_gb.reshape(*landed.shape, -1)
        price = _price_of_moves(course.worth, bytes_gb, links.since_gb, landed, inside, t, setup)
        gained = gained + jnp.where(inside, idle, 0.0) + price
    return OutcomesOfMoves(gained, landed, inside, links.carried)


def _begins_s(moves: MigrationTable, t: Int[Array, ""], setup: Setup) -> Float[Array, ""]:
    """[] [s] when links begin to carry what moves send that are decided in interval t."""
    restart_s = moves.restart_s.max()  # the same for every move; of what is none it is zero
    return t.astype(jnp.float32) * setup.interval_s + restart_s


def _landing(arrival_s: Array, course: Course, interval: Array) -> tuple[Array, Array, Array]:
    """[P, P] each: int32 interval of arrival, the last where it comes too late; does it come in time?
    and what is left of that interval then [s]."""
    length = course.speed.shape[0]
    landed = jnp.floor(arrival_s / interval).astype(jnp.int32)
    inside = landed < length
    landed = jnp.minimum(landed, length - 1)
    return landed, inside, (landed + 1).astype(jnp.float32) * interval - arrival_s


def _meanwhile(
    course: Course, landed: Array, inside: Array, left_s: Array, t: Array, interval: Array
) -> Array:
    """[P, P] what training brings from interval t until the arrival in `landed`, if all of it went on:
    the old row's until that interval, and there the new one's."""
    trained = course.rate if course.worth is None else course.worth.trained
    total = jnp.concatenate([jnp.zeros_like(trained[:1]), jnp.cumsum(trained, axis=0)]) * interval
    old = jnp.broadcast_to(jnp.arange(landed.shape[0])[:, None], landed.shape)
    end = jnp.where(inside, landed, trained.shape[0])
    arriving = trained[landed, old.T] * (interval - left_s)
    return total[end, old] - total[t, old] + jnp.where(inside, arriving, 0.0)


def _mean(x: Array) -> Array:
    """Over the futures; of one future it is that one, bit for bit."""
    return x[0] if x.shape[0] == 1 else x.mean(axis=0)


class LinksDone(NamedTuple):
    """When links have carried amounts that they begin with at one time."""

    done_s: Array  # [U, E] [s], an interval after the last where they never have
    since_gb: Array  # [T + 1, E] [GB] carried since the start until each interval begins
    carried: Array  # int32 interval in which they have each of `Transfers.lots`, T = never


def _links_done(
    moves: MigrationTable,
    t: Int[Array, ""],
    setup: Setup,
    course: Course,
    latest: Int[Array, "U L"] | None = None,
) -> LinksDone:
    """When each link has carried each amount of moves decided in interval t, and in no interval after
    `latest`. Where transfers are not told apart, `carried` is when all of their links are done.

    The interval is looked for from `latest` downward, in steps that double, then between. What begins
    an interval sooner is done an interval sooner or so, which makes three or four tests of what would
    be log2(T) by bisection.
    """
    amounts_gb, interval, start = (
        moves.sends.amounts_gb,
        setup.interval_s,
        _begins_s(moves, t, setup),
    )
    speed, done_gb, apart = course.speed, course.done_gb, moves.sends.lots == amounts_gb.shape
    length = speed.shape[0]
    begun = jnp.minimum(jnp.floor(start / interval).astype(jnp.int32), length - 1)
    before_gb = done_gb[begun] + speed[begun] * (start - begun.astype(jnp.float32) * interval)
    since_gb = done_gb - before_gb[None]

    def narrow(bounds):
        low, high, step = bounds  # inclusive; `length` = never
        middle = jnp.maximum(high - step, low)
        enough = amounts_gb <= _at(since_gb, middle + 1)
        enough = enough if apart else jnp.all(enough, axis=1, keepdims=True)
        enough = enough & (low < high)
        low = jnp.where(enough, low, jnp.minimum(middle + 1, high))
        return low, jnp.where(enough, middle, high), jnp.where(enough, 2 * step, 1)

    first = jnp.broadcast_to(begun, moves.sends.lots)
    last = jnp.full_like(first, length) if latest is None else jnp.maximum(latest, first)
    bounds = first, last, jnp.ones_like(first)
    _, last, _ = jax.lax.while_loop(lambda x: jnp.any(x[0] < x[1]), narrow, bounds)
    inside = jnp.minimum(last, length - 1)
    rest_gb = jnp.where(amounts_gb > 0, amounts_gb - _at(since_gb, inside), 0.0)
    rest_s = rest_gb / jnp.maximum(_at(speed, inside), 1e-30)
    done_s = jnp.maximum(inside.astype(jnp.float32) * interval + rest_s, start)
    done_s = jnp.where(last < length, done_s, (length + 1) * interval)
    return LinksDone(done_s, since_gb, last)


def _at(values: Float[Array, "_ E"], interval: Int[Array, "U L"]) -> Float[Array, "U E"]:
    """Each link's value in an interval of its own, or of a transfer's own, [U, 1]."""
    if interval.shape[1] == 1:
        return values.at[interval[:, 0]].get(mode="promise_in_bounds")
    n_links = values.shape[1]
    place = interval * n_links + jnp.arange(n_links, dtype=jnp.int32)[None]
    return values.reshape(-1).at[place].get(mode="promise_in_bounds")


def _price_of_moves(
    worth: Worth,
    bytes_gb: Array,
    since_gb: Array,
    landed: Array,
    inside: Array,
    t: Array,
    setup: Setup,
) -> Array:
    """[P, P] [reward] of the intervals from t to the arrival in `landed` [P, P]: the old row in force
    without training, and the egress [USD] of the `bytes_gb` [P, P, E], set against the GPUs of the row
    in force. `since_gb` [T + 1, E] is what links carry from the move's start to an interval's begin.
    """
    length = worth.held.shape[0]
    end = jnp.where(inside, landed, length)
    old = jnp.broadcast_to(jnp.arange(landed.shape[0])[:, None], landed.shape)
    new = jnp.broadcast_to(jnp.arange(landed.shape[1])[None, :], landed.shape)

    def until(x):
        """[P, P] the old row's sum from t until the arrival's interval begins."""
        total = jnp.concatenate([jnp.zeros_like(x[:1]), jnp.cumsum(x, axis=0)])
        return total[end, old] - total[t, old]

    usd_per_gb = setup.problem.cluster.egress_usd_per_gb.reshape(-1)
    early = jnp.vectorize(
        lambda load, at: _usd(load, since_gb[at], usd_per_gb), signature="(e),()->()"
    )
    before_usd = early(bytes_gb, end)
    after_usd = jnp.where(
        inside, jnp.sum(bytes_gb * usd_per_gb[None, None], axis=-1) - before_usd, 0.0
    )
    waited = jnp.maximum((end - t).astype(jnp.float32), 1.0)
    traffic = before_usd * until(worth.per_usd) / waited
    traffic = traffic + after_usd * worth.per_usd[landed, new]
    return until(worth.held) * setup.interval_s + traffic


def _usd(load_gb: Array, carried_gb: Array, usd_per_gb: Array) -> Array:
    """[] [USD] of what of a load [E] is carried by then."""
    return jnp.sum(jnp.clip(carried_gb, 0.0, load_gb) * usd_per_gb)


def first_deployment(
    rate: Float[Array, "W T P"],
    value: Float[Array, "_ P"],
    setup: Setup,
    t: int = 1,
    worth: Worth | None = None,
) -> tuple[Int[Array, ""], Float[Array, ""]]:
    """The best row to deploy on idle domains in interval t: a restart, nothing to move.

    Returns the row [] int32 and what can be had from there [] [training steps].
    """
    length, restart_s = rate.shape[1], setup.problem.calibration.restart_s
    skipped = jnp.floor(restart_s / setup.interval_s).astype(jnp.int32)
    landed = jnp.minimum(t + skipped, length - 1)
    inside = t + skipped < length
    left_s = (skipped + 1).astype(jnp.float32) * setup.interval_s - restart_s
    gained = jnp.where(inside, _mean(rate[:, landed]) * left_s + value[landed + 1], 0.0)
    if worth is not None:
        idle_s = setup.interval_s - left_s  # in force for the whole interval, training for its rest
        gained = gained + jnp.where(inside, _mean(worth.held[:, landed]) * idle_s, 0.0)
    return jnp.argmax(gained).astype(jnp.int32), gained.max()
