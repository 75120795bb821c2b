"""End to end: the scene that is played, and the stretch of a trace that is chosen."""

import numpy as np
import pandas as pd
import pytest
import yaml

from analysis.records import RunWriter
from experiments.cli import main
from experiments.wan.protocol import Condition
from experiments.wan.runs import steps_done
from experiments.wan.scene import SHIPPED, busiest, read_scene
from experiments.wan.times import Fitted, Times
from experiments.wan.training import TrainingOptions, job_spec, plan_of
from jaxsim.files import InputError
from jaxsim.plan import Schedule
from jaxsim.step_time import NetworkView


def test_the_scene_that_ships_is_read():
    scene = read_scene(SHIPPED)
    assert scene.seconds == scene.rows * scene.row_s and "hi_ppo" in scene.schedulers


def test_the_stretch_is_the_one_in_which_links_move_most():
    factors = np.ones((12, 2, 2), np.float32)
    factors[6:9, 0, 1] = (0.5, 1.5, 0.5)
    assert busiest(factors, 3) == 6


@pytest.mark.parametrize(
    ("change", "said"),
    [({"rows": 0}, "rows: expected"), ({"model": 3}, "model: expected"), ({"x": 1}, "x")],
)
def test_a_wrong_scene_is_one_line(change, said, tmp_path):
    file = tmp_path / "scene.yaml"
    file.write_text(yaml.safe_dump({**yaml.safe_load(SHIPPED.read_text()), **change}))
    with pytest.raises(InputError) as refusal:
        read_scene(file)
    assert said in str(refusal.value) and str(file) in str(refusal.value)


def test_steps_count_from_the_moment_at_which_the_trace_began_anew():
    """Steps of 2 s. The trace begins anew 1.5 s before the end of step 1: three quarters of it count,
    and nothing of step 0. Ranks that say the same twice count once."""
    at = [5.0, 1.5, 3.5, 5.5]
    steps = pd.DataFrame({"step": np.arange(4), "wall_s": 2.0})
    links = pd.DataFrame({"step": np.arange(4), "at_s": at})
    links = pd.concat([links, links]).sort_values("step", kind="stable")
    ends = np.array([1.5, 3.5, 4.5])
    assert steps_done(links, steps, ends) == pytest.approx([0.75, 1.75, 2.25])
    # Step 0 ended just after the trace began anew: hardly anything of it was done since then.
    late = pd.DataFrame({"step": np.arange(3), "at_s": [0.02, 2.02, 4.02]})
    assert steps_done(late, steps, np.array([4.02])) == pytest.approx([2.01])


def study_folder(tmp_path, rows):
    with RunWriter.create("wan_study", {}, 0, str(tmp_path / "study")) as writer:
        writer.write_table("fit", pd.DataFrame(rows, columns=["what", "value"]))
        writer.finish({})
    return str(tmp_path / "study")


FIT = [
    *(
        ("layer_s", 0.01),
        ("at_once_s", 0.01),
        ("restart_s", 0.3),
        ("trips of a change of plan", 4.0),
    ),
    *(("share of messages of 1f1b", 1.0), ("trips of messages of 1f1b", 1.0)),
]


def test_times_are_those_of_messages_as_a_study_found_them(tmp_path):
    """Two stages of two layers, four micro-batches of two sequences: (M + 1) times what a stage
    computes for one and a round trip; a change of plan takes its restart."""
    cluster = Condition("far", 900.0, 100.0).cluster(("a", "b"))
    job = job_spec(TrainingOptions(global_batch=8, seq=16))
    plan, _ = plan_of({"groups": [["a", "b"]], "micro_batch": 2}, "plan", cluster, job)
    times = Times(cluster, job, Fitted.of(study_folder(tmp_path, FIT)), alone_s=8 * 4 * 0.01)
    arrays = cluster.to_arrays()
    view = NetworkView(arrays.bandwidth_gb_per_s, arrays.rtt_s, arrays.gpus)
    assert times.step_s(plan, view) == pytest.approx(5 * (2 * 2 * 0.01 + 0.1), rel=0.03)
    assert times.switch_s(plan, plan, 9.9) == pytest.approx(0.3, rel=1e-3)


def test_a_schedule_that_torch_lacks_takes_as_long_as_what_is_trained_in_its_place(tmp_path):
    """Eager 1F1B trains as GPipe: the study's numbers of GPipe are its own, those of 1F1B are not."""
    cluster = Condition("far", 900.0, 100.0).cluster(("a", "b"))
    job = job_spec(TrainingOptions(global_batch=8, seq=16))
    gpipe = [("share of messages of gpipe", 1.0), ("trips of messages of gpipe", 3.0)]
    times = Times(cluster, job, Fitted.of(study_folder(tmp_path, [*FIT, *gpipe])), 8 * 4 * 0.01)
    arrays = cluster.to_arrays()
    view = NetworkView(arrays.bandwidth_gb_per_s, arrays.rtt_s, arrays.gpus)
    body = {"groups": [["a", "b"]], "micro_batch": 2}
    plan, _ = plan_of({**body, "schedule": "gpipe"}, "plan", cluster, job)
    eager = plan.replace(schedule=np.full_like(plan.schedule, Schedule.EAGER_1F1B))
    plain = plan.replace(schedule=np.full_like(plan.schedule, Schedule.ONE_F_ONE_B))
    assert times.step_s(eager, view) == times.step_s(plan, view) > 1.5 * times.step_s(plain, view)


def test_a_folder_without_a_fit_is_one_line(tmp_path):
    with pytest.raises(InputError, match="no 'restart_s'"):
        Fitted.of(study_folder(tmp_path, FIT[:2]))


def test_without_the_capability_it_is_skipped(monkeypatch, capsys):
    monkeypatch.setattr("experiments.wan.start.reason_missing", lambda: "no such power")
    assert main(["wan", "end-to-end", "--trace", "any.csv"]) == 0
    assert capsys.readouterr().out == "skipped: no such power\n"


def test_a_trace_must_be_named(capsys):
    assert main(["wan", "end-to-end"]) == 2
    assert "--trace" in capsys.readouterr().err
