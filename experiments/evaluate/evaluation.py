"""One evaluation, from checked inputs to tables and summary."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from tqdm import tqdm

from agents.baselines import FixedPlan
from agents.protocol import Scheduler, carry_out, find_row, make_setup, score_table
from agents.registry import Settings, default_settings, find, plan_rules
from analysis.records import RunWriter
from analysis.statistics import evaluation_summary
from experiments.common import (
    best_plan_text,
    check_budget,
    jobs_table,
    load_regions,
    load_world,
    make_room_for_programs,
    note_efficiency,
    parse_weights,
    progress,
    put_result,
    read_traces,
    scheduler_table,
    side_by_side,
    suite_table,
)
from experiments.evaluate import low_communication
from experiments.evaluate.alternatives import (
    alternatives,
    alternatives_rows,
    alternatives_text,
    suite_alternatives,
)
from experiments.evaluate.config import EvaluateConfig, recorded
from experiments.evaluate.contestants import (
    HERE,
    PLAN,
    Contestant,
    contestants,
    mixture_of,
    requested,
    rival_of,
    with_tuned_here,
)
from experiments.evaluate.evaluator import Evaluator, tune
from experiments.evaluate.inputs import check_inputs, fixed_plan
from experiments.evaluate.jobs import JobsEvaluation
from experiments.evaluate.suites import run_suite
from experiments.evaluate.tables import (
    Results,
    bound_rows,
    link_rows,
    scenario_rows,
    timeline_rows,
    traffic_rows,
)
from experiments.evaluate.trust import plan_trust, probabilities_best
from jaxsim.cluster import ClusterSpec
from jaxsim.env import EnvParams
from jaxsim.files import InputError
from jaxsim.plan import Plan, whole_plan
from jaxsim.planning import SAMPLED, Objective, PlanTable, base_view
from jaxsim.scenario import mean_view
from jaxsim.trees import take

TOGETHER = 6  # schedulers that play before what they did is kept, and their decisions are timed
Play = Callable[[str], tuple[Scheduler, dict[str, Any]]]  # as `Evaluation._play` for one name


class Evaluation:
    """One evaluation from checked inputs to records."""

    def __init__(self, config: EvaluateConfig):
        self.config = config
        self.weights = parse_weights(config.weights)
        limit = np.inf if config.budget is None else config.budget
        self.objective = Objective.of(self.weights, limit)
        names, self.checkpoints = requested(config.schedulers, config.checkpoint)
        apart = [n not in self.checkpoints and find(n).low_communication for n in names]
        self.names = [n for n, is_apart in zip(names, apart, strict=True) if not is_apart]
        self.apart = [n for n, is_apart in zip(names, apart, strict=True) if is_apart]
        self.mixture = mixture_of(self.checkpoints)
        self.settings = config.world_settings
        # A bad file is refused before anything is computed.
        self.settings.links()
        spec = load_regions(config.cluster, config.domains)
        self.traces = read_traces(config.trace, config.load, spec, self.settings.interval_s)
        plan = fixed_plan(config, spec)
        # Plans of those who do not play would cost everybody time.
        rules = plan_rules([name for name in self.names if name not in self.checkpoints])
        self.with_plans = list(rules)
        self.spec, self.world, self.info = load_world(
            *(config.cluster, config.model, config.global_batch, config.seq, config.table_size),
            rules,
            domains=config.domains,
            layout_limit=config.layout_limit,
            loaded=config.loaded,
            preferences=() if self.objective is None else (*SAMPLED, self.weights),
            efficiency=config.efficiency,
            allow=config.allow,
            running=plan,  # in the table, so that clairvoyant may play it too
        )
        if config.budget is not None:
            check_budget(config.budget, self.world.problem.job(0), self.world.table)
        if config.tuning_scenarios:
            self.names = with_tuned_here(self.names, self.mixture)
        self.fixed = None if plan is None else self._fixed(plan)
        if self.fixed is not None:
            self.names = [*self.names, PLAN]

    def _fixed(self, plan: Plan) -> FixedPlan:
        """Who plays the plan of --plan. Raises InputError where that cannot run."""
        row, _ = find_row(self.world.table, plan)
        known = {int(k) for k in self.world.problem.choices.schedules}
        used = plan.schedule[: plan.group.max() + 1]
        if float(self.world.table.base_rate[row]) <= 0.0 or not known >= set(used.tolist()):
            raise InputError(
                f"{self.config.plan}: fields: this plan cannot run on {self.spec.name}"
            )
        return FixedPlan(jax.tree.map(jnp.asarray, plan))

    def evaluator(self, count: int, split: str) -> Evaluator:
        about = {**self.traces, "objective": self.objective}
        return Evaluator(self.world, self.settings, range(count), split, self.weights, **about)

    def run(self, writer: RunWriter) -> dict:
        """Play everybody whom the run folder does not know yet, return the summary."""
        results = Results(writer)
        make_room_for_programs(most=0.5)  # beside threads there is no more of it
        with progress(total=3 + len(self.names), desc="evaluate", unit="part", leave=None) as bar:
            bar.set_postfix_str("solving the scenarios, tuning the rivals")
            (evaluator, bound), tuned, apart = self._prepared(results)
            bar.update(3)
            which = liveliest(evaluator, self.config.threshold_pct)
            interval_s = self.settings.interval_s
            results.once("links", lambda: link_rows(evaluator, which, self.spec, interval_s))
            left = [name for name in self.names if name not in results.done]
            bar.update(len(self.names) - len(left))
            play = partial(self._play, tuned, evaluator, bound, which)
            for start in range(0, len(left), TOGETHER):
                self._play_together(left[start : start + TOGETHER], play, evaluator, results, bar)
        summary = self._summary(results, evaluator, tuned)
        return summary if apart is None else {**summary, "low_communication": apart}

    def _prepared(
        self, results: Results
    ) -> tuple[tuple[Evaluator, np.ndarray], Settings, dict | None]:
        """The test scenarios and their bound, the tuned rivals, and who plays apart: rivals are tuned
        in this thread, where an interruption spares those that are left."""
        with ThreadPoolExecutor(1) as beside:
            solved = beside.submit(self._solved, results)
            apart = beside.submit(self._low_communication, results)
            try:
                tuned = self._tuned(results)
                return solved.result(), tuned, apart.result()
            except BaseException:
                apart.cancel()
                raise

    def _solved(self, results: Results) -> tuple[Evaluator, np.ndarray]:
        """The test scenarios, and the bound of each [S]."""
        evaluator = self.evaluator(self.config.seeds, "test")
        bounds = results.once("bounds", lambda: bound_rows(evaluator))
        return evaluator, bounds["bound_steps"].to_numpy()

    def _tuned(self, results: Results) -> Settings:
        """The settings of the rivals, tuned on training scenarios where there are some."""

        def make() -> pd.DataFrame:
            tuned = default_settings()
            if self.config.tuning_scenarios:
                others = (PLAN, *self.checkpoints)
                rivals = dict.fromkeys(rival_of(n) for n in self.names if n not in others)
                train = self.evaluator(self.config.tuning_scenarios, "train")
                tuned = tune([train], list(rivals))
            return pd.DataFrame([tuned])

        return results.once("tuned", make).to_dict("records")[0]

    def _play_together(
        self, names: list[str], play: Play, evaluator: Evaluator, results: Results, bar: tqdm
    ) -> None:
        """Play some side by side, time their decisions while nothing else runs, and keep it all."""
        found: dict[str, tuple[Scheduler, dict[str, Any]]] = {}

        def one(name: str) -> None:
            bar.set_postfix_str(name)
            found[name] = play(name)
            bar.update()

        try:
            side_by_side([partial(one, name) for name in names], make_room_for_programs)
        finally:  # who was done when another one was interrupted need not play again
            for name in filter(found.__contains__, names):
                scheduler, rows = found[name]
                results.add({**rows, "decisions": _decisions(name, scheduler, evaluator)})

    def _alternatives(self, evaluator: Evaluator) -> dict:
        """The best synchronous plan and the best of any, at base links and mean load."""
        problem = self.world.problem.job(0)
        free = mean_view(take(evaluator.params, 0)).gpus_available
        view = base_view(problem.cluster).replace(gpus_available=free)
        return alternatives(self.spec, problem, view)

    def _play(
        self, tuned: Settings, evaluator: Evaluator, bound, which: int, name: str
    ) -> tuple[Scheduler, dict[str, Any]]:
        """One scheduler, and its rows of all tables but `decisions`: the first policy seed's timeline
        stands for all."""
        settings = tuned if name.endswith(HERE) else {**tuned, **self.mixture}
        if name == PLAN and self.fixed is not None:
            everyone = [Contestant(None, self.fixed)]
        else:
            everyone = contestants(name, self.checkpoints, settings, self.world)
        played = [evaluator.play(one.scheduler) for one in everyone]
        scenarios = [
            scenario_rows(name, one.policy_seed, metrics, evaluator, bound)
            for one, (metrics, _) in zip(everyone, played, strict=True)
        ]
        episode, interval_s = played[0][1], self.settings.interval_s
        scheduler = everyone[0].scheduler
        evaluator.decision_ms(scheduler, calls=0)  # compiles
        return scheduler, {
            "timeline": timeline_rows(name, episode, which, self.spec, interval_s),
            "traffic": traffic_rows(name, episode, self.spec),
            "scenarios": pd.concat(scenarios),
        }

    def _summary(self, results: Results, evaluator: Evaluator, tuned: Settings) -> dict:
        threshold_pct = self.config.threshold_pct
        if not np.any(evaluator.headroom_pct >= threshold_pct):
            # Not on standard output, which may be for the JSON alone.
            remark = f"no scenario has {threshold_pct:g} % headroom: all are compared"
            if np.isnan(evaluator.headroom_pct).all():
                remark = "no plan can run in any scenario: there is nothing to compare"
            tqdm.write(remark, file=sys.stderr)
            threshold_pct = 0.0
        summary = evaluation_summary(
            results["scenarios"],
            results["decisions"],
            threshold_pct,
            learned=tuple(self.checkpoints),
        )
        summary["scenario"] = {
            "cluster": self.spec.name,
            "efficiency": note_efficiency(self.spec),
            "domains": list(self.spec.domains),
            "model": self.config.model,
            "weights": list(self.weights),
            "budget": self.config.budget,
            "allow": self.config.allow,
            "token_efficiency": self.config.efficiency,
            "trace": self.config.trace,
            "load": self.config.load,
            "seeds": self.config.seeds,
            "settings": dataclasses.asdict(self.settings),
            "tuned": dict(tuned),
            "tuned_on_mixture": self.mixture,
            "nominated": self.with_plans,
            "table": {**dataclasses.asdict(self.info), "bound_over": evaluator.n_bounding},
        }
        last = {
            "best_plan": partial(best_plan, evaluator, self.spec),
            "alternatives": partial(self._alternatives, evaluator),
        }
        summary |= dict(zip(last, side_by_side(list(last.values())), strict=True))
        results.once("alternatives", lambda: alternatives_rows({self.spec.name: summary}))
        return summary

    def _low_communication(self, results: Results) -> dict | None:
        """What they did who play apart, if there are any."""
        if not self.apart:
            return None
        args = (self.apart, self.config, self.settings, self.weights, self.traces)
        rows = results.once("low_communication", lambda: low_communication.played(*args))
        return low_communication.summaries(rows)


def _decisions(name: str, scheduler: Scheduler, evaluator: Evaluator) -> list[dict]:
    """The row of the table of decisions: their time while nothing else runs."""
    p50, p99 = np.percentile(evaluator.decision_ms(scheduler), (50, 99))
    return [{"scheduler": name, "decision_ms_p50": p50, "decision_ms_p99": p99}]


TIE = 0.05  # probability of being best from which another plan is a near tie


def best_plan(evaluator: Evaluator, spec: ClusterSpec) -> dict | None:
    """The plan of the table that trains fastest at the lower end of its band, on the links as the
    cluster file states them and at the configured mean load, with the lower choice that suits it best;
    its band, what casts doubt on it, and the plans that may as well be the best one. None where none
    can run."""
    world, params = evaluator.world, take(evaluator.params, 0)
    problem = params.problem.replace(cluster=world.problem.cluster)
    params = params.replace(problem=problem, objective=None)
    tokens_per_s, plans = jax.tree.map(np.asarray, _table_at_base(params, world.table))
    if not (tokens_per_s > 0).any():
        return None
    job = problem.job(0)
    trust = [
        plan_trust(spec, job, take(plans, i), float(x)) if x > 0 else {"tokens_per_s_lo": 0.0}
        for i, x in enumerate(tokens_per_s)
    ]
    lowest = np.array([one["tokens_per_s_lo"] for one in trust])
    chance = probabilities_best(tokens_per_s, lowest)

    def said(i: int) -> dict:
        about = {"probability_best": float(chance[i]), **trust[i]}
        pipelines = whole_plan(take(plans, i), spec.domains)
        return {"tokens_per_s": float(tokens_per_s[i]), **about, "pipelines": pipelines}

    best = int(np.argmax(lowest))
    ties = [int(i) for i in np.argsort(-chance, kind="stable") if chance[i] >= TIE and i != best]
    return {**said(best), "near_ties": [said(i) for i in ties]}


@jax.jit
def _table_at_base(params: EnvParams, table: PlanTable) -> tuple[jax.Array, Plan]:
    """[P] tokens per second of the rows at base, 0 where they cannot run, and their plans [P, ...]."""
    setup = make_setup(params, table)
    best = score_table(setup, setup.prior)

    def one(row, choice):
        return take(carry_out(setup, row, choice, setup.prior), 0)

    rows = jnp.arange(table.size, dtype=jnp.int32)
    tokens_per_s = jnp.where(table.mask, best.rate, 0.0) * setup.problem.work.tokens_per_step
    return tokens_per_s, jax.vmap(one)(rows, best.choice)


def liveliest(evaluator: Evaluator, threshold_pct: float) -> int:
    """The scenario for the timeline: of those that enter the comparison (or of all, if none does)
    the one in which clairvoyant re-plans most, where a reader sees decisions."""
    enters = evaluator.headroom_pct >= threshold_pct
    replans = evaluator.clairvoyant[0].replans
    return int(np.argmax(np.where(enters, replans, -1.0) if enters.any() else replans))


def run_evaluation(config: EvaluateConfig) -> tuple[dict, Path]:
    """Evaluate, or go on where `config.resume` stopped; returns the summary and the run folder.

    Raises InputError, RecordError, KeyboardInterrupt.
    """
    one_job = config.jobs is None
    kind, make = ("evaluate", Evaluation) if one_job else ("evaluate_jobs", JobsEvaluation)
    folder = config.resume or config.out
    resume = config.resume is not None
    RunWriter.check(kind, folder, resume)
    evaluation = make(config)
    with RunWriter.create(kind, recorded(config), config.seeds, folder, resume) as writer:
        try:
            summary = evaluation.run(writer)
        except KeyboardInterrupt:
            tqdm.write(f"interrupted; go on with --resume {writer.dir}", file=sys.stderr)
            raise
        writer.finish(summary)
    return summary, writer.dir


def evaluate(config: EvaluateConfig, given: list[str]) -> None:
    """Evaluate one scene or a suite of them and say where the records are; `given` are the keys
    that the command line set. Raises InputError, RecordError, KeyboardInterrupt."""
    if config.suite is not None:
        summary, folder = run_suite(config, given, run_evaluation, check_inputs)
        text = suite_table(summary) + suite_alternatives(summary["scenes"])
    elif config.jobs is not None:
        summary, folder = run_evaluation(config)
        text = jobs_table(summary)
    else:
        summary, folder = run_evaluation(config)
        text = scheduler_table(summary)
        text += best_plan_text(summary["best_plan"])
        text += alternatives_text(summary["alternatives"])
        if "low_communication" in summary:
            text += low_communication.tables(summary["low_communication"])
    if put_result(summary, config.json):
        print(text)
        print(f"run folder: {folder}")
