"""What plans cost: what budgets are shares of."""

from __future__ import annotations

import jax
import numpy as np

from jaxsim.files import InputError
from jaxsim.plan import Problem
from jaxsim.planning import PlanTable, base_view, usd_per_hour


def price_of_speed(problem: Problem, table: PlanTable) -> float:
    """[USD/h] of the table's fastest plan at base, GPUs and egress, for one job."""
    return float(prices_of_rows(problem, table)[int(np.argmax(table.base_rate))])


def check_budget(budget_usd_per_hour: float, problem: Problem, table: PlanTable) -> None:
    """Raises InputError where every plan of the table is dearer: to stand still would be best."""
    least = float(prices_of_rows(problem, table).min())
    if budget_usd_per_hour < least:
        raise InputError(
            f"budget: expected USD per hour >= {least:.2f}, the cheapest plan of the table, got "
            f"{budget_usd_per_hour:g}"
        )


def prices_of_rows(problem: Problem, table: PlanTable) -> np.ndarray:
    """[P] [USD/h] of the table's plans at base, GPUs and egress, for one job; infinite where one does
    not run."""
    prices = _prices(table.plans, base_view(problem.cluster), problem)
    return np.where(np.asarray(table.base_rate) > 0, np.asarray(prices), np.inf)


_prices = jax.jit(jax.vmap(usd_per_hour, (0, None, None)))
