"""What plans cost: what budgets are shares of."""

from __future__ import annotations

import jax
import numpy as np

from jaxsim.env import EnvParams
from jaxsim.planning import PlanTable, base_view, usd_per_hour


def price_of_speed(params: EnvParams, table: PlanTable) -> float:
    """[USD/h] of the table's fastest plan at base, GPUs and egress, in one scenario."""
    return float(prices_of_rows(params, table)[int(np.argmax(table.base_rate))])


def prices_of_rows(params: EnvParams, table: PlanTable) -> np.ndarray:
    """[P] [USD/h] of the table's plans at base, GPUs and egress, in one scenario; infinite where one
    does not run."""
    problem = params.problem.job(0)
    prices = _prices(table.plans, base_view(problem.cluster), problem)
    return np.where(np.asarray(table.base_rate) > 0, np.asarray(prices), np.inf)


_prices = jax.jit(jax.vmap(usd_per_hour, (0, None, None)))
