"""Low-communication training, apart from the rest: a plan table and a clairvoyant of its own, and every
result under two assumptions on what a training step is then worth.

`default` is the lower end of what `jaxsim.learning` says; `no_loss` takes every step for a full one.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from agents.episodes import Episode, EpisodeMetrics
from agents.oracles import Truth
from agents.protocol import Scheduler
from agents.registry import names as scheduler_names
from agents.registry import plan_rules
from analysis.statistics import evaluation_summary
from experiments.common import load_world, progress, scheduler_table
from experiments.evaluate.evaluator import Evaluator, lost_pct
from experiments.evaluate.programs import true_setup
from jaxsim.plan import Plan, Problem
from jaxsim.step_time import communication

YARDSTICKS = ("clairvoyant", "best_static", "single_domain")  # shown beside, on the same table


@jax.jit
def _factors(table, params) -> jax.Array:
    """[S, P] what turns progress into training steps in each scenario."""

    def one(params):
        problem = true_setup(params, table).problem
        return worth(problem, table.plans, True)

    return jax.vmap(one)(params)


class ApartEvaluator(Evaluator):
    """An Evaluator that may take every training step for a full one."""

    no_loss = False

    def _static(self) -> tuple[EpisodeMetrics, Episode]:
        return self.play(self.static_scheduler("best_static"))

    def lose_nothing(self) -> None:
        """Solve the scenarios again, every step taken for a full one from now on."""
        self.no_loss = True
        self.truth = self._solved()
        self.clairvoyant = self.play(self.named("clairvoyant"))
        self.static = self._static()

    def static_scheduler(self, name: str) -> Scheduler:
        """A static scheduler that picks the row that brings most by what a step is worth."""
        plans, problem = self.world.table.plans, self.world.problem.job(0)
        factor = worth(problem, plans, jnp.asarray(self.no_loss))
        return self.named(name).replace(worth=factor)

    @functools.cached_property
    def _known(self) -> np.ndarray:
        """[S, T + 1, P, V] the table's rates for those who know what a token is worth."""
        return self._rates_along(self.taped, known=True)

    def _solved(self) -> Truth:
        if not self.no_loss:
            return self._solved_on(self._known)
        table = self.world.table
        factors = self._in_blocks(lambda params: _factors(table, params), (self.taped,))
        return self._solved_on(self._known * factors[:, None, :, None])

    def play(self, scheduler: Scheduler, weights=None) -> tuple[EpisodeMetrics, Episode]:
        metrics, episode = super().play(scheduler, weights)
        if self.no_loss:
            steps = (episode.record.progress / episode.record.cost.efficiency).sum(axis=(1, 2))
            metrics = metrics.replace(progress=steps)
        return metrics, episode


def worth(problem: Problem, plans: Plan, no_loss: jax.Array | bool) -> jax.Array:
    """[P] factor on the rates of plans [P, ...]: 1, or what turns progress into training steps."""
    how = jax.vmap(lambda plan: communication(plan, problem.work))(plans)
    efficiency = problem.learning.of(how)
    return jnp.where(jnp.asarray(no_loss), 1.0 / efficiency, jnp.ones_like(efficiency))


def played(names: list[str], config, settings, weights, traces) -> pd.DataFrame:
    """A row per setting, scheduler and scenario: the low-communication schedulers `names` on the
    scenarios that `config` (an EvaluateConfig) gives the others."""
    job = (config.cluster, config.model, config.global_batch, config.seq, config.table_size)
    sizes = {"domains": config.domains, "layout_limit": config.layout_limit}
    said = {"loaded": config.loaded, "efficiency": config.efficiency}
    rules = plan_rules(scheduler_names(low_communication=True))
    everyone, rows = names + list(YARDSTICKS), []
    with progress(desc="low communication", total=2 * len(everyone), unit="play") as bar:
        bar.set_postfix_str("its plans")
        _, world, _ = load_world(*job, rules, **sizes, **said)
        bar.set_postfix_str("clairvoyant")
        evaluator = ApartEvaluator(world, settings, range(config.seeds), "test", weights, **traces)
        bound = evaluator.bound()

        def play_all(setting: str) -> None:
            for name in everyone:
                bar.set_postfix_str(f"{name}, {setting}")
                rows.append(_rows(evaluator, name, bound).assign(setting=setting))
                bar.update()

        play_all("default")
        evaluator.lose_nothing()
        bound = np.full(config.seeds, np.nan)  # it counts by default alone
        play_all("no_loss")
    return pd.concat(rows, ignore_index=True)


def summaries(rows: pd.DataFrame) -> dict[str, dict]:
    """{setting: summary like that of the evaluation} of the rows that were `played`."""
    return {
        setting: evaluation_summary(of.drop(columns="setting"), None, 0.0)
        for setting, of in rows.groupby("setting")
    }


def _rows(evaluator: ApartEvaluator, name: str, bound: np.ndarray) -> pd.DataFrame:
    is_static = name != "clairvoyant"  # whose truth says what a step is worth
    one = evaluator.static_scheduler(name) if is_static else evaluator.named(name)
    metrics, _ = evaluator.play(one)
    frame = pd.DataFrame(vars(metrics)).replace([np.inf, -np.inf], np.nan)
    regret_pct = lost_pct(metrics.progress, evaluator.clairvoyant[0].progress)
    return frame.assign(
        scheduler=name,
        policy_seed=None,
        scenario=np.arange(len(frame)),
        headroom_pct=evaluator.headroom_pct,
        progress_rel=1.0 - regret_pct / 100.0,
        regret_pct=regret_pct,
        bound_pct=lost_pct(metrics.progress, bound),
    )


def tables(results: dict[str, dict]) -> str:
    """For the terminal."""
    said = {
        "default": "Low-communication training, a step worth what published runs say",
        "no_loss": "The same, every step taken for a full one",
    }
    return "\n".join(f"{said[k]}:\n{scheduler_table(v)}" for k, v in results.items())
