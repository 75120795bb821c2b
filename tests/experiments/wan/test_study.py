"""A study of sim-to-real: its protocol, what is fitted, what is said about errors."""

import json

import numpy as np
import pandas as pd
import pytest
import yaml
from helpers.wan import host_state, needs_networks

from analysis.records import load
from experiments.cli import main
from experiments.wan.predict import OUTER, PRIOR, RINGS, Case, Fit, Predictor
from experiments.wan.protocol import SHIPPED, Condition, Outage, read_protocol
from experiments.wan.study import _subject, summary
from experiments.wan.training import TrainingOptions, job_spec, plan_of
from jaxsim.files import InputError
from jaxsim.network import read_network_trace

PROTOCOL = read_protocol(SHIPPED)
OPTIONS = TrainingOptions(global_batch=PROTOCOL.global_batch, seq=PROTOCOL.seq)
JOB = job_spec(OPTIONS)


def test_protocols_that_ship_are_read_and_their_plans_can_be_trained():
    for file in (SHIPPED, SHIPPED.with_name("quick.yaml")):
        protocol = read_protocol(file)
        spec = protocol.conditions[0].cluster(protocol.domains)
        for name, body in protocol.plans.items():
            plan_of(body, name, spec, JOB)
    assert sum(c.calibrate for c in PROTOCOL.conditions) < len(PROTOCOL.conditions) / 2


def test_a_deeper_model_has_deeper_stages_and_takes_twice_as_long():
    plans = PROTOCOL.plans_of(2)
    assert plans["pipeline_1f1b"]["layers"] == {"a": 2, "b": 4, "c": 2}
    assert PROTOCOL.plans["pipeline_1f1b"]["layers"] == {"a": 1, "b": 2, "c": 1}
    spec, fit = Condition("fast", 1e5, 0.0).cluster(PROTOCOL.domains), Fit(0.01, 0.01, {}, {})
    seconds = []
    for deeper in (1, 2):
        of = _subject(PROTOCOL, JOB, deeper, spec)
        seconds.append(of.predictor.predict(Case(of.plans["pipeline_gpipe"], spec), fit))
        assert of.job.model.layers == deeper * JOB.model.layers
    assert seconds[1] == pytest.approx(2 * seconds[0], rel=1e-3)


def test_a_condition_is_a_cluster_and_a_trace(tmp_path):
    slow = Condition("one", 400.0, 30.0, jitter=0.3, slow=("a", "b", 0.25))
    spec = slow.cluster(("a", "b", "c"))
    assert spec.bandwidth_gbps[0, 1] == pytest.approx(0.1)
    assert spec.bandwidth_gbps[1, 0] == pytest.approx(0.4)
    assert spec.rtt_ms[2, 0] == 30.0 and slow.trace(("a", "b"), 0) == slow.trace(("a", "b"), 0)
    (tmp_path / "t.csv").write_text(slow.trace(spec.domains, 0))
    factors = read_network_trace(tmp_path / "t.csv", spec, 1.0)
    links = factors[:, ~np.eye(3, dtype=bool)]
    assert 0.69 < links.min() < 0.75 and 1.25 < links.max() < 1.31
    assert Condition("still", 1.0, 1.0).trace(("a", "b"), 0) is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"steps": 0}, "steps: expected"),
        ({"plans": []}, "plans: expected a mapping"),
        ({"families": {"x": ["diloco"]}}, "families: expected every plan once"),
        ({"conditions": [{"name": "A b", "rate_mbps": 5, "rtt_ms": 5}]}, "conditions[0].name"),
        (
            {"conditions": [{"name": "a", "rate_mbps": 5, "rtt_ms": 5}]},
            "conditions: expected some with calibrate: true, and some without",
        ),
        (
            {
                "conditions": [
                    {
                        **{"name": "a", "rate_mbps": 5, "rtt_ms": 5},
                        "outage": {
                            "src": "a",
                            "dst": "b",
                            "factor": 0.1,
                            "every_s": 1,
                            "lasts_s": 1,
                        },
                    }
                ]
            },
            "conditions[0].outage.every_s: expected 0.5 s more than lasts_s",
        ),
        (
            {
                "conditions": [
                    {"name": "a", "rate_mbps": 5, "rtt_ms": 5, "calibrate": True, "deeper": 2},
                    {"name": "b", "rate_mbps": 5, "rtt_ms": 5},
                ]
            },
            "conditions: expected deeper: 1 where calibrate is true",
        ),
        ({"extra": 1}, "extra"),
    ],
)
def test_a_wrong_protocol_is_one_line(change, said, tmp_path):
    file = tmp_path / "protocol.yaml"
    file.write_text(yaml.safe_dump({**yaml.safe_load(SHIPPED.read_text()), **change}))
    with pytest.raises(InputError) as refusal:
        read_protocol(file)
    assert said in str(refusal.value) and str(file) in str(refusal.value)


def cases(*plans):
    for condition in PROTOCOL.conditions[:3]:
        spec = condition.cluster(PROTOCOL.domains)
        for name in plans:
            yield Case(plan_of(PROTOCOL.plans[name], name, spec, JOB)[0], spec)


@pytest.mark.nightly
def test_a_fit_finds_the_numbers_that_made_the_times():
    predictor = Predictor(JOB)
    truth = {RINGS: (0.7, 3.0), OUTER: (0.5, 4.0), "messages of gpipe": (0.6, 1.2)}
    fit = Fit(0.005, 0.005, *({k: v[i] for k, v in truth.items()} for i in range(2)))
    measured = [
        Case(case.plan, case.cluster, predictor.predict(case, fit))
        for case in cases("data_parallel", "data_parallel_fp16", "two_domains", "diloco")
    ]
    found = predictor.fit(measured, 0.005, 0.005)
    for kind, pair in truth.items():
        assert found.pair(kind) == pytest.approx(pair, rel=0.05), kind
    assert found.pair("messages of 1f1b") == PRIOR


def test_messages_of_a_pipeline_wait_one_after_the_other():
    predictor = Predictor(JOB)
    _, far, _ = cases("two_domains")
    once, twice = (predictor.step_s(far, 1e-4, (1.0, n), PRIOR) for n in (1.0, 2.0))
    # Six micro-batches go forth and back, each for a round trip of 100 ms.
    assert twice - once == pytest.approx(12 * 0.1, rel=0.02)


def test_a_stage_of_gpipe_waits_for_every_micro_batch_before_it_computes_it():
    """Two domains of two layers each, six micro-batches. Computing takes as long as a message: were
    messages to hide behind it, the step would be half as long."""
    predictor = Predictor(JOB)
    _, far, _ = cases("two_domains")
    layer_s, rtt_s, micro_batches = 0.05, 0.1, 6
    message_s = predictor.step_s(far, 1e-4, (1.0, 1.0), PRIOR) / (2 * micro_batches)
    assert message_s == pytest.approx(rtt_s, rel=0.05)
    forward_s, backward_s = 2 * layer_s / 3, 2 * 2 * layer_s / 3
    # The first computes once before anything travels; then each way all messages and all computing.
    by_hand = 3 * layer_s * 2 / 3 + micro_batches * (2 * message_s + forward_s + backward_s)
    assert predictor.step_s(far, layer_s, (1.0, 1.0), PRIOR) == pytest.approx(by_hand, rel=0.02)


def test_a_stage_of_1f1b_waits_as_well_and_a_hybrid_needs_no_numbers_of_its_own():
    """Two equal stages: in a micro-batch each waits for one message, so that the step is (M + 1) times
    what a stage takes for one, and M + 1 messages are waited for."""
    predictor = Predictor(JOB)
    _, far, _ = cases("two_domains")
    body = {"groups": [["a", "b"]], "micro_batch": 2}
    plan, _ = plan_of(body, "1f1b", far.cluster, JOB)
    case, layer_s, micro_batches = Case(plan, far.cluster), 0.05, 6
    message_s = predictor.step_s(case, 1e-4, (1.0, 1.0), PRIOR) / (micro_batches + 1)
    assert message_s == pytest.approx(0.1, rel=0.05)
    by_hand = (micro_batches + 1) * (2 * layer_s + message_s)
    assert predictor.step_s(case, layer_s, (1.0, 1.0), PRIOR) == pytest.approx(by_hand, rel=0.02)


def test_every_fragment_waits_as_a_sum_of_its_own():
    """Streaming without overlap: two sums of half the model in a period wait twice as long as one of
    the whole, where nothing but waiting counts. What travels behind a step waits for less."""
    predictor = Predictor(JOB)
    spec = Condition("far", 1000.0, 200.0).cluster(PROTOCOL.domains)
    body = {"groups": [["a"], ["b"], ["c"]], "micro_batch": 2, "sync_period": 8}
    layer_s, waits = 0.01, []
    for more in ({}, {"fragments": 2}, {"fragments": 2, "overlap": 1}):
        plan, trained = plan_of({**body, **more}, "plan", spec, JOB)
        assert trained["fragments"] == int(plan.fragments) == more.get("fragments", 1)
        one = predictor.step_s(Case(plan, spec), layer_s, PRIOR, (50.0, 1.0))
        waits.append(8 * (one - predictor.step_s(Case(plan, spec), layer_s, PRIOR, (50.0, 1e-6))))
    # A ring of three takes four steps, each a round trip.
    assert waits[0] == pytest.approx(4 * 0.2, rel=0.05)
    assert waits[1] == pytest.approx(2 * waits[0], rel=0.05)
    step_s = predictor.step_s(Case(plan, spec), layer_s, PRIOR, (50.0, 1e-6))
    assert waits[2] == pytest.approx(waits[1] - 2 * step_s, rel=0.05)


def test_a_link_that_is_out_for_a_quarter_of_the_time_costs_a_quarter_of_the_steps(tmp_path):
    outage = Outage("a", "b", factor=1e-3, every_s=4.0, lasts_s=1.0)
    condition = Condition("out", 200.0, 50.0, outage=outage)
    spec = condition.cluster(PROTOCOL.domains)
    (tmp_path / "t.csv").write_text(condition.trace(PROTOCOL.domains, 0))
    factors = read_network_trace(tmp_path / "t.csv", spec, 1.0)
    assert factors[:, 0, 1].min() == pytest.approx(1e-3) and np.all(factors[:, 1, 0] == 1.0)
    assert np.mean(factors[:, 0, 1] < 0.5) == pytest.approx(0.25)
    plan, _ = plan_of(PROTOCOL.plans["two_domains"], "two_domains", spec, JOB)
    rows = (None, factors, factors[np.argmin(factors[:, 0, 1])][None])
    steady, moving, out = (
        Predictor(JOB).step_s(Case(plan, spec, factors=f), 0.01, (1.0, 1.0), PRIOR) for f in rows
    )
    assert out > 5 * steady
    # In three quarters of the time a step takes as long as ever, in one as long as while it is out.
    assert moving == pytest.approx(1 / (0.75 / steady + 0.25 / out), rel=1e-4)


def test_a_change_of_plan_costs_a_restart_and_its_bytes():
    predictor = Predictor(JOB)
    near, *_ = cases("two_domains")
    whole, *_ = cases("data_parallel")
    spec = near.cluster
    assert predictor.transition_s(near.plan, near.plan, spec, 0.5) == pytest.approx(0.5)
    assert predictor.transition_s(near.plan, whole.plan, spec, 0.5) > 1.0


def test_the_summary_leaves_out_what_was_calibrated_on():
    rows = [
        ("seen", "x", "f", True, True, 9.0, 1.0),
        ("new", "x", "f", False, True, 1.1, 1.0),
        ("new", "y", "f", False, True, 1.0, 1.2),
        ("new", "z", "g", False, False, 0.1, 0.1),
    ]
    columns = ["condition", "plan", "family", "calibrated_on", "synchronous"]
    runs = pd.DataFrame(rows, columns=[*columns, "predicted_s", "measured_s"])
    runs["error_pct"] = 100 * (runs["predicted_s"] / runs["measured_s"] - 1)
    moves = pd.DataFrame(
        {
            "condition": ["new", "new", "seen"],
            "lost_s": [1.0, 2.0, 9.0],
            "predicted_s": [1.1, 1.0, 1.0],
        }
    )
    found = summary(runs, moves)
    assert found["all"]["n"] == 3 and found["families"]["g"]["median_ape_pct"] == 0.0
    assert found["choices"]["new"]["chosen"] == "y" and found["choices"]["new"]["best"] == "x"
    assert found["choices"]["new"]["loss_pct"] == pytest.approx(20.0)
    assert found["choices_near_best_pct"] == 0.0
    assert found["moves"]["n"] == 2 and found["moves"]["lost_s_median"] == 1.5
    assert found["moves"]["median_ape_pct"] == pytest.approx(30.0)
    assert found["largest_errors"][0]["plan"] == "y"


def test_without_the_capability_a_study_is_skipped(monkeypatch, capsys):
    monkeypatch.setattr("experiments.wan.start.reason_missing", lambda: "no such power")
    assert main(["wan", "study"]) == 0
    assert capsys.readouterr().out == "skipped: no such power\n"


@needs_networks
@pytest.mark.nightly
def test_a_study_in_the_small(tmp_path):
    before = host_state()
    body = yaml.safe_load(SHIPPED.with_name("quick.yaml").read_text())
    body |= {"steps": 4, "seq": 8}
    body["plans"] = {
        "pipeline": {"groups": [["a", "b"]], "micro_batch": 6, "schedule": "gpipe"},
        "data_parallel": {"groups": [["a"], ["b"], ["c"]], "micro_batch": 2},
    }
    body["families"] = {name: [name] for name in body["plans"]}
    body["conditions"] = [
        {"name": "seen", "rate_mbps": 200, "rtt_ms": 10, "calibrate": True},
        {"name": "new", "rate_mbps": 100, "rtt_ms": 20, "jitter": 0.2},
    ]
    (tmp_path / "protocol.yaml").write_text(yaml.safe_dump(body))
    out = tmp_path / "study"
    assert (
        main(["wan", "study", "--config", str(tmp_path / "protocol.yaml"), "--out", str(out)]) == 0
    )
    assert host_state() == before
    record = load(out)
    runs = record.table("runs")
    assert len(runs) == 4 and (runs["measured_s"] > 0.01).all()
    written = {name: (out / f"{name}.csv").stat().st_mtime_ns for name in ("predictions", "runs")}
    began = json.loads((out / "conditions" / "new" / "run.json").read_text())["started"]
    assert written["predictions"] < written["runs"]
    assert pd.Timestamp(written["predictions"], unit="ns", tz="UTC") < pd.Timestamp(
        began
    ) + pd.Timedelta(1, "s")
    assert main(["report", str(out)]) == 0
    assert (out / "figures" / "sim-to-real.png").stat().st_size > 5000
