"""Search of the whole plan space: partitions of domains, settings per group, ways to talk.

Every group alone is computed once (`bounds`). A partition's rate is at most what its groups train
together over what they must say to each other; how they talk is enumerated outside. The search opens
(partition, exchange) pairs from the most promising on and scores their plans with the simulator.
Whatever it leaves out has a bound, and the largest of these is the gap that it reports.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Int

from jaxsim.files import InputError
from jaxsim.learning import Communication
from jaxsim.plan import Problem
from jaxsim.planning import Exchange, PlanSpace, layer_pace, list_pipelines
from jaxsim.planning.exact.blocks import (
    Blocks,
    Bounded,
    OfView,
    Settings,
    listed_partitions,
    needed,
    padded,
    possible,
    undominated,
)
from jaxsim.planning.exact.bounds import ROUNDING, PipelineTable
from jaxsim.planning.exact.climb import Climbed
from jaxsim.planning.exact.incumbent import Incumbent, SpaceResult
from jaxsim.planning.exact.rings import ring_orders
from jaxsim.step_time import NetworkView, ring_rate_gb_per_s
from jaxsim.workload import SENT_GRADIENT_BYTES

MOST_DOMAINS = 9  # whose partitions are all listed; a beam beyond
BEAM = 4000  # partitions of a beam
MOST_SCORED = 20_000  # plans, unless the caller says otherwise
OPENED_TOGETHER, PARTITIONS_PROBED = 48, 16
# Combinations of settings that are bounded together; of more, the fastest settings of each block.
MOST_COMBINED = 50_000


class SpaceSearch:
    """The best plan of a `PlanSpace` for one job (no job axis) on one cluster."""

    def __init__(
        self, problem: Problem, space: PlanSpace | None = None, most_combined: int = MOST_COMBINED
    ):
        """`most_combined`: settings of blocks together, of which more are left to the gap. Raises
        InputError for a job with virtual stages: the bounds do not hold for them."""
        self.most_combined = most_combined
        self._worths: dict[Exchange, np.ndarray] = {}
        self._last: OfView | None = None
        self.space = PlanSpace() if space is None else space
        self.family = self.space.groups
        self.problem = problem.replace(choices=self.family.menu)
        if float(problem.work.virtual_stages) != 1.0:
            raise InputError("virtual_stages: an exact search expects 1")
        cluster, orders = problem.cluster, self.space.orders(problem.cluster)
        self.domains = np.flatnonzero(np.asarray(cluster.mask))
        heads = dict.fromkeys(self.family.tensor_sizes(cluster), 0.0)
        if self.family.cuts != ("even",):
            raise InputError("cuts: a search of the whole space expects even ones")
        own = (cluster, problem.work, orders, heads, layer_pace(problem))
        self.pipelines = list_pipelines(self.family, *own)
        place = {int(k): i for i, k in enumerate(self.domains)}
        self.mask_of = np.array([sum(1 << place[k] for k in order) for order in orders])
        self.masks = np.unique(self.mask_of)
        self._tables: dict[Any, PipelineTable] = {}

    def prepare(
        self, gpus_available: Int[np.ndarray | Array, " K"], activation_bits: int
    ) -> PipelineTable:
        """Every group alone, for these free GPUs [K]; built where it is not there."""
        key = (activation_bits, *np.asarray(gpus_available).tolist())
        if key not in self._tables:
            args = (self.pipelines, self.family.choices, self.problem, gpus_available)
            self._tables[key] = PipelineTable.build(*args, {"activation_bits": activation_bits})
        return self._tables[key]

    def best(
        self,
        view: NetworkView,
        most_scored: int = MOST_SCORED,
        exchanges: list[Exchange] | None = None,
        known: Climbed | None = None,
    ) -> SpaceResult:
        """The plan with the highest rate under `view`, by the efficiency of `problem.learning`.

        `exchanges`: the ways to talk that are looked at, those of the space if None; `known`: a plan to
        beat, which may lie outside of the space.
        """
        ways = self.space.exchanges() if exchanges is None else exchanges
        blocks, fastest, (parts, exhaustive, beyond), rings, bound = self.bounded(view, ways)
        state = Incumbent(self.problem, self.pipelines, view, most_scored)
        if known is not None:
            state.take(known)
        if not fastest.any():  # no block can train
            return state.result(state.rate, 0, True)
        if not exhaustive:
            beyond = self._relaxed(ways, fastest)
        pairs = np.argsort(-bound, axis=None, kind="stable")
        order = np.stack(np.unravel_index(pairs, bound.shape))
        self._probe(order, bound, ways, parts, blocks, rings, state)
        left = 0.0  # the largest bound of what is not scored
        for start in range(0, order.shape[1], OPENED_TOGETHER):
            some = order[:, start : start + OPENED_TOGETHER]
            top = bound[tuple(some[:, 0])]
            if top <= state.rate:
                break
            if state.scored >= most_scored:
                left = max(left, float(top))
                break
            for w, p in some.T:
                if bound[w, p] > state.rate:
                    one = [int(b) for b in parts[p] if b >= 0]
                    args = (rings[0][int(ways[w].sync_period > 1), p], rings[1][p], view, state)
                    left = max(left, self._open(ways[w], one, blocks, *args))
            state.flush()
        left = max(left, state.left, beyond, state.rate)
        return state.result(left, len(parts), exhaustive)

    def blocks(self, view: NetworkView, ways: list[Exchange]) -> dict[int, Blocks]:
        """What every block may be under `view`, by the bits between stages of these ways to talk; of
        the last view it is remembered."""
        known = self.of_view(view).blocks
        new = {way.activation_bits for way in ways} - known.keys()
        known |= {b: self._blocks(self.prepare(view.gpus_available, b), view) for b in new}
        return known

    def bounded(self, view: NetworkView, ways: list[Exchange]) -> Bounded:
        """Blocks, their partitions, and what bounds each with each of the ways; of the last view it is
        remembered."""
        blocks, known = self.blocks(view, ways), self.of_view(view)
        fastest = np.maximum.reduce([b.speed for b in blocks.values()])
        bits = frozenset(blocks)
        if not fastest.any():  # no block can train
            nothing = np.zeros((0, 1), int), True, 0.0
            return Bounded(blocks, fastest, nothing, (), np.zeros((len(ways), 0)))
        if bits not in known.partitions:
            found = self._partitions(fastest)
            known.partitions[bits] = found, self._ring_bounds(found[0], view)
        found, rings = known.partitions[bits]
        for way in ways:
            if (way, bits) not in known.bounds:
                of = self._bounds(way, found[0], blocks[way.activation_bits], *rings)
                known.bounds[way, bits] = of
        return Bounded(
            blocks, fastest, found, rings, np.stack([known.bounds[w, bits] for w in ways])
        )

    def of_view(self, view: NetworkView) -> OfView:
        """What was found under `view`, where it is the last one that was asked about."""
        if self._last is None or self._last.view is not view:
            self._last = OfView(view, {}, {}, {}, {})
        return self._last

    def _probe(self, order, bound, ways, parts, blocks, rings, state) -> None:
        """Find a good plan to beat: a few of the most promising partitions, each with the exchange that
        suits it best."""
        seen: set[int] = set()
        for w, p in order.T:
            if len(seen) >= PARTITIONS_PROBED or bound[w, p] <= 0.0:
                break
            if int(p) not in seen:
                seen.add(int(p))
                one = [int(b) for b in parts[p] if b >= 0]
                args = (rings[0][int(ways[w].sync_period > 1), p], rings[1][p], state.view, state)
                self._open(ways[w], one, blocks, *args)
        state.probe()

    def _blocks(self, table: PipelineTable, view: NetworkView, kept=undominated) -> Blocks:
        """What every block may be, of that what is `kept`, and its best of each."""
        options = table.options(view, self.problem, None)
        micro = np.array([c[0] for c in self.family.choices], np.int64)
        runs = (options.speed > 0.0) & np.isfinite(options.whole)
        found = np.nonzero(needed(runs, self.pipelines.common))
        owner = np.searchsorted(self.masks, self.mask_of)[found[0]]
        batch = float(self.problem.work.global_batch)
        every = possible(options, found, self.pipelines, micro, batch)
        rows = [np.flatnonzero(owner == b) for b in range(len(self.masks))]
        settings = [kept(every.take(own)) if len(own) else None for own in rows]
        return Blocks.of(settings)

    def _partitions(self, speed: np.ndarray) -> tuple[np.ndarray, bool, float]:
        """[n, G] blocks (index of mask, -1 = none) of all partitions of blocks that can train, or of a
        beam of them."""
        n, largest = len(self.domains), self.space.max_pipeline
        index = {int(mask): i for i, mask in enumerate(self.masks) if speed[i] > 0.0}
        if n <= MOST_DOMAINS:
            found = [
                tuple(index[m] for m in blocks)
                for blocks in listed_partitions(n, largest)
                if all(m in index for m in blocks)
            ]
            return padded(found, n), True, 0.0
        # A beam: blocks join one by one, the partitions that train most survive.
        masks, beam = list(index), [((), 0, 0.0)]
        found = []
        for _ in range(n):
            grown = {}
            for blocks, used, total in beam:
                low = next((k for k in range(n) if not used >> k & 1), n)
                for mask in masks:
                    if mask & used or (mask & -mask).bit_length() - 1 < low:
                        continue
                    key = tuple(sorted((*blocks, index[mask])))
                    grown[key] = (used | mask, total + speed[index[mask]])
            if not grown:
                break
            top = sorted(grown.items(), key=lambda x: -x[1][1] / x[1][0].bit_count())[:BEAM]
            beam = [(key, used, total) for key, (used, total) in top]
            found += [key for key, _, _ in beam]
        return padded(found, n), False, 0.0

    def _relaxed(self, ways: list[Exchange], speed: np.ndarray) -> float:
        """Bound over all partitions: a domain brings at most the best part of a block that it is in."""
        sizes = np.array([int(m).bit_count() for m in self.masks])
        part = speed / sizes
        each = [part[(self.masks >> k) & 1 == 1].max() for k in range(len(self.domains))]
        total_s = float(self.problem.work.global_batch) / max(sum(each), 1e-30)
        groups = np.arange(1, len(self.domains) + 1)
        worth = max(self._efficiency(way, groups).max() for way in ways)
        return float((1.0 + ROUNDING) * worth / total_s)

    def _efficiency(self, way: Exchange, groups: np.ndarray, crosses: bool | np.ndarray = False):
        """[n] what a token is worth for so many groups."""
        if way not in self._worths:
            n = np.arange(len(self.domains) + 1)[:, None] + np.zeros(2)
            work, bits = self.problem.work, np.broadcast_to([16, way.activation_bits], n.shape)
            rest = (way.sync_period, way.wire_bits, bits, way.overlap, work.tokens_per_step)
            numbers = (
                jnp.asarray(np.broadcast_to(np.float32(x), n.shape))
                for x in (work.gparams, n, *rest)
            )
            self._worths[way] = np.asarray(_worth(self.problem.learning, Communication(*numbers)))
        return self._worths[way][groups, np.asarray(crosses, int)]

    def _ring_bounds(self, parts: np.ndarray, view: NetworkView) -> tuple[np.ndarray, np.ndarray]:
        """[2, n] [s] at least for one sync in 16 bits, of gradients and of outer deltas; [n] [s] of
        its latency. A group sends to one other, over all of their links at the most."""
        inside = np.array([[m >> i & 1 for i in range(len(self.domains))] for m in self.masks])
        inside = inside.astype(np.float32)
        inside = np.concatenate([inside, np.zeros_like(inside[:1])])  # -1: no block
        cal, pick = self.problem.calibration, np.ix_(self.domains, self.domains)
        rates = [
            np.asarray(ring_rate_gb_per_s(view.bandwidth_gb_per_s, jnp.int32(h), cal))[pick]
            for h in (1, 2)
        ]
        rtt = np.where(np.eye(len(self.domains), dtype=bool), np.inf, np.asarray(view.rtt_s)[pick])
        groups = (parts >= 0).sum(axis=1)
        sent_gb = 2.0 * (groups - 1) / np.maximum(groups, 1)
        sent_gb = sent_gb * SENT_GRADIENT_BYTES * float(self.problem.work.gparams)
        out = []
        for rate in rates:
            between = inside @ rate @ inside.T  # [B + 1, B + 1]
            slowest = np.full(len(parts), np.inf)
            for g in range(parts.shape[1]):
                best = np.zeros(len(parts))
                for h in range(parts.shape[1]):
                    if h != g:
                        best = np.maximum(best, between[parts[:, g], parts[:, h]])
                slowest = np.where(parts[:, g] >= 0, np.minimum(slowest, best), slowest)
            out.append(np.where(groups > 1, sent_gb / np.maximum(slowest, 1e-9), 0.0))
        near = 0.5 * rtt.min() if len(self.domains) > 1 else 0.0
        return np.stack(out), np.where(groups > 1, 2.0 * (groups - 1) * near, 0.0)

    def _bounds(
        self,
        way: Exchange,
        parts: np.ndarray,
        blocks: Blocks,
        ring: np.ndarray,
        latency: np.ndarray,
    ) -> np.ndarray:
        """[n] training steps per second at most."""

        def of(values, missing, reduce):
            return reduce(np.append(values, missing)[parts], axis=1)

        speed, fill = of(blocks.speed, 0.0, np.sum), of(blocks.fill, -np.inf, np.max)
        slack, after = of(blocks.slack, np.inf, np.min), of(blocks.after, -np.inf, np.max)
        missing = np.any(np.append(blocks.speed, 1.0)[parts] <= 0.0, axis=1)
        groups = (parts >= 0).sum(axis=1)
        crosses = np.any(np.append(self._crosses, False)[parts], axis=1)
        sync_s = ring[int(way.sync_period > 1)]
        step_s = self._step_s(way, speed, fill, slack, after, sync_s, latency)
        rate = (1.0 + ROUNDING) * self._efficiency(way, groups, crosses) / step_s
        # The same plan in 16 bits is another exchange's where nothing crosses a link.
        pointless = ~crosses & (way.activation_bits != 16 and 16 in self.space.activation_bits)
        plain = dataclasses.replace(way, activation_bits=16) == Exchange()
        return np.where(missing | pointless | ((groups == 1) & (not plain)), 0.0, rate)

    def _step_s(self, way: Exchange, speed, fill, slack, after, sync_s, latency_s) -> np.ndarray:
        """[s] that a step takes at least; arrays that broadcast. `slack`: sync inside the groups less
        what hides it; `sync_s`: one sync between them in 16 bits."""
        batch = float(self.problem.work.global_batch)
        inside = np.maximum(slack, 0.0)
        alone = np.maximum(batch / np.maximum(speed, 1e-30), fill) + inside + after
        every = way.sync_period / way.fragments
        fragment = sync_s * way.wire_bits / 16 / way.fragments + latency_s
        if way.overlap:
            hides = np.minimum(way.overlap * alone + np.maximum(-slack, 0.0), every * alone)
            lost = np.maximum(fragment - hides, 0.0)
        else:
            lost = np.maximum(slack + fragment, 0.0) - inside
        return alone + lost / every

    @functools.cached_property
    def _crosses(self) -> np.ndarray:
        """[B] bool, several domains."""
        return np.array([int(m).bit_count() > 1 for m in self.masks])

    def _open(self, way, part, blocks, sync_s, latency_s, view, state) -> float:
        """Hand the plans of a partition to be scored; returns the bound of what is left out."""
        found = [blocks[way.activation_bits].settings[b] for b in part]
        pipelines = int(self._crosses[part].sum())
        found = found if pipelines > 1 else [s.take(s.enough) for s in found]
        worth = (1.0 + ROUNDING) * self._efficiency(way, np.array([len(part)]), pipelines > 0)[0]
        some, left = self._worth_trying(way, found, worth, sync_s, latency_s, state.rate)
        if not all(len(s.speed) for s in some):
            return left
        counts = np.meshgrid(*(np.arange(len(s.speed)) for s in some), indexing="ij")
        pick = [(s, r.ravel()) for s, r in zip(some, counts, strict=True)]

        def of(name, reduce):
            return reduce([getattr(s, name)[r] for s, r in pick], axis=0)

        inside = np.max([(s.slack + s.hidden)[r] for s, r in pick], axis=0)
        slack = inside - of("hidden", np.max)
        ends = (of("fill", np.max), slack, of("after", np.max), sync_s, latency_s)
        speed = of("speed", np.sum)
        bound = worth / self._step_s(way, speed, *ends)
        units = np.stack([s.unit[r] for s, r in pick], axis=1)
        batch, largest = int(self.problem.work.global_batch), units.max(axis=1)
        fits = (batch % largest == 0) & np.all(largest[:, None] % units == 0, axis=1)
        chosen = np.flatnonzero(fits & (batch // largest >= len(part)) & (bound > state.rate))
        if not len(chosen):
            return left
        if len(part) > 4:
            left = max(left, float(bound[chosen].max()))  # not every order of the ring is tried
        rows = [
            np.stack([getattr(s, name)[r[chosen]] for s, r in pick], axis=1)
            for name in ("order", "common", "dp", "choice")
        ]
        for ring in self._rings(part, view):
            state.add(way, bound[chosen], [r[:, ring] for r in rows])
        return left

    def _worth_trying(
        self, way: Exchange, found: list[Settings], worth: float, sync_s, latency_s, floor: float
    ) -> tuple[list[Settings], float]:
        """The settings of each block with which a plan may beat `floor`, where all others are at their
        best; at most MOST_COMBINED combinations of them, and the bound of what that leaves out."""
        some, left, bounds = found, 0.0, []
        for _ in range(2):  # once more, as the best of the others is less by now
            hidden = max((s.hidden.max(initial=0.0) for s in some), default=0.0)
            best = [s.speed.max(initial=0.0) for s in some]
            bounds = []
            for s, own in zip(some, best, strict=True):
                slack = s.slack + s.hidden - hidden
                step_s = self._step_s(
                    way, sum(best) - own + s.speed, s.fill, slack, s.after, sync_s, latency_s
                )
                bounds.append(worth / step_s)
            some = [s.take(b > floor) for s, b in zip(some, bounds, strict=True)]
            bounds = [b[b > floor] for b in bounds]
        order = [np.argsort(-b, kind="stable") for b in bounds]
        some = [s.take(o) for s, o in zip(some, order, strict=True)]
        bounds = [b[o] for b, o in zip(bounds, order, strict=True)]
        keep = [len(b) for b in bounds]
        while np.prod(np.array(keep, float)) > self.most_combined:
            most = int(np.argmax(keep))
            keep[most] -= 1
            left = max(left, float(bounds[most][keep[most]]))
        return [s.take(slice(0, k)) for s, k in zip(some, keep, strict=True)], left

    def _rings(self, part: list[int], view: NetworkView) -> list[tuple[int, ...]]:
        """Orders of the groups' ring, as `ring_orders` has them."""
        n = len(part)
        if n <= 2:
            return [tuple(range(n))]
        places = range(len(self.domains))
        inside = np.array([[float(self.masks[b] >> i & 1) for i in places] for b in part])
        rate = np.asarray(view.bandwidth_gb_per_s)[np.ix_(self.domains, self.domains)]
        between = 1.0 / np.maximum(inside @ rate @ inside.T, 1e-12)
        return ring_orders(between)


@jax.jit
def _worth(learning, how: Communication) -> Array:
    return learning.of(how)
