"""What rivals lack by the orders that no menu holds: their plans at base, in every order.

Interleaved, ZB-H1 and greedy orders are timed operation by operation, and a lower choice is offered to
every plan of a table in every interval; so the menu has the closed ones alone. Here a few plans are
asked for once.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax import Array

from agents.protocol import Setup, prior_rates
from agents.registry import plan_rules, rivals_with_rules
from analysis.records import RunWriter
from experiments.common import load_world
from experiments.fidelity.config import FidelityConfig
from jaxsim.plan import PLAYED_SCHEDULES, LowerChoices, Schedule
from jaxsim.planning import PlanTable, base_view
from jaxsim.scenario import World

BEST = "best_static"  # who may play every row
TABLE_SIZE, INTERVAL_S = 48, 60.0


def orders(config: FidelityConfig) -> pd.DataFrame:
    """One row per rival: the seconds [s] of its fastest step at base by the menu's orders and by each
    of the others, and the share [%] of a step that is withheld from it; NaN where none runs."""
    rules = plan_rules(rivals_with_rules())
    asked = config.cluster, config.model, config.global_batch, config.seq, TABLE_SIZE
    _, world, _ = load_world(*asked, rules, layout_limit=config.layout_limit)
    setup = _setup_at_base(world)
    menu = setup.problem.choices
    plain = np.asarray(jax.jit(prior_rates)(setup))  # [P, V]
    settings = sorted(set(menu.settings))
    found = {order: _rates_in(setup, settings, order) for order in PLAYED_SCHEDULES}
    rows = []
    for name in (BEST, *rules):
        own = _allowed(world.table, name, menu.size)
        # A rival's micro-batches and recomputation are its own in any order.
        with_setting = [own[:, [s == of for s in menu.settings]].any(axis=1) for of in settings]
        step_s = _fastest_s(plain, own)
        others = [_fastest_s(rates, np.stack(with_setting, axis=1)) for rates in found.values()]
        # NaN where none runs: then nothing is withheld that is known.
        saved = 100.0 * (1.0 - np.fmin.reduce([step_s, *others]) / step_s)
        rows.append([name, step_s, *others, saved])
    columns = ["scheduler", "menu_s", *(f"{order.word}_s" for order in found), "withheld_pct"]
    return pd.DataFrame(rows, columns=columns)


def _setup_at_base(world: World) -> Setup:
    problem = world.problem.job(0)
    view = base_view(problem.cluster)
    return Setup(problem, world.table, view, jnp.float32(INTERVAL_S), gpus_vary=False)


def _rates_in(setup: Setup, settings: list[tuple[int, int]], order: Schedule) -> np.ndarray:
    """[P, N] training steps per second at base in an order, by micro-batch and recomputation."""
    choices = LowerChoices.of((size, recompute, order) for size, recompute in settings)
    table = setup.table.replace(pairs=None)
    own = setup.replace(problem=setup.problem.replace(choices=choices), table=table)
    return np.asarray(jax.jit(prior_rates)(own))


def _allowed(table: PlanTable, name: str, n_choices: int) -> np.ndarray:
    """[P, V] bool, what a rival may play."""
    if name == BEST:
        return np.broadcast_to(np.asarray(table.mask)[:, None], (table.size, n_choices))
    return np.asarray(table.candidates_of[name])


def _fastest_s(rates: np.ndarray | Array, allowed: np.ndarray) -> float:
    """[s] of the fastest step; NaN where none runs."""
    best = np.where(allowed, rates, 0.0).max(initial=0.0)
    return 1.0 / float(best) if best > 0 else np.nan


def compare_orders(config: FidelityConfig) -> None:
    """Compute, print the table, keep the records."""
    with RunWriter.create(
        "fidelity", dataclasses.asdict(config), config.seed, config.out
    ) as writer:
        table = orders(config)
        writer.write_table("orders", table)
        withheld = dict(zip(table["scheduler"], table["withheld_pct"], strict=True))
        writer.finish({"withheld_pct": {k: v for k, v in withheld.items() if np.isfinite(v)}})
    print("seconds of a step at base, in the best of the menu's orders and in others:")
    print(table.round(2).to_string(index=False, na_rep="-"))
