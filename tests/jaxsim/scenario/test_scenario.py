"""Scenarios: a seed and the name of a split are one world."""

import jax.numpy as jnp
import numpy as np
from helpers.toy_world import JOB, calibration, cluster_spec, lead, make_plan

from jaxsim.plan import Problem
from jaxsim.plan.plan import default_lower_choices
from jaxsim.planning.table import PlanTable
from jaxsim.scenario.scenario import ScenarioSettings, World, scenario_bank
from jaxsim.workload.workload import build_workload


def test_splits_whose_names_are_anagrams_are_different_worlds():
    plans = lead(make_plan([(0,)], [(8,)], [8], dp=2, micro_batch=2))
    yes = jnp.ones(1, bool)
    table = PlanTable(plans, yes, jnp.ones(1, jnp.float32), yes, ~yes)
    parts = (build_workload([JOB]), cluster_spec().to_arrays(), calibration())
    world = World(Problem(*parts, default_lower_choices()), table, plans)
    settings = ScenarioSettings(base_spread=0.25, horizon=4)

    def links(split):
        return np.asarray(
            scenario_bank(world, settings, range(3), split)[0].problem.cluster.bandwidth_gb_per_s
        )

    listen, silent = links("listen"), links("silent")
    off_diagonal = ~np.eye(listen.shape[-1], dtype=bool)
    assert (listen != silent)[:, off_diagonal].all()
    np.testing.assert_array_equal(listen, links("listen"))  # drawn alike in every process
    assert not np.array_equal(links("a"), links("b"))
