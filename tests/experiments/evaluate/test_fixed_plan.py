"""`hippo evaluate --plan`: a plan plays as it was told, and takes as long as was predicted."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.baselines import FixedPlan
from analysis.records import load
from experiments.cli import main
from jaxsim.cluster import load_cluster
from jaxsim.plan import Plan
from jaxsim.workload import JobSpec, load_model

JOB = ["--model", "gpt2-medium", "--global_batch", "64", "--seq", "1024"]
SMALL = ["--table_size", "4", "--layout_limit", "30", "--seeds", "2", "--steps", "20"]
SMALL += ["--tuning_scenarios", "0", "--schedulers", "best_static"]
STILL = ["--jitter", "none", "--scenario.base_spread", "0"]


def test_nothing_of_a_fixed_plan_is_chosen_anew():
    spec = load_cluster()
    job = JobSpec(load_model("gpt2-medium"), 64, 1024)
    plan = Plan.build(spec, job, [[name] for name in spec.domains])
    scheduler = FixedPlan(jax.tree.map(jnp.asarray, plan)).bind(None)
    played, memory = scheduler.decide(jax.random.key(0), None, scheduler.init(jax.random.key(1)))
    assert memory == ()
    for name, value in vars(plan).items():
        assert np.array_equal(np.asarray(getattr(played, name)), np.asarray(value)[None]), name


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """The file of a plan for a setting, and what is in it."""
    folder, made = tmp_path_factory.mktemp("plans"), {}

    def of(allow):
        if allow not in made:
            file, out = folder / f"{allow}.json", folder / allow
            line = ["plan", *JOB, "--quick", "--allow", allow, "--json", str(file)]
            assert main([*line, "--out", str(out)]) == 0
            made[allow] = file
        return str(made[allow]), json.loads(made[allow].read_text())

    return of


@pytest.mark.nightly
@pytest.mark.parametrize("allow", ["synchronous", "any"])
def test_a_step_of_the_plan_takes_what_was_predicted(allow, told, tmp_path):
    file, result = told(allow)
    out = tmp_path / "run"
    line = ["evaluate", *JOB, *SMALL, *STILL, "--plan", file, "--allow", allow]
    assert main([*line, "--out", str(out)]) == 0
    rows = load(out).table("scenarios")
    assert set(rows["scheduler"]) == {"best_static", "plan"}
    played = rows[rows["scheduler"] == "plan"]
    np.testing.assert_allclose(played["step_s"], result["step_s"], rtol=1e-3)
    assert (played["replans"] == 0).all()
    # Clairvoyant may play it too.
    assert (played["regret_pct"] > -0.1).all()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"global_batch": "128"}, "64 sequences a step; the job has 128"),
        ({"model": "gpt2-small"}, "a pipeline holds 24 layers; the model has 12"),
        ({"cluster": "eight-aws-regions"}, "as of a cluster of 8 domains"),
    ],
    ids=lambda x: str(x),
)
def test_a_plan_of_something_else_is_one_line(changes, said, tmp_path, capsys):
    spec = load_cluster()
    plan = Plan.build(spec, JobSpec(load_model("gpt2-medium"), 64, 1024), [["ohio"]])
    fields = {name: np.asarray(value).tolist() for name, value in vars(plan).items()}
    file, out = tmp_path / "plan.json", tmp_path / "run"
    file.write_text(json.dumps({"fields": fields}))
    asked = {"model": "gpt2-medium", "global_batch": "64", "seq": "1024", **changes}
    words = [word for key, value in asked.items() for word in (f"--{key}", value)]
    assert main(["evaluate", *words, "--plan", str(file), "--out", str(out)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line and not out.exists()


def test_a_plan_does_not_go_with_many_jobs(capsys):
    assert main(["evaluate", "--jobs", "jobs.csv", "--plan", "plan.json"]) == 2
    assert "plan: cannot be set with --jobs" in capsys.readouterr().err
