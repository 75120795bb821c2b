"""A plan table made by hand for three domains of four GPUs: two pipelines that share a domain, and two
replicas that stand apart."""

import jax.numpy as jnp
import numpy as np
from helpers.toy_world import JOB, calibration, cluster_spec, env_params, make_plan

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


def restless_world(steps, restart_s):
    """A scenario of `steps` intervals for the table, whose links move a lot; the first plan is in force
    and a move stops the job for `restart_s`."""
    trace = np.exp(np.random.default_rng(6).normal(0, 0.8, (steps + 2, 3, 3))).astype(np.float32)
    return env_params(
        cluster_spec(3, gpus=4, gbps=2.0),
        JOB,
        PLANS[0],
        network={"trace": jnp.asarray(trace)},
        efficiency=calibration(restart_s=restart_s),
        horizon=jnp.int32(steps),
    )
