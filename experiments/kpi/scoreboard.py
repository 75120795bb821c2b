"""The scoreboard of one setting: every key figure, for a policy and for its best rival."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from tqdm import tqdm

from agents.registry import find, plan_rules, rivals_with_rules
from analysis.statistics import Played, covered, entry, hypervolume_ratio
from analysis.statistics import kpi as kpis
from experiments.common import (
    load_regions,
    load_world,
    made_once,
    make_room_for_programs,
    progress,
    side_by_side,
)
from experiments.evaluate import contestants, requested_without_truth
from experiments.kpi.config import COVERAGE, KpiConfig
from experiments.kpi.frames import episode_rows, front_rows
from experiments.kpi.jobs import SharedCluster, shared_cluster
from experiments.kpi.response import RespondingProcess, handed_command
from experiments.kpi.rivals import candidates, weighing
from experiments.kpi.worlds import (
    EIGHT_REGIONS,
    FAST,
    JITTER,
    LOAD,
    SCENES,
    STEADY,
    THRIFTY,
    Asked,
    Stage,
    questions,
    widest,
)
from jaxsim.planning import SAMPLED
from jaxsim.scenario import padded_world

EPSILON = 0.02  # of the Pareto coverage
BEST = "clairvoyant"  # whose own figure is what can be reached
SPEED_RIVALS = ("single_domain", "static_even_split", "best_static")
TRAFFIC_RIVALS = ("static_even_split", "zero")
# Measured or made once, whoever asks for it.
SHARED = (
    *("_stage", "_shared", "_process", "_points", "_fronts_covered"),
    *("played", "used", "_coverage", "_decision_ms", "_response"),
)
CONDITIONED = "conditioned_on_weights"  # of a checkpoint's meta: the policy sees w


class Scoreboard:
    """All KPIs in one setting, from checked inputs to rows."""

    def __init__(self, config: KpiConfig, setting: str):
        """`setting`: the plans that are allowed."""
        self.config, self.setting = config, setting
        self.policy, self.checkpoints = requested_without_truth(config.policy, "policy")
        self.candidates = candidates(config.candidates)
        listed = f",{EIGHT_REGIONS}" if config.cluster is None else config.cluster
        self.files = [file.strip() or None for file in listed.split(",")]
        self._frames: dict[tuple, list[pd.DataFrame]] = {}
        self._trade_offs: dict[tuple[str, int], pd.DataFrame] = {}
        self._processes = contextlib.ExitStack()  # that respond, closed when `run` is done
        for name in SHARED:  # kept by the scoreboard, and gone with it
            setattr(self, name, made_once(getattr(self, name)))

    def tables(self) -> dict[str, Callable[[], Any]]:
        """Every cluster's tables, of one job and of many, for `run`; the last cluster's first, which by
        default is the largest."""
        for file in self.files:
            load_regions(file)  # what cannot be read is refused before anything is shown
        parts: dict[str, Callable[[], Any]] = {}
        for which, file in reversed(list(enumerate(self.files))):
            where = f"{self.setting}, {which + 1}: {file or 'embedded cluster'}"
            if self.config.only != COVERAGE:
                parts[f"{where}, many jobs"] = partial(self._shared, which)
            parts[f"{where}, one job"] = partial(self._stage, which)
        return parts

    @functools.cached_property
    def stages(self) -> list[Stage]:
        """One for each cluster."""
        return [self._stage(which) for which in range(len(self.files))]

    @functools.cached_property
    def shared(self) -> list[SharedCluster]:
        """One for each cluster."""
        return [self._shared(which) for which in range(len(self.files))]

    def _stage(self, which: int) -> Stage:
        c, file = self.config, self.files[which]
        spec, world, info = load_world(
            file,
            c.model,
            c.global_batch,
            c.seq,
            c.table_size,
            plan_rules(rivals_with_rules()),
            layout_limit=c.layout_limit,
            efficiency=c.efficiency,
            allow=self.setting,
            loaded=True,  # as in one of the scenes, and for the process that responds
            preferences=SAMPLED,
        )
        counts = {"train": c.tuning_scenarios, "test": c.seeds}
        return Stage(spec, padded_world(world, spec, widest(self.files)), info, c.scenario, counts)

    def _shared(self, which: int) -> SharedCluster:
        c, file = self.config, self.files[which]
        return shared_cluster(
            file,
            c.jobs,
            SPEED_RIVALS,
            widest(self.files),
            seeds=c.jobs_seeds,
            scenario=dataclasses.replace(c.scenario, **SCENES[JITTER]),
            table_size=c.table_size,
            layout_limit=c.layout_limit,
            efficiency=c.efficiency,
            allow=self.setting,
        )

    def run(self) -> dict[str, list[dict]]:
        """Measure everything; the rows of the policy and, after them, those of the best scheduler
        that is not learned, by name. The last may be the policy itself."""
        if self.config.only == COVERAGE:
            return self._run_coverage()
        first = [("tuning the rivals", self._tune), *self._scenes(*SCENES)]  # side by side
        with (
            self._processes,
            progress(desc=f"kpi, {self.setting}", total=1 + len(first), unit="part") as bar,
        ):
            self._measure(first, bar)
            bar.set_postfix_str("the best rival")
            best = self._best_rival()
            bar.update()
            names = tuple(dict.fromkeys((self.policy, best)))
            played, timed = list(self._played(names).items()), self._timed(names)
            bar.total = 1 + len(first) + len(played) + len(timed)
            self._measure(played, bar)
            for what, measure in timed.items():
                bar.set_postfix_str(what)
                measure()
                bar.update()
        return {name: self.rows(name) for name in (self.policy, best)}

    def _run_coverage(self) -> dict[str, list[dict]]:
        """The row on the front alone; rivals are not tuned, and none is the best."""
        parts = [*self._scenes(STEADY), *self._asked((self.policy,))]
        with progress(desc=f"kpi, {self.setting}", total=len(parts), unit="part") as bar:
            self._measure(parts, bar)
        row = {"setting": self.setting, "weights": None, **self._coverage(self.policy)}
        return {self.policy: [row]}

    def _measure(self, parts: list[tuple[str, Callable[[], Any]]], bar: tqdm) -> None:
        """Play parts; between two of them programs may be dropped."""

        def shown(what: str, measure: Callable[[], Any]) -> None:
            bar.set_postfix_str(what)
            measure()
            bar.update()

        side_by_side([partial(shown, *part) for part in parts], make_room_for_programs)

    def coverages(self) -> list[dict]:
        """The row on the Pareto front of every scheduler that takes weights."""
        rows = {name: self._coverage(name) for name in weighing()}
        return [{"scheduler": name, "setting": self.setting, **row} for name, row in rows.items()]

    @property
    def frames(self) -> list[pd.DataFrame]:
        """Rows of episodes.csv, in an order that does not depend on who was ready first."""
        return [frame for key in sorted(self._frames) for frame in self._frames[key]]

    @property
    def trade_offs(self) -> pd.DataFrame:
        """The first scenario's front of each cluster, and where schedulers settle on it, by name."""
        fronts = [front_rows(self.setting, s, "front", s.fronts()[0]) for s in self.stages]
        settled = [self._trade_offs[key] for key in sorted(self._trade_offs)]
        return pd.concat([*fronts, *settled], ignore_index=True)

    def about(self) -> dict:
        """What was measured on, for the record."""
        return {
            "clusters": [stage.spec.name for stage in self.stages],
            "tables": [dataclasses.asdict(stage.info) for stage in self.stages],
            "tuned": [stage.tuned for stage in self.stages],
        }

    def _scenes(self, *scenes: str) -> list[tuple[str, Callable[[], Any]]]:
        """The banks of all clusters, the largest first, made before anybody plays and would wait."""
        return [
            (f"{scene} on {stage.spec.name}", partial(stage.scene, scene))
            for stage in map(self.stages.__getitem__, self._by_size)
            for scene in scenes
        ]

    def _played(self, names: tuple[str, ...]) -> dict[str, Callable[[], Any]]:
        """What is played for the scoreboards of `names`, each part once; `rows` reckons with it."""
        scenes = {
            JITTER: (*names, *SPEED_RIVALS, *TRAFFIC_RIVALS, "clairvoyant"),
            STEADY: (*names, "clairvoyant"),
            LOAD: (*names, "replan_oracle", "clairvoyant"),
        }
        parts: dict[str, Callable[[], Any]] = {}
        for scene, crowd in scenes.items():
            parts |= {f"{scene}: {n}": partial(self.played, scene, n) for n in crowd}
        for i, name in itertools.product(self._by_size, (*names, *SPEED_RIVALS)):
            what = f"many jobs on {self.stages[i].spec.name}: {name}"
            parts[what] = partial(self.shared[i].utilisation, name)
        for name in (*names, *TRAFFIC_RIVALS, "single_domain", "clairvoyant"):
            parts[f"{JITTER}, egress counts: {name}"] = partial(self._thrifty, name)
        for name in names:  # what is timed afterwards begins, and is compiled
            parts[f"responding process begins: {name}"] = partial(self._process, name)
            parts[f"first decision: {name}"] = partial(self._first_decision, name)
        return parts | dict(self._asked(names))

    def _asked(self, names: tuple[str, ...]) -> list[tuple[str, Callable[[], Any]]]:
        """Who weighs, and `names`, by preference: on the largest cluster first, and who looks ahead."""
        everyone = dict.fromkeys((BEST, *reversed(weighing()), *names))
        points = [
            (f"{name} by preference on {self.stages[i].spec.name}", partial(self._points, i, name))
            for i in self._by_size
            for name in everyone
        ]
        return [*points, *((f"Pareto front: {n}", partial(self._coverage, n)) for n in everyone)]

    def _timed(self, names: tuple[str, ...]) -> dict[str, Callable[[], Any]]:
        """What is measured while nothing else runs."""
        parts: dict[str, Callable[[], Any]] = {}
        for name in names:
            parts[f"decision latency: {name}"] = partial(self._decision_ms, name)
            parts[f"responding process: {name}"] = partial(self._response, name)
        return parts

    def _tune(self) -> None:
        # One cluster after the other: tuned at once, one would wait while the other's programs compile.
        for stage in self.stages:
            stage.tune(list(dict.fromkeys([*self.candidates, "replan_oracle"])))

    def _best_rival(self) -> str:
        """The candidate of least regret on training scenarios, where all were tuned as well."""
        asked = [partial(s.regret, n) for s in self.stages for n in self.candidates]
        found = side_by_side(asked, make_room_for_programs)
        regrets = np.reshape(found, (len(self.stages), len(self.candidates), -1))
        means = dict(zip(self.candidates, np.nanmean(regrets, axis=(0, 2)), strict=True))
        return min(means, key=lambda name: np.nan_to_num(means[name], nan=np.inf))

    def played(self, scene: str, name: str, weights: tuple[float, ...] = FAST) -> Played:
        """What a scheduler did in a scene, the scenarios of all clusters one after another."""
        told = None if weights == FAST else weights
        parts = [stage.play(scene, self._everyone(stage, name), told) for stage in self.stages]
        for stage, part in zip(self.stages, parts, strict=True):
            head = {"setting": self.setting, "cluster": stage.spec.name, "scene": scene}
            rows = episode_rows(head | {"w3": weights[2], "scheduler": name}, part)
            self._frames.setdefault((scene, weights, name), []).append(rows)
        fields = (field.name for field in dataclasses.fields(Played))
        return Played(**{f: np.concatenate([getattr(p, f) for p in parts]) for f in fields})

    def _thrifty(self, name: str) -> Played:
        """With jitter, told that egress counts as much as progress, where it can be told."""
        return self.played(JITTER, name, THRIFTY if self._takes_preferences(name) else FAST)

    def used(self, name: str) -> np.ndarray | None:
        """[S, M] utilisation of the shared clusters; None = the scheduler plans for one job."""
        parts = [cluster.utilisation(name) for cluster in self.shared]
        return None if any(part is None for part in parts) else np.concatenate(parts)

    def _everyone(self, stage: Stage, name: str):
        return contestants(name, self.checkpoints, stage.tuned, stage.world)

    def rows(self, name: str) -> list[dict]:
        """All KPIs of one scheduler, in the order of their definition; none against itself."""
        ours, best = self.played(JITTER, name), self.played(JITTER, "clairvoyant")
        rows, faster = [], [rival for rival in SPEED_RIVALS if rival != name]
        for rival in faster:
            rows += kpis.against(ours, rival, self.played(JITTER, rival), best)
        n_jobs, alone = self.shared[0].n_jobs, np.concatenate([c.alone() for c in self.shared])
        rows += [
            kpis.shared_use(self.used(name), rival, self.used(rival), n_jobs, alone)
            for rival in faster
        ]
        saves = [self._thrifty(name) for name in ("clairvoyant", "single_domain")]
        for rival in (rival for rival in TRAFFIC_RIVALS if rival != name):
            rows += kpis.traffic(self._thrifty(name), rival, self._thrifty(rival), saves)
        rows.sort(key=lambda row: [goal.name for goal in kpis.GOALS].index(row["name"]))
        steady = (self.played(STEADY, name), self.played(STEADY, "clairvoyant"))
        loaded = (self.played(LOAD, n) for n in (name, "replan_oracle", "clairvoyant"))
        rows = [
            *rows,
            self._coverage(name),
            *kpis.latency(self._decision_ms(name)),
            *kpis.robustness(ours, steady[0], (best, steady[1])),
            self._response(name),
            kpis.stability(*loaded),
        ]
        return [{"setting": self.setting, "weights": _weights(row["name"]), **row} for row in rows]

    def _coverage(self, name: str) -> dict:
        """The row on the Pareto front of the scored plans; a scheduler that takes no
        preference has one point."""
        shares, ratios, sizes = self._fronts_covered(name)
        infos = [stage.info for stage in self.stages]
        further = {
            "hypervolume_ratio": float(np.mean(ratios)) if len(shares) else None,
            "front_size": float(np.mean(sizes)) if len(shares) else None,
            "plans_scored": sum(info.plans_scored for info in infos),
            "plans_in_family": sum(info.plans_in_family for info in infos),
        }
        # The family is that of synchronous plans: of any plans, some are scored and none is counted.
        whole = self.setting == "synchronous" and all(
            info.exhaustive and info.plans_scored >= info.plans_in_family for info in infos
        )
        front = "exact front" if whole else "front of scored plans"
        if not len(shares):
            return entry(kpis.COVERAGE, front, None, **further)
        # What the preferences can ask for of the table is what clairvoyant comes to.
        return entry(kpis.COVERAGE, front, shares, self._fronts_covered(BEST)[0], **further)

    def _fronts_covered(self, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of each scenario's front [S, M] the share that a scheduler's points cover [%] and the ratio
        of the volumes, and [S] how many points it has; where nothing runs there is none."""
        shares, ratios, sizes = [], [], []
        for which, stage in enumerate(self.stages):
            points = self._points(which, name)
            own = front_rows(self.setting, stage, name, points[0, 0])
            self._trade_offs[name, which] = own
            for exact, of_seeds in zip(stage.fronts(), points, strict=True):
                if not len(exact):
                    continue
                sizes.append(len(exact))
                shares.append([100 * covered(exact, p, EPSILON).mean() for p in of_seeds])
                ratios.append([hypervolume_ratio(exact, p) for p in of_seeds])
        return np.array(shares), np.array(ratios), np.array(sizes)

    def _points(self, which: int, name: str) -> np.ndarray:
        """[S, M, W, 3] where a scheduler settles on one of the clusters, by preference."""
        asked = questions(self.config.asked) if self._takes_preferences(name) else (Asked(FAST),)
        stage = self.stages[which]
        return stage.points(self._everyone(stage, name), asked)

    def _takes_preferences(self, name: str) -> bool:
        """Are weights what it maximises or sees, so that each preference is another behaviour?"""
        if name in self.checkpoints:
            return bool(self.checkpoints[name].meta.get(CONDITIONED))
        return find(name).weighs

    def _decision_ms(self, name: str) -> np.ndarray:
        """[N] on the largest cluster."""
        return self._decisions_ms(name, self.config.decisions)

    def _first_decision(self, name: str) -> None:
        """What is timed later is compiled, while others play."""
        self._decisions_ms(name, 1)

    def _decisions_ms(self, name: str, count: int) -> np.ndarray:
        stage = self.stages[self._by_size[0]]
        one = self._everyone(stage, name)[0]
        return stage.scene(JITTER).decision_ms(one.scheduler, count)

    def _process(self, name: str) -> RespondingProcess:
        """One that responds on the largest cluster, in the world of this scoreboard, until `run` is
        done."""
        stage = self.stages[self._by_size[0]]
        folder = Path(self._processes.enter_context(tempfile.TemporaryDirectory()))
        stage.hand_over(folder / "world", self._everyone(stage, name)[0])
        process = RespondingProcess(handed_command(folder / "world"))
        self._processes.callback(process.close)
        return process

    def _response(self, name: str) -> dict:
        """The row on the responding process."""
        spec, count = self.stages[self._by_size[0]].spec, self.config.measurements
        taken = self._process(name).response_s(spec, count)
        return entry(kpis.RESPONSE, None, taken, statistic=kpis.percentile(99.0))

    @property
    def _by_size(self) -> list[int]:
        """The clusters, that of most domains first."""
        return sorted(range(len(self.stages)), key=lambda i: -self.stages[i].spec.n_domains)


def _weights(kpi: str) -> list[float] | None:
    """w that a KPI is stated for; None = a sweep over questions."""
    if kpi == kpis.COVERAGE.name:
        return None
    return list(THRIFTY if kpi == kpis.WAN_GB.name else FAST)
