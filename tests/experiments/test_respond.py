"""A process that answers measurements with plans: what it says to good and to bad lines."""

import contextlib
import dataclasses
import io
import itertools
import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.plan_check import check_plan
from helpers.tiny_training import cached_world

from agents.hi_ppo.search import GuidedSearch
from experiments.evaluate import contestants, requested
from experiments.kpi.response import RespondingProcess, handed_command
from experiments.respond import __main__ as command
from experiments.respond import hand_over
from experiments.respond import responder as respond
from experiments.respond.config import RespondConfig
from experiments.respond.responder import at_every_measurement, make_responder, serve
from jaxsim.cluster.cluster import load_cluster
from jaxsim.files.errors import InputError
from jaxsim.plan.plan import empty_plan
from jaxsim.step_time import NetworkView, job_step_cost
from jaxsim.step_time.reconfiguration import migration_gb

pytestmark = [
    pytest.mark.slow,  # as a whole: its tests share what takes long to compile
    pytest.mark.usefixtures("scoring_is_optimised"),
]

DOMAINS = ("virginia", "ohio", "oregon", "ireland")


@pytest.fixture(scope="module")
def config():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(respond, "load_world", lambda *args, **_: cached_world(*args[:5]))
        yield RespondConfig("hysteresis", global_batch=256, table_size=6)


@pytest.fixture(scope="module")
def world():
    return cached_world(None, "llama-7b", 256, 4096, 6)[1]


def talk(config, *lines):
    """What a fresh process answers to the lines, its greeting first."""
    out = io.StringIO()
    serve(make_responder(config), io.StringIO("\n".join(lines) + "\n"), out)
    return [json.loads(line) for line in out.getvalue().splitlines()]


def domain(name, gpus):
    return json.dumps({"domain": name, "gpus_available": gpus})


def test_every_measurement_is_answered_by_a_plan_that_can_be_carried_out(config, world):
    lines = [domain("ohio", 0), domain("virginia", 0), domain("ohio", 8)]
    greeting, *answers = talk(config, *lines)
    assert greeting["ready"] and tuple(greeting["domains"]) == DOMAINS
    free = np.array([8, 8, 8, 8])
    for line, answer in zip(lines, answers, strict=True):
        told = json.loads(line)
        free[DOMAINS.index(told["domain"])] = told["gpus_available"]
        plan = empty_plan(4).replace(**{k: np.array(v) for k, v in answer["fields"].items()})
        # Nothing runs where no GPU is left; what runs is a whole plan, both levels decided.
        check_plan(plan, world.problem.work.job(0), free, DOMAINS)
        assert answer["decision_ms"] > 0
    assert "ohio" not in answers[0]["plan"] and "virginia" not in answers[1]["plan"]


def test_a_dead_link_moves_the_plan_off_it_and_nothing_new_moves_nothing(config):
    greeting = talk(config)[0]
    used = [n for n in DOMAINS if n in greeting["plan"]]
    assert len(used) > 1  # else there is no link to lose
    dead = [
        json.dumps({"src": a, "dst": b, "bandwidth_gbps": 0.001})
        for a in used
        for b in used
        if a != b
    ]
    same = json.dumps({"src": "ohio", "dst": "virginia", "rtt_ms": 11})
    first, *_, last = talk(config, same, *dead)[1:]
    assert first["plan"] == greeting["plan"] and first["switch"] is False
    assert last["plan"] != greeting["plan"]


def test_random_draws_anew_at_every_measurement(config):
    same = json.dumps({"src": "ohio", "dst": "virginia", "rtt_ms": 11})
    chance = dataclasses.replace(config, scheduler="random")
    plans = [answer["plan"] for answer in talk(chance, *[same] * 100)]
    moves = sum(a != b for a, b in itertools.pairwise(plans))
    assert 0 < moves < 30  # one in 20 in the mean


def test_a_plan_that_runs_already_is_in_force_and_left_only_for_a_reason(config, world, tmp_path):
    table = world.table
    rows = np.flatnonzero(np.asarray(table.mask & (table.base_rate > 0)))
    slowest = rows[np.argmin(np.asarray(table.base_rate)[rows])]
    plan = jax.tree.map(lambda x: np.asarray(x[slowest]), table.plans)
    file = tmp_path / "answer.json"
    file.write_text(
        json.dumps({"fields": {k: np.asarray(v).tolist() for k, v in vars(plan).items()}})
    )
    known = dataclasses.replace(config, running=str(file))
    greeting, answer = talk(known, domain("ohio", 8))
    assert greeting["reason"] == "This plan was running already." and not greeting["switch"]
    assert greeting["fields"] == json.loads(file.read_text())["fields"]
    # Nothing has changed: whatever is better is so by the plans alone, and pays for its switch.
    assert answer["switch"] and answer["gain_pct"] > 0 and answer["switch_s"] > 0
    best = greeting["fields"] | answer["fields"]
    file.write_text(json.dumps({"plan": {"fields": best}}))
    _, stays = talk(known, domain("ohio", 8))
    assert not stays["switch"]


FIGURES = ("step_s", "gain_pct", "switch_s", "switch_gb", "switch_usd")


def test_answers_say_what_the_plan_and_the_switch_come_to(config, world):
    """Against the simulator, asked directly."""
    greeting, stayed, moved = talk(
        config, '{"src": "ohio", "dst": "virginia", "rtt_ms": 11}', *[domain("ohio", 0)]
    )
    assert greeting["feasible"] and greeting["reason"] == "This is the first plan."
    assert greeting["switch_gb"] == 0  # nothing was anywhere yet
    assert (stayed["switch"], stayed["switch_s"], stayed["switch_gb"]) == (False, 0, 0)
    assert stayed["gain_pct"] == pytest.approx(0, abs=1e-3) and stayed["step_s"] > 0
    assert moved["switch"] and moved["gain_pct"] is None and "no longer run" in moved["reason"]
    problem = world.problem.job(0)
    old, new = (
        empty_plan(4).replace(**{k: jnp.array(v, jnp.int32) for k, v in a["fields"].items()})
        for a in (stayed, moved)
    )
    rtt_s = np.array(problem.cluster.rtt_s)
    rtt_s[DOMAINS.index("ohio"), DOMAINS.index("virginia")] = 0.011
    free = np.array([0 if name == "ohio" else 8 for name in DOMAINS], np.int32)
    links = problem.cluster.bandwidth_gb_per_s, jnp.array(rtt_s)
    view = NetworkView(*links, jnp.array(free))
    assert moved["step_s"] == pytest.approx(
        float(job_step_cost(new, problem, view).step_s), rel=1e-4
    )
    gb = np.array(migration_gb(old, new, problem.work))
    assert gb.sum() > 1 and moved["switch_gb"] == pytest.approx(gb.sum(), rel=1e-4)
    usd = (gb * np.array(problem.cluster.egress_usd_per_gb)).sum()
    assert moved["switch_usd"] == pytest.approx(usd, rel=1e-4)
    rate = np.array(problem.cluster.bandwidth_gb_per_s) * float(problem.calibration.wan_efficiency)
    wait_s = float(problem.calibration.restart_s) + (gb / np.maximum(rate, 1e-9)).max()
    assert moved["switch_s"] == pytest.approx(wait_s, rel=1e-4)


def test_without_any_gpu_no_plan_is_named_and_the_old_one_waits(config):
    """The job goes on where it was as soon as it can."""
    gone = [domain(name, 0) for name in DOMAINS]
    back = [domain(name, 8) for name in DOMAINS]
    _, *answers = talk(config, *gone, *back)
    nowhere, first_back, last = answers[3], answers[4], answers[-1]
    assert nowhere["feasible"] is False and nowhere["switch"] is False
    assert (
        nowhere["plan"] is None and nowhere["fields"] is None and "cannot run" in nowhere["reason"]
    )
    assert all(nowhere[name] in (None, 0) for name in FIGURES)
    assert first_back["feasible"] and last["feasible"] and last["plan"]


def test_a_time_stamp_comes_back_with_the_answer(config):
    lines = [
        '{"time": 12.5, "domain": "ohio", "gpus_available": 8}',
        '{"time": "2026-03-01T12:00:00Z", "src": "ohio", "dst": "oregon", "rtt_ms": 50}',
        '{"time": 3, "domain": "mars", "gpus_available": 8}',
        '{"time": [3], "domain": "ohio", "gpus_available": 8}',
        '{"time": NaN, "domain": "ohio", "gpus_available": 8}',
    ]
    _, seconds, text, refused, bad, nan = talk(config, *lines)
    assert seconds["time"] == 12.5 and text["time"] == "2026-03-01T12:00:00Z"
    assert seconds["plan"] and text["plan"]
    assert set(refused) == {"time", "error"} and refused["time"] == 3
    assert set(bad) == set(nan) == {"error"} and "time: expected" in bad["error"]


BAD_LINES = [
    ("{", "Expecting"),
    ("[1]", "expected one JSON object"),
    ('{"src": "ohio", "dst": "oregon"}', "bandwidth_gbps"),
    ('{"src": "ohio", "dst": "mars", "bandwidth_gbps": 1}', "known: virginia"),
    ('{"src": "ohio", "dst": "ohio", "bandwidth_gbps": 1}', "no link"),
    ('{"src": "ohio", "dst": "oregon", "bandwidth_gbps": 0}', "bandwidth_gbps"),
    ('{"src": "ohio", "dst": "oregon", "bandwidth_gbps": NaN}', "bandwidth_gbps"),
    ('{"src": ["ohio"], "dst": "oregon", "rtt_ms": 3}', "no domain"),
    ('{"src": "ohio", "dst": "oregon", "rtt_ms": 1' + 400 * "0" + "}", "too large"),
    (100_000 * "[", "recursion"),
    (domain("ohio", 9), "0 to 8"),
    (domain("ohio", 1.5), "whole number"),
    ('{"domain": "ohio", "gpus_available": true}', "whole number"),
    ('{"domain": "ohio", "gpus_available": 1, "more": 2}', "more"),
]


def test_a_line_that_cannot_be_used_is_answered_and_changes_nothing(config):
    _, *answers, good = talk(config, *(line for line, _ in BAD_LINES), domain("ohio", 8))
    for (line, named), answer in zip(BAD_LINES, answers, strict=True):
        assert set(answer) == {"error"} and named in answer["error"], line[:80]
    assert good["switch"] is False


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["--scheduler", "clairvoyant"], "truth"),
        (["--scheduler", "nobody"], "hysteresis"),
        (["--interval-s", "0"], "interval_s"),
        (["--cluster", "nowhere.yaml"], "nowhere.yaml"),
    ],
)
def test_bad_input_is_one_line(argv, named, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert command.main(argv) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1 and named in err


def test_what_a_process_remembers_goes_on_in_another_one(config):
    """A proposal changes nothing; what is restored decides as the first would have."""
    first, second = make_responder(config), make_responder(config)
    for line in (domain("ohio", 4), '{"src": "ohio", "dst": "oregon", "bandwidth_gbps": 0.3}'):
        first.answer(line)
    before = [x.tobytes() for x in first.snapshot()]
    proposal = first.propose()
    assert [x.tobytes() for x in first.snapshot()] == before
    second.restore(first.snapshot())
    assert [x.tobytes() for x in second.snapshot()] == before
    assert first.identity() == second.identity() and second.in_force == first.in_force
    again = second.propose()
    first.accept(proposal)
    second.accept(again)
    for key in set(proposal.answer) - {"decision_ms"}:
        assert proposal.answer[key] == again.answer[key], key
    assert [x.tobytes() for x in second.snapshot()] == [x.tobytes() for x in first.snapshot()]
    with pytest.raises(InputError, match="another scheduler"):
        second.restore(first.snapshot()[:-1])
    assert np.array_equal(first.plan.group, np.array(first.in_force["fields"]["group"]))


@pytest.mark.nightly
def test_a_process_in_a_world_that_was_handed_over_answers_as_any_other(config, tmp_path):
    here = make_responder(config)
    spec, world, _ = cached_world(None, "llama-7b", 256, 4096, 6)
    scheduler = contestants("hysteresis", {}, {}, world)[0].scheduler
    hand_over(tmp_path / "world", world, spec, scheduler, config.interval_s)
    command = handed_command(tmp_path / "world")
    lines = [domain("ohio", 0), domain("virginia", 0)]
    told = subprocess.run(
        command, input="\n".join(lines), capture_output=True, text=True, check=True
    )
    greeting, *answers = (json.loads(line) for line in told.stdout.splitlines())
    assert greeting["ready"] and greeting["plan"] == here.first["plan"]
    for line, answer in zip(lines, answers, strict=True):
        same = here.answer(line)
        assert answer["plan"] == same["plan"] and answer["fields"] == same["fields"]
        assert answer["step_s"] == pytest.approx(same["step_s"])


def test_a_policy_decides_at_every_measurement_and_with_a_look_ahead_anyway(world):
    _, checkpoints = requested("hi_ppo,hi_ppo+search")
    bare, ahead = (
        at_every_measurement(contestants(name, checkpoints, {}, world)[0].scheduler)
        for name in ("hi_ppo", "hi_ppo+search")
    )
    assert int(bare.every) == 1 and isinstance(ahead, GuidedSearch)


ECHO = """
import json, sys, time
print(json.dumps({"ready": True, "plan": "a"}), flush=True)
for n, line in enumerate(sys.stdin):
    body = json.loads(line)
    assert body["src"] != body["dst"] and body["bandwidth_gbps"] > 0
    time.sleep(0.05 if n == 3 else 0)
    print(json.dumps({"plan": "b"} if n < 8 else {"error": "no"}), flush=True)
"""


def test_the_response_of_a_process_is_timed_from_sending_to_receipt():
    command = [sys.executable, "-c", ECHO]
    with contextlib.closing(RespondingProcess(command)) as process:
        taken = process.response_s(load_cluster(), 8)
    assert taken.shape == (8,) and (taken > 0).all() and taken[3] >= 0.05
    with (
        contextlib.closing(RespondingProcess(command)) as process,
        pytest.raises(InputError, match="no plan"),
    ):
        process.response_s(load_cluster(), 9)
    with pytest.raises(InputError, match="no plan but nothing"):
        RespondingProcess([sys.executable, "-c", "raise SystemExit(1)"])
