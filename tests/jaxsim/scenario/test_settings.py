"""Both settings of `allow` make worlds of one structure and one size, which share compiled programs."""

import jax
import numpy as np
import pytest
from helpers.toy_world import JOB, calibration, cluster_spec, make_plan

from jaxsim.load import SubmittedJob
from jaxsim.planning import PARTS, PlanRules
from jaxsim.scenario import build_jobs_world, build_world, world
from jaxsim.scenario.jobs import PAIRS_STEP, ROWS_STEP

SPEC = cluster_spec()


def nothing(builder, allowed):
    return []


@pytest.fixture(autouse=True)
def found(monkeypatch):
    """What the search of the whole space would take a while for."""
    seldom = make_plan([(0,), (1,)], [(8,), (8,)], [16, 16], dp=1, sync_period=30)
    searched = []

    def wide_plans(_, views, **__):
        searched.append(len(views.gpus_available))
        return [jax.tree.map(np.asarray, seldom)]

    monkeypatch.setattr(world, "wide_plans", wide_plans)
    return searched


def shapes(tree):
    return jax.tree.structure(tree), [np.shape(x) for x in jax.tree.leaves(tree)]


def test_one_job(found):
    rules, made = {"somebody": PlanRules(nothing, (0,), (0,))}, {}
    for allow in ("synchronous", "any"):
        built, info = build_world(
            SPEC, JOB, 24, calibration=calibration(), rules=rules, allow=allow
        )
        assert list(built.table.candidates_of) == ["somebody"]
        made[allow] = built.table, info.plans_in_table
    (one, count), (other, more) = made["synchronous"], made["any"]
    assert more == count + 1 and int(other.plans.sync_period.max()) == 30
    assert shapes(one) == shapes(other)
    assert found == [world.WIDE_VIEWS], "states in which the whole space is searched"


@pytest.mark.nightly
def test_many_jobs(found):
    jobs = [SubmittedJob("row 0", "toy", JOB)]
    one, other = (build_jobs_world(SPEC, jobs, 12, allow=a) for a in ("synchronous", "any"))
    assert int(other.tables.mask.sum()) > int(one.tables.mask.sum())
    assert one.tables.pairs is not None
    assert one.tables.mask.shape == (1, ROWS_STEP) and one.tables.pairs.shape == (1, PAIRS_STEP)
    assert shapes(one) == shapes(other)
    # The states are divided among the parts of the GPUs that domains have, as rows and layouts are.
    assert found == [-(-world.WIDE_VIEWS // len(PARTS))] * len(PARTS)
