"""A plan table made by hand for three domains of four GPUs: two pipelines that share a domain, and two
replicas that stand apart."""

import jax.numpy as jnp
from helpers.toy_world import make_plan

from jaxsim.planning.table import PlanTable
from jaxsim.trees import stack

ROWS = 3
PLANS = [
    make_plan([(0, 1)], [(4, 4)], [8], 3, dp=2, micro_batch=2),
    make_plan([(1, 2)], [(3, 5)], [8], 3, dp=2, micro_batch=2),
    make_plan([(2,), (0,)], [(8,), (8,)], [4, 4], 3, dp=2, micro_batch=2),
]
TABLE = PlanTable(
    plans=stack(PLANS),
    mask=jnp.ones(ROWS, bool),
    base_rate=jnp.ones(ROWS, jnp.float32),
    single_domain=jnp.zeros(ROWS, bool),
    even_split=jnp.zeros(ROWS, bool),
)
