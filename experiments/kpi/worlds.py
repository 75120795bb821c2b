"""The scenes that the KPIs are measured in: each cluster with jitter, without, and under load."""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from agents.episodes import Episode
from agents.registry import default_settings
from analysis.statistics import Played, front
from experiments.common import load_regions, made_once, price_of_speed
from experiments.evaluate import Contestant, Evaluator, named, tune
from experiments.respond import hand_over
from jaxsim.cluster import ClusterSpec
from jaxsim.env import EnvParams
from jaxsim.planning import (
    Preference,
    TableInfo,
    base_view,
    objectives,
    plan_objectives,
)
from jaxsim.scenario import ScenarioSettings, World
from jaxsim.trees import take

# The cluster beside the embedded one, of more regions than a table can hold every plan of.
EIGHT_REGIONS = "eight-aws-regions"
JITTER, STEADY, LOAD = "jitter", "steady", "load"
SCENES = {  # what the KPIs say of the world, stronger than the scenario settings
    JITTER: {"jitter": "uniform", "uniform": 0.3},
    STEADY: {"jitter": "none"},
    LOAD: {"jitter": "uniform", "uniform": 0.3, "load_share": 0.5, "load_swing": 0.2},
}
LEAST_WORTH = {"token_worth": "lower_end"}  # progress is at the lower end of its band
FAST, THRIFTY = (1.0, 0.0, 0.0, 0.0), (1.0, 0.0, 1.0, 0.0)  # w of all KPIs, and of WAN cost
LEAST_ASKED, ASKED = 2, 7  # questions about trade-offs, at least and by default


class Asked(NamedTuple):
    """A preference, whatever the cluster costs."""

    weights: tuple[float, float, float, float]
    budget_share: float = np.inf


SETTLED = 32  # intervals of links that stand still, after which nobody moves any more


def questions(count: int = ASKED) -> tuple[Asked, ...]:
    """What trade-offs are asked for: progress against egress, in equal steps from the one to the other,
    and progress within what may be spent, in equal shares of what the fastest plan costs per hour.
    Weights alone find no plan of few GPUs: the reward's cost is egress over the GPUs' price."""
    weighing = max(LEAST_ASKED, round(4 * count / ASKED))
    within = count - weighing
    weights = [((weighing - 1 - i) / (weighing - 1), i / (weighing - 1)) for i in range(weighing)]
    shares = [i / (within + 1) for i in range(within, 0, -1)]
    return (
        *(Asked((progress, 0.0, cost, 0.0)) for progress, cost in weights),
        *(Asked(FAST, share) for share in shares),
    )


def widest(files: Sequence[str | None]) -> int:
    """Domains of the largest cluster, which all are padded to: what is compiled for one is then not
    compiled for the others."""
    return max(load_regions(file).n_domains for file in files)


class Stage:
    """One cluster with its scenes; scenario s is drawn from the same seed in all of them."""

    def __init__(
        self,
        spec: ClusterSpec,
        world: World,
        info: TableInfo,
        settings: ScenarioSettings,
        counts: dict[str, int],
    ):
        """`counts` are the scenarios of the splits train and test; rivals are tuned on train."""
        self.spec, self.world, self.info, self.settings = spec, world, info, settings
        self._counts = counts
        # One thread makes what another waits for.
        self._scene, self.fronts = made_once(self._make_scene), made_once(self._find_fronts)
        self._weighing = threading.Lock()
        self.tuned = default_settings()

    def scene(self, name: str, split: str = "test") -> Evaluator:
        """The bank of a scene, made when it is first asked for."""
        return self._scene(name, split)

    def _make_scene(self, name: str, split: str) -> Evaluator:
        settings = dataclasses.replace(self.settings, **LEAST_WORTH, **SCENES[name])
        return Evaluator(self.world, settings, range(self._counts[split]), split, FAST)

    def tune(self, names: list[str]) -> None:
        """Tune the rivals on training scenarios with jitter."""
        self.tuned = tune([self.scene(JITTER, "train")], names)

    def regret(self, name: str) -> np.ndarray:
        """[S] of a rival, as it is tuned, on the training scenarios."""
        return self.scene(JITTER, "train").regret_pct(named(name, self.world, self.tuned))

    def play(
        self, scene: str, everyone: list[Contestant], weights: tuple[float, ...] | None = None
    ) -> Played:
        """One scheduler, all its policy seeds, in a scene; told `weights` where some are given."""
        bank, asked = self.scene(scene), None if weights is None else Preference(weights)
        episodes = [bank.play(one.scheduler, asked)[1] for one in everyone]
        return _played(episodes, bank.params)

    def hand_over(self, path: Path, one: Contestant) -> None:
        """Write the file for a process that responds as one scheduler does here."""
        hand_over(path, self.world, self.spec, one.scheduler, self.settings.interval_s)

    @functools.cached_property
    def usd_per_hour(self) -> float:
        """[USD] what the fastest plan of the table costs per hour, GPUs and egress, at base."""
        return price_of_speed(take(self.scene(STEADY).params, 0).problem.job(0), self.world.table)

    def points(self, everyone: list[Contestant], preferences: Sequence[Asked]) -> np.ndarray:
        """[S, M, W, 3] objectives of the plan in which each policy seed settles without jitter, by
        preference; infinite where that plan trains nothing."""
        bank = self.scene(STEADY)
        with self._weighing:
            told = [Preference(w, share * self.usd_per_hour) for w, share in preferences]
            bank.weigh(told)
        if any(one.scheduler.oracle for one in everyone):
            bank.weigh(told, oracle=True)  # longer, and others need not wait
        points = [
            [
                _last_point(bank.play(one.scheduler, asked, SETTLED)[1], bank.params)
                for asked in told
            ]
            for one in everyone
        ]
        return np.moveaxis(np.array(points), 2, 0)

    def _find_fronts(self) -> list[np.ndarray]:
        """[S] times [F, 3]: the front of all scored plans on each scenario's links, exact where these
        are all plans of the family (`info`)."""
        bank, family = self.scene(STEADY), self.world.family
        picked = (_family_points(take(bank.params, i), family) for i in range(len(bank)))
        return [front(np.asarray(one).reshape(-1, 3)) for one in picked]


@jax.jit
def _family_points(params: EnvParams, family) -> jax.Array:
    return plan_objectives(family, base_view(params.problem.cluster), params.problem.job(0))


@jax.jit
def _objectives(cost, params: EnvParams) -> jax.Array:
    def one(cost, params):
        return objectives(cost, params.problem.job(0))

    return jax.vmap(one)(cost, params)


def _last_point(episode: Episode, params: EnvParams) -> np.ndarray:
    """[S, 3] of the last interval, where no local job holds a GPU."""
    record = jax.tree.map(lambda x: x[:, -1], episode.record)
    points = _objectives(jax.tree.map(lambda x: jnp.asarray(x[:, 0]), record.cost), params)
    return np.where(record.train_s > 0, np.asarray(points), np.inf)


def _played(episodes: list[Episode], params: EnvParams) -> Played:
    tokens_per_step = np.asarray(params.problem.work.tokens_per_step)[:, 0]

    def each(reduce) -> np.ndarray:
        """[S, M, ...] from a function of one policy seed's record."""
        return np.stack([reduce(episode.record) for episode in episodes], axis=1)

    progress = each(lambda r: np.asarray(r.progress[:, :, 0], float))
    return Played(
        progress=progress,
        utilisation=each(lambda r: r.reward_parts.utilisation.mean(axis=1)),
        tokens=progress.sum(axis=-1) * tokens_per_step[:, None],
        egress_usd=each(lambda r: r.egress_usd.sum(axis=1)),
        wan_gb=each(lambda r: (r.wan_gb + r.migration_gb).sum(axis=(1, 2, 3))),
    )
