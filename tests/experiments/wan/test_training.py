"""A plan file as jaxsim's plan and as the trainer's job; `hippo wan run`."""

import json
import subprocess
import sys
import time

import numpy as np
import pytest
from helpers.wan import host_state, needs_networks

from analysis.records import load
from ddp_bench.parallel.job import parse_job
from ddp_bench.parallel.plan import SCHEDULES
from experiments.cli import main
from experiments.wan.training import (
    TrainingOptions,
    job_spec,
    plan_of,
    read_plan,
    resolved_job,
    trained_plan,
)
from experiments.watch import plan_file
from jaxsim.cluster import load_cluster
from jaxsim.files import InputError
from jaxsim.plan import Plan, describe, whole_plan

SPEC = load_cluster()
OPTIONS = TrainingOptions()
JOB = job_spec(OPTIONS)
BOTH = {
    "groups": [["virginia", "ohio"], ["ireland"]],
    "layers": {"virginia": 1, "ohio": 3, "ireland": 4},
    "batch_share": [12, 4],
    "schedule": ["gpipe", "1f1b"],
    "wire_bits": 8,
    "sync_period": 4,
    "fragments": 2,
    "overlap": 1,
}


def test_a_description_becomes_a_job_that_the_trainer_reads():
    plan, trained = plan_of(BOTH, "plan", SPEC, JOB)
    job = parse_job(resolved_job(OPTIONS, SPEC, JOB, trained, "net"), "job")
    first, second = job.plan.pipelines
    assert [(d.domain, d.layers) for d in first.domains] == [("virginia", 1), ("ohio", 3)]
    assert (first.micro_batches, first.schedule) == (12, "gpipe")
    assert (second.micro_batches, second.schedule) == (4, "1f1b")
    assert (job.plan.sync_period, job.plan.wire_bits) == (4, 8)
    assert (job.plan.fragments, job.plan.overlap) == (2, 1)
    assert job.ranks == SPEC.domains and int(np.asarray(plan.sync_period)) == 4
    assert {d.domain for p in job.plan.pipelines for d in p.domains} < set(job.ranks)


def test_pipelines_as_commands_print_them_are_the_same_plan():
    plan, trained = plan_of(BOTH, "plan", SPEC, JOB)
    printed = {"plan": whole_plan(plan, SPEC.domains), "wire_bits": 8, "sync_period": 4}
    printed |= {"fragments": 2, "overlap": 1}
    again, trained_again = plan_of(printed, "plan", SPEC, JOB)
    for name in Plan.__dataclass_fields__:
        assert (np.asarray(getattr(again, name)) == np.asarray(getattr(plan, name))).all(), name
    assert trained_again == trained


def test_what_watch_writes_for_its_apply_command_is_the_same_plan():
    plan, trained = plan_of(BOTH, "plan", SPEC, JOB)
    file = plan_file(plan.replace(activation_bits=np.int32(16)), SPEC.domains)
    again, trained_again = plan_of(file, "plan", SPEC, JOB)
    for key in ("pipelines", "sync_period", "wire_bits"):
        assert trained_again[key] == trained[key]
    assert describe(again, SPEC.domains) == describe(plan, SPEC.domains)
    parse_job(resolved_job(OPTIONS, SPEC, JOB, file, "net"), "job")


def test_replicas_and_stages_inside_a_domain_get_ranks():
    body = {"groups": [["virginia", "ohio"]], "pp": {"virginia": 2, "ohio": 1}, "dp": 2}
    _, trained = plan_of(body, "plan", SPEC, JOB)
    ranks = resolved_job(OPTIONS, SPEC, JOB, trained, "net")["ranks"]
    assert [ranks.count(name) for name in SPEC.domains] == [4, 2, 1, 1]


def test_without_a_plan_every_domain_is_a_replica():
    plan, trained = read_plan(None, SPEC, JOB)
    assert len(trained["pipelines"]) == 4 and trained["wire_bits"] == 32
    assert {p["schedule"] for p in trained["pipelines"]} <= set(SCHEDULES)
    assert trained == trained_plan(plan, SPEC.domains, "plan")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ([], "expected a mapping"),
        ({"dp": 2}, "no groups; known: groups"),
        ({"groups": [["ohio"]], "zero": 1}, "unknown key 'zero'"),
        ({"groups": [["paris"]]}, "paris"),
        ({"groups": [["ohio"]], "schedule": "eager_1f1b"}, "schedule: expected one of gpipe"),
        (
            {"groups": [["ohio", "oregon"]], "layers": {"ohio": 1, "oregon": 1}},
            "hold 2 of 4 layers",
        ),
        ({"pipelines": [{"domains": [{"layers": 4}]}]}, "pipelines: expected a list of pipelines"),
        ({"pipelines": 3}, "pipelines: expected a list of pipelines"),
        ({"pipelines": [], "activation_bits": 8}, "activation_bits: real training"),
    ],
)
def test_a_wrong_plan_is_one_line_that_names_the_file(body, said, tmp_path):
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(body))
    with pytest.raises(InputError) as refusal:
        read_plan(str(file), SPEC, JOB)
    line = str(refusal.value)
    assert line.startswith(f"{file}: ") and said in line and "\n" not in line


def test_a_model_of_another_vocabulary_is_refused():
    with pytest.raises(InputError, match="vocab, ffn_matrices: expected 256 and 3"):
        job_spec(TrainingOptions(model="gpt2-small"))


@needs_networks
@pytest.mark.nightly
def test_training_over_an_emulated_network_is_recorded_and_leaves_nothing(tmp_path):
    before = host_state()
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"groups": [["virginia", "ohio"]], "batch_share": [4]}))
    out = tmp_path / "run"
    words = ["wan", "run", "--scale", "0.1", "--plan", str(plan), "--global_batch", "4"]
    assert main([*words, "--seq", "16", "--steps", "4", "--out", str(out)]) == 0
    assert host_state() == before
    record = load(out)
    links = record.table("links", ("step", "src", "dst", "sent_mb")).query("step > 0")
    sent = links.groupby(["src", "dst"])["sent_mb"].sum()
    # Four micro-batches of 16 tokens by 128 values of 4 bytes, each way, in three steps.
    assert sent["virginia", "ohio"] == pytest.approx(3 * 4 * 16 * 128 * 4e-6, rel=0.25)
    assert sent["ohio", "virginia"] == pytest.approx(3 * 4 * 16 * 128 * 4e-6, rel=0.25)
    assert sent["oregon", "ireland"] < 0.001
    assert record.summary["loss_last"] < record.summary["loss_first"]


def test_what_is_wrong_is_said_before_anything_is_made(tmp_path, capsys):
    full = tmp_path / "full"
    full.mkdir()
    (full / "a").touch()
    assert main(["wan", "run", "--scale", "0.1", "--out", str(full)]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert main(["wan", "run", "--scale", "0.1", "--plan", str(full / "none.json")]) == 2
    assert "cannot be read" in capsys.readouterr().err


@needs_networks
@pytest.mark.nightly
def test_a_run_that_is_killed_leaves_nothing(tmp_path):
    """kill -9 of the command: emulator, namespaces, launcher and ranks go down with it."""
    before, out = host_state(), tmp_path / "run"
    words = ["run", "--scale", "0.1", "--global_batch", "4", "--seq", "16", "--steps", "100000"]
    command = [sys.executable, "-m", "experiments.wan", *words, "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(lambda: "steps" in "".join(f.read_text() for f in out.glob("ranks/rank0.jsonl")), 120)
    assert host_state() != before
    process.kill()
    process.wait()
    wait_for(lambda: host_state() == before, 20)


def wait_for(condition, seconds):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)
