"""The file of a plan that runs already: what is read, and what is refused in one line."""

import json

import numpy as np
import pytest

from experiments.common.running import check_job, read_running
from jaxsim.cluster.cluster import load_cluster
from jaxsim.files.errors import InputError
from jaxsim.plan import Plan
from jaxsim.workload import JobSpec, load_model

SPEC = load_cluster(None)


def fields(**changes):
    """Of one replica in every domain."""
    job = JobSpec(load_model("llama-7b"), 1024, 4096)
    plan = Plan.build(SPEC, job, [[name] for name in SPEC.domains])
    return {k: np.asarray(v).tolist() for k, v in vars(plan).items()} | changes


def written(tmp_path, body):
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(body))
    return str(file)


@pytest.mark.parametrize("wrap", [lambda x: {"fields": x}, lambda x: {"plan": {"fields": x}}])
def test_the_plan_of_an_answer_and_of_the_plan_command(tmp_path, wrap):
    told = fields()
    plan = read_running(written(tmp_path, wrap(told)), SPEC, "synchronous")
    assert {k: np.asarray(v).tolist() for k, v in vars(plan).items()} == told


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"plan": "a > b"}, "fields: expected those of"),
        ([1], "fields: expected those of"),
        (
            {"fields": fields(group=[0, 1])},
            "fields.group: expected 4 integers, as of a cluster of 4",
        ),
        ({"fields": fields(tp=[1, 2, 1, 0.5])}, "fields.tp: expected 4 integers"),
        ({"fields": fields(sync_period=[1])}, "fields.sync_period: expected one integer"),
        ({"fields": fields(group=[-1] * 4)}, "fields.group: no domain trains"),
        ({"fields": fields(sync_period=30)}, "every 30 steps.*--allow any"),
        ({"fields": fields(wire_bits=8)}, "in 8 bits.*--allow any"),
    ],
)
def test_what_is_no_plan_of_this_cluster_is_refused(tmp_path, body, says):
    file = written(tmp_path, body)
    with pytest.raises(InputError, match=says) as refused:
        read_running(file, SPEC, "synchronous")
    assert file in str(refused.value) and "\n" not in str(refused.value)


def test_local_sgd_is_taken_where_it_is_allowed(tmp_path):
    file = written(tmp_path, {"fields": fields(sync_period=30)})
    assert int(read_running(file, SPEC, "any").sync_period) == 30


def test_a_plan_of_another_job_is_refused_by_what_differs(tmp_path):
    plan = read_running(written(tmp_path, {"fields": fields()}), SPEC, "synchronous")
    check_job(plan, "plan.json", 32, 1024)
    with pytest.raises(InputError, match="a pipeline holds 32 layers; the model has 40"):
        check_job(plan, "plan.json", 40, 1024)
    with pytest.raises(InputError, match="1,024 sequences a step; the job has 512"):
        check_job(plan, "plan.json", 32, 512)
