"""Finds the plans of a family that are worth having in a table: on the host, scored in batches.

Where local jobs take GPUs, plans are made for a half and a quarter of each domain's too. Free fields
come from a menu of lower choices, with batch shares balanced under the network at hand.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import pickle
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from jaxsim.cluster import Calibration, ClusterSpec, padded_calibration
from jaxsim.learning import TokenEfficiency, published_efficiency
from jaxsim.plan import (
    Layout,
    LowerChoices,
    Plan,
    Problem,
    count_layouts,
    enumerate_layouts,
    extensions,
)
from jaxsim.planning.balance import complete
from jaxsim.planning.cuts import layer_pace
from jaxsim.planning.family import (
    PlanFamily,
    Settings,
    make_plan,
    plan_blocks,
    plan_key,
    stack_plans,
)
from jaxsim.planning.scoring import (
    VIEWS_AT_ONCE,
    base_view,
    choice_rates,
    gpus_once,
    in_front,
    one_view,
)
from jaxsim.short_axes import ShortAxes
from jaxsim.step_time import NetworkView
from jaxsim.trees import take
from jaxsim.workload import Workload

Owner = tuple[Layout, int]  # of a plan, with the part of the GPUs that it was made for
# Combinations of the groups' dp that are tried per tp: all of them for up to four groups.
COMBINATIONS = 16
WHOLE = (1,)  # all GPUs of every domain


@functools.cache
def table_family() -> PlanFamily:
    """What tables enumerate; every table's claim of exactness is relative to it."""
    return PlanFamily(cuts=("even",))


# Compiled once for all builders.
_score = ShortAxes(choice_rates, where=lambda plans, *_: in_front(plans.group.shape[-1]))
_complete_each = jax.jit(jax.vmap(complete, in_axes=(0, 0, None, None)))


class TableBuilder:
    """Finds the plans worth having in a table for one cluster and one job."""

    def __init__(
        self,
        spec: ClusterSpec,
        work: Workload,
        calibration: Calibration,
        choices: LowerChoices,
        pad_to: int | None = None,
        parts: tuple[int, ...] = WHOLE,
        learning: TokenEfficiency | None = None,
    ):
        cluster = spec.to_arrays(pad_to)
        worth = published_efficiency() if learning is None else learning
        calibration = padded_calibration(calibration, cluster.mask.shape[0])
        self.spec, self.problem = spec, Problem(work, cluster, calibration, choices, worth)
        self.pace = layer_pace(self.problem)
        self.gpus = np.asarray(cluster.gpus)
        self.per_node = np.asarray(cluster.gpus_per_node)
        self.n_domains = cluster.mask.shape[0]
        self.parts = parts
        # What plans are made for: all GPUs of every domain, or a part.
        self.rooms = [np.minimum(self.gpus, np.maximum(self.gpus // part, 1)) for part in parts]
        self._group_settings: dict[tuple[int, tuple[int, ...]], list[tuple[float, int, int]]] = {}

    def rates(self, plans: Sequence[Plan] | Plan, views: NetworkView) -> Float[np.ndarray, "W P"]:
        """[W, P] training steps per second, best lower choice; 0 where nothing fits."""
        return self.choice_rates(plans, views).max(axis=-1)

    def choice_rates(
        self, plans: Sequence[Plan] | Plan, views: NetworkView
    ) -> Float[np.ndarray, "W P V"]:
        """[W, P, V] training steps per second."""
        count = views.gpus_available.shape[0]
        at_once = 1 if count == 1 else VIEWS_AT_ONCE
        rows = [np.arange(w, w + at_once) % count for w in range(0, count, at_once)]
        worlds = [gpus_once(take(views, w)) for w in rows]
        blocks, n_plans = plan_blocks(plans)
        # None is awaited before the last has begun: they are computed while others are cut out.
        rates = [[_score(block, world, self.problem) for world in worlds] for block in blocks]
        of_blocks = [np.concatenate(each)[:count] for each in rates]
        return np.concatenate(of_blocks, axis=1)[:, :n_plans]

    def base_rates(self, plans: Sequence[Plan] | Plan) -> Float[np.ndarray, "P V"]:
        """[P, V] training steps per second with the cluster as its file states it."""
        return self.choice_rates(plans, one_view(base_view(self.problem.cluster)))[0]

    def complete_at_base(self, plans: list[Plan]) -> Plan:
        """Stack plans, their free fields set by the lower choice that is best at base."""
        choice = jnp.asarray(self.base_rates(plans).argmax(axis=-1), jnp.int32)
        view = base_view(self.problem.cluster)
        done, _ = _complete_each(stack_plans(plans), choice, self.problem, view)
        return done

    def count(self) -> int:
        """Plans of the family, free fields apart, whether or not they fit memory."""
        family = dataclasses.replace(table_family(), choices=((1, 0, 0),))
        clusters = [self.problem.cluster.replace(gpus=jnp.asarray(room)) for room in self.rooms]
        return sum(family.count(cluster, self.problem.work) for cluster in clusters)

    def group_settings(self, groups: list[tuple[int, ...]], keep: int = 2) -> None:
        """Remember the best `keep` (tp, dp) of each pipeline on its own, at base bandwidth."""
        new = [
            (part, group)
            for part in range(len(self.rooms))
            for group in groups
            if (part, group) not in self._group_settings
        ]
        trials, owners = [], []
        for part, group in new:
            for settings in self._every((group,), self.rooms[part]):
                plan = self._plan((group,), settings, self.rooms[part])
                if plan is not None:
                    trials.append(plan)
                    owners.append(((part, group), settings))
        if not trials:
            return
        rate = self.base_rates(trials).max(axis=-1)
        found: dict[tuple[int, tuple[int, ...]], list] = {key: [] for key in new}
        for (key, (tp, dps)), r in zip(owners, rate, strict=True):
            found[key].append((float(r), tp, dps[0]))
        for key, options in found.items():
            options.sort(reverse=True)
            # Memory is per group: one that does not fit alone fits in no layout.
            self._group_settings[key] = [o for o in options if o[0] > 0][:keep]

    def plans_of(
        self, layouts: list[Layout], every: bool = False
    ) -> tuple[list[Plan], list[Owner]]:
        """Plans of layouts and whose they are: with `every` setting of the family, or with those found
        for their groups (same tp in all groups)."""
        if not every:
            self.group_settings(sorted({g for layout in layouts for g in layout}))
        found: dict[
            bytes, tuple[Plan, Owner]
        ] = {}  # where layers are few, parts have plans in common
        for part, room in enumerate(self.rooms):
            for layout in layouts:
                allowed = self._every(layout, room) if every else self._found(layout, part)
                for settings in allowed:
                    plan = self._plan(layout, settings, room)
                    if plan is not None:
                        found.setdefault(plan_key(plan), (plan, (layout, part)))
        return [plan for plan, _ in found.values()], [owner for _, owner in found.values()]

    def _plan(self, layout: Layout, settings: Settings, room: np.ndarray) -> Plan | None:
        layers = int(self.problem.work.layers)
        return make_plan(layout, settings, room, layers, self.n_domains, self.pace)

    def _every(self, layout: Layout, room: np.ndarray) -> Iterator[Settings]:
        batch = int(self.problem.work.global_batch)
        return table_family().settings(layout, room, self.per_node, batch)

    def _found(self, layout: Layout, part: int) -> list[Settings]:
        """What was found for the groups, joined where they have the same tp; of an even layout all
        that its domains have in common too, as what is best for each alone need not agree."""
        options = [self._group_settings.get((part, g), []) for g in layout]
        settings: list[Settings] = []
        for tp in dict.fromkeys(tp for found in options for _, tp, _ in found):
            dps = [[dp for _, t, dp in found if t == tp] for found in options]
            joined = itertools.islice(itertools.product(*dps), COMBINATIONS)
            settings += [(tp, combination) for combination in joined]
        if layout in even_layouts(self.spec.n_domains):
            everyone = (tuple(k for group in layout for k in group),)
            common = self._every(everyone, self.rooms[part])
            settings += [(tp, dps * len(layout)) for tp, dps in common]
        return list(dict.fromkeys(settings))

    def layouts(self, limit: int = 4000) -> tuple[list[Layout], bool]:
        """All layouts where there are at most `limit`, else a beam's and the even ones."""
        n = self.spec.n_domains
        if count_layouts(n) <= limit:
            return list(enumerate_layouts(tuple(range(n)), n)), True
        problem = self.problem
        asked = (self.spec, problem.work, problem.calibration, problem.choices, None, self.parts)
        asked += (problem.learning,)
        found = _beam(pickle.dumps(asked), limit)
        return list(dict.fromkeys([*found, *even_layouts(n)])), False

    def beam(self, width: int, limit: int) -> list[Layout]:
        """Grow layouts one domain at a time, keeping the `width` of each size that come nearest to the
        fastest at base, for any part of the GPUs."""
        n = self.spec.n_domains
        frontier: list[Layout] = [((k,),) for k in range(n)]
        found = list(frontier)
        while frontier and len(found) < limit:
            grown = sorted({new for old in frontier for new in extensions(old, n)})
            plans, owners = self.plans_of(grown)
            if not plans:
                break
            # float64: the division below must not make two rates equal.
            rate = self.base_rates(plans).max(axis=-1).astype(np.float64)
            fastest = np.zeros(len(self.parts))
            np.maximum.at(fastest, [part for _, part in owners], rate)
            best: dict[Layout, float] = {}
            for (layout, part), r in zip(owners, rate, strict=True):
                near = r / fastest[part] if r > 0 else 0.0
                best[layout] = max(best.get(layout, 0.0), near)
            frontier = sorted(best, key=lambda x: -best[x])[:width]
            found += frontier
        return found[:limit]


@functools.lru_cache(maxsize=4)
def _beam(asked: bytes, limit: int) -> tuple[Layout, ...]:
    """What a builder finds, given its pickled arguments: tables of one cluster and job that differ
    in the plans of rivals share the search."""
    return tuple(TableBuilder(*pickle.loads(asked)).beam(width=max(64, limit // 32), limit=limit))


def even_layouts(n_domains: int) -> tuple[Layout, Layout]:
    """All domains in one pipeline in the file's order, and each a replica of its own."""
    return (tuple(range(n_domains)),), tuple((k,) for k in range(n_domains))
