"""What the plan of most progress costs: what budgets are shares of."""

from __future__ import annotations

import jax
import numpy as np

from jaxsim.env import EnvParams
from jaxsim.planning import PlanTable, base_view, usd_per_hour
from jaxsim.trees import take


def price_of_speed(params: EnvParams, table: PlanTable) -> float:
    """[USD/h] of the table's fastest plan at base, GPUs and egress, in one scenario."""
    problem = params.problem.job(0)
    plan = take(table.plans, int(np.argmax(table.base_rate)))
    return float(jax.jit(usd_per_hour)(plan, base_view(problem.cluster), problem))
