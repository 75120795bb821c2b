"""The loop: when a plan is said, when it is in force, what outlives the process.

The scheduler is a stand-in with a rule that a test can follow: its plan avoids the first link that is
slower than 1 Gbit/s, and it counts the intervals that it remembers.
"""

import io
import itertools
import json
import socket
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest

from experiments.common.running import read_running
from experiments.respond.measurements import Measured
from experiments.watch import service
from experiments.watch.config import WatchConfig
from experiments.watch.hook import Hook, plan_file
from experiments.watch.lines import LineReader
from experiments.watch.service import watch
from experiments.watch.watcher import Watcher
from jaxsim.cluster.cluster import load_cluster
from jaxsim.files.errors import InputError
from jaxsim.plan.plan import Plan, describe
from jaxsim.workload.workload import JobSpec, load_model

SPEC = load_cluster()
JOB = JobSpec(load_model("llama-7b"), 64, 4096)
OHIO, OREGON = SPEC.domains.index("ohio"), SPEC.domains.index("oregon")
SLOW = {"src": "ohio", "dst": "oregon", "bandwidth_gbps": 0.5}
FAST = {"src": "ohio", "dst": "oregon", "bandwidth_gbps": 9.0}


class Rule:
    """A responder whose plan is a function of the links."""

    def __init__(self, switch_s=100.0, name="rule"):
        self.spec, self.switch_s, self.name = SPEC, switch_s, name
        links = [np.array(x, np.float32) for x in (SPEC.bandwidth_gbps, SPEC.rtt_ms)]
        gpus = np.array(SPEC.gpus)
        self.measured = Measured(
            SPEC,
            SimpleNamespace(bandwidth_gb_per_s=links[0] / 8, rtt_s=links[1] / 1e3, gpus=gpus),
        )
        self.choice, self.intervals = 0, 0

    @property
    def plan(self):
        return Plan.build(SPEC, JOB, [[SPEC.domains[self.choice]]])

    def propose(self):
        rate = self.measured.bandwidth_gb_per_s * 8 + 9 * np.eye(SPEC.n_domains)
        choice = int(rate.min() < 1)
        feasible = bool(self.measured.free_gpus.any())
        answer = {
            "feasible": feasible,
            "plan": f"plan {choice}" if feasible else None,
            "switch": choice != self.choice,
            "step_s": 1.0,
            "gain_pct": 25.0 if self.measured.free_gpus[0] else None,
            "switch_s": self.switch_s,
            "reason": "It is the rule.",
            "fields": {"choice": choice} if feasible else None,
        }
        plan = Plan.build(SPEC, JOB, [[SPEC.domains[choice]]])
        return SimpleNamespace(answer=answer, plan=plan, choice=choice)

    def accept(self, proposal, keep_plan=False):
        self.intervals += 1
        self.choice = self.choice if keep_plan else proposal.choice

    @property
    def in_force(self):
        return {"plan": f"plan {self.choice}", "fields": {"choice": self.choice}}

    def snapshot(self):
        return [*self.measured.arrays, np.array([self.choice, self.intervals])]

    def restore(self, snapshot):
        self.measured.put(*snapshot[:3])
        self.choice, self.intervals = (int(x) for x in snapshot[3])

    def identity(self):
        return {"cluster": "c", "job": "j", "scheduler": self.name}


class Bench:
    """A watcher with a clock of its own, and what it said."""

    def __init__(self, responder=None, hook=None, **settings):
        self.clock, self.said = 1000.0, []
        self.rule = responder or Rule()
        config = WatchConfig(scheduler="hysteresis", **settings)
        self.watcher = Watcher(self.rule, config, self.say, hook, now=lambda: self.clock)

    def say(self, line):
        self.said.append(json.loads(json.dumps(line)))

    def step(self, *bodies, seconds=1.0):
        """What is said when these measurements come so many seconds later."""
        self.clock += seconds
        self.said.clear()
        text = "".join(f"{x if isinstance(x, str) else json.dumps(x)}\n" for x in bodies)
        self.watcher.step(LineReader().feed(text.encode()))
        return list(self.said)


def test_a_plan_is_said_once_when_it_should_change_with_its_reasons():
    bench = Bench()
    assert bench.step(FAST) == []
    (said,) = bench.step({**SLOW, "time": "12:00"})
    assert list(said)[:2] == ["decision", "time"] and said["decision"] == 1
    assert said["plan"] == "plan 1" and said["fields"] == {"choice": 1}
    assert said["because"][0].startswith("ohio>oregon: bandwidth ")
    assert said["because"][0].endswith(" -> 0.5 Gbit/s")
    assert bench.step(SLOW) == [] and bench.step() == []


def test_measurements_that_come_together_are_one_decision():
    bench = Bench()
    assert [x["decision"] for x in bench.step(SLOW, FAST, SLOW)] == [1]
    assert bench.step(FAST, SLOW) == []


def test_while_a_switch_is_under_way_no_other_is_begun():
    bench = Bench()
    bench.step(SLOW)
    assert bench.step(FAST, seconds=99) == [] and bench.rule.choice == 1
    (back,) = bench.step(FAST, seconds=1.5)
    assert back["decision"] == 2 and bench.rule.choice == 0


def test_a_plan_that_can_no_longer_run_makes_way_at_once():
    bench = Bench()
    bench.step(SLOW)
    gone = {"domain": SPEC.domains[0], "gpus_available": 0}
    (said,) = bench.step(FAST, gone, seconds=1)
    assert said["decision"] == 2 and f"{SPEC.domains[0]}: 8 -> 0 GPUs available" in said["because"]


def test_where_nothing_can_run_it_is_said_once_and_the_return_too():
    bench = Bench()
    none = [{"domain": name, "gpus_available": 0} for name in SPEC.domains]
    some = [{"domain": name, "gpus_available": 8} for name in SPEC.domains]
    (nowhere,) = bench.step(*none)
    assert nowhere["feasible"] is False and nowhere["plan"] is None
    assert bench.step(none[0]) == []
    (back,) = bench.step(*some)
    assert back["plan"] == "plan 0"


def test_the_memory_moves_on_once_an_interval_however_many_measurements_come():
    bench = Bench(interval_s=60.0)
    for _ in range(180):
        bench.step(FAST, seconds=1.0)
    assert bench.rule.intervals == 3
    bench.step(SLOW)
    assert bench.rule.intervals == 4  # a switch ends an interval


def test_bad_lines_are_counted_and_told_in_one_line_at_a_time(capsys):
    bench = Bench()
    bad = ["{", '{"src": "ohio", "dst": "mars", "rtt_ms": 3}', "nonsense", {**SLOW, "time": [1]}]
    assert bench.step(*bad, *bad, seconds=20) == []
    (line,) = capsys.readouterr().err.splitlines()
    assert "line 1 is refused" in line
    bench.step(bad[1], seconds=20)
    (line,) = capsys.readouterr().err.splitlines()
    assert "'mars' is no domain; known: " in line and "7 more before it" in line
    assert (bench.watcher.lines, bench.watcher.refused) == (9, 9)
    assert [x["decision"] for x in bench.step(SLOW)] == [1]


def test_a_silent_link_keeps_its_value_and_is_said_to_be_stale():
    bench = Bench(stale_s=300.0)
    pairs = itertools.permutations(SPEC.domains, 2)
    others = [{"src": a, "dst": b, "rtt_ms": 50} for a, b in pairs if (a, b) != ("ohio", "oregon")]
    bench.step(FAST, *others)
    assert bench.step(*others, seconds=299) == []
    (stale,) = bench.step(*others, seconds=2)
    assert stale == {"stale": ["ohio>oregon"], "held": True}
    assert bench.rule.measured.bandwidth_gb_per_s[OHIO, OREGON] == pytest.approx(9 / 8)
    assert bench.step(seconds=100) == []  # said once
    assert 'stale{dst="oregon",src="ohio"} 1.0' in bench.watcher.metrics.text()
    (fresh, decision) = bench.step(SLOW)  # measured just now, so the decision does not list it
    assert fresh == {"fresh": ["ohio>oregon"]} and decision["stale"] == []


def test_a_decision_lists_the_links_that_are_silent_at_that_moment():
    bench = Bench(stale_s=300.0)
    stale, decision = bench.step(SLOW, seconds=301)
    assert "ohio>oregon" not in stale["stale"] and stale["stale"] == decision["stale"]


def test_a_link_that_never_reports_is_stale_from_the_start_on():
    bench = Bench(stale_s=300.0)
    assert bench.step(FAST, seconds=299) == []
    (stale,) = bench.step(FAST, seconds=2)
    n = SPEC.n_domains
    assert len(stale["stale"]) == n * (n - 1) - 1 and "ohio>oregon" not in stale["stale"]


def test_time_stamps_that_jump_change_nothing(monkeypatch):
    plain, jumping = Bench(), Bench()
    stamps = iter([0, 4e9, -4e9, "1970-01-01", 12, 1e18])
    monkeypatch.setattr(time, "time", lambda: float(next(iter([-1e9]))))
    for body in (FAST, SLOW, FAST, SLOW, FAST, SLOW):
        without = plain.step(body, seconds=60)
        found = jumping.step({**body, "time": next(stamps)}, seconds=60)
        assert [x.get("fields") for x in without] == [x.get("fields") for x in found]
        assert [x.get("because") for x in without] == [x.get("because") for x in found]


# --- a process that ends and one that goes on -----------------------------------------------------


def decisions(said):
    return [{k: v for k, v in x.items() if k != "latency_ms"} for x in said]


@pytest.mark.parametrize("cut", range(1, 6))
def test_a_process_that_goes_on_says_what_the_other_would_have_said(tmp_path, cut):
    """At every point of a record; nothing but the file survives."""
    record = [(FAST, 30), (SLOW, 60), (FAST, 50), (SLOW, 20), (FAST, 80), (SLOW, 200)]
    whole = Bench()
    expected = [decisions(whole.step(body, seconds=s)) for body, s in record]
    file = str(tmp_path / "state")
    first = Bench(state=file)
    found = [decisions(first.step(body, seconds=s)) for body, s in record[:cut]]
    second = Bench(Rule(), state=file)
    assert second.watcher.restored
    assert second.rule.snapshot()[3].tolist() == first.rule.snapshot()[3].tolist()
    found += [decisions(second.step(body, seconds=s)) for body, s in record[cut:]]
    assert found == expected and any(expected[:cut]) == (cut > 1)


def test_a_state_of_another_scheduler_or_of_nonsense_is_refused(tmp_path):
    file = str(tmp_path / "state")
    Bench(state=file).step(SLOW)
    with pytest.raises(InputError, match="is of another scheduler"):
        Bench(Rule(name="other"), state=file)
    (tmp_path / "state").write_text("{}")
    with pytest.raises(InputError, match="state: expected the keys"):
        Bench(state=file)


# --- the apply command ----------------------------------------------------------------------------


def command(path, body):
    path.write_text(f"import json, sys, time\nplan = json.load(open(sys.argv[-1]))\n{body}\n")
    return [sys.executable, str(path)]


def applied(bench):
    """Wait until the command has ended; what is said then."""
    for _ in range(500):
        time.sleep(0.02)
        if found := bench.step(seconds=0.02):
            return found
    raise AssertionError("the command does not end")


def test_a_plan_is_in_force_once_the_command_has_succeeded(tmp_path):
    seen = tmp_path / "seen.json"
    words = command(tmp_path / "hook.py", f"json.dump(plan, open({str(seen)!r}, 'w'))")
    bench = Bench(hook=Hook(words, tmp_path / "plan.json", 60.0))
    (said,) = bench.step(SLOW)
    assert said["decision"] == 1 and bench.rule.choice == 0
    assert bench.step(FAST) == []  # nothing is decided meanwhile
    done = applied(bench)[0]
    assert (done["applied"], done["in_force"], done["status"]) == (1, True, 0)
    plan = json.loads(seen.read_text())
    assert plan["pipelines"][0]["domains"][0]["domain"] == SPEC.domains[1]
    assert plan["sync_period"] == 1 and bench.rule.choice == 1
    assert "activation_bits" not in plan
    running = read_running(str(seen), SPEC, "synchronous")
    assert describe(running, SPEC.domains) == SPEC.domains[1]


def test_a_plan_file_says_how_few_bits_activations_have():
    plan = Plan.build(SPEC, JOB, [SPEC.domains[:2]], activation_bits=8)
    told = plan_file(plan, SPEC.domains)
    assert told["activation_bits"] == told["fields"]["activation_bits"] == 8


def test_a_command_that_fails_leaves_the_old_plan_and_is_tried_an_interval_later(tmp_path):
    words = command(tmp_path / "hook.py", "sys.exit(3)")
    bench = Bench(hook=Hook(words, tmp_path / "plan.json", 60.0), interval_s=60.0)
    bench.step(SLOW)
    (failed,) = applied(bench)
    assert failed["status"] == 3 and failed["in_force"] is False and bench.rule.choice == 0
    assert bench.step(SLOW, seconds=30) == []
    (again,) = bench.step(seconds=31)
    assert again["decision"] == 2 and again["because"][0].startswith("ohio>oregon: bandwidth ")
    applied(bench)


def test_a_process_that_ends_while_its_command_runs_decides_again_at_once(tmp_path):
    """Nothing is measured after the restart, and the reasons are those of the first."""
    file, words = str(tmp_path / "state"), command(tmp_path / "hook.py", "time.sleep(2)")
    first = Bench(hook=Hook(words, tmp_path / "plan.json", 60.0), state=file)
    (said,) = first.step(SLOW)
    later = Bench(Rule(), state=file)
    (again,) = later.step()
    assert again["decision"] == 2 and again["fields"] == said["fields"]
    assert again["because"] == said["because"] != []
    assert later.step(seconds=100) == []
    applied(first)


def test_a_command_that_failed_is_not_tried_sooner_after_a_restart(tmp_path):
    file, words = str(tmp_path / "state"), command(tmp_path / "hook.py", "sys.exit(3)")
    first = Bench(hook=Hook(words, tmp_path / "plan.json", 60.0), interval_s=60.0, state=file)
    first.step(SLOW)
    applied(first)
    first.watcher.save()
    later = Bench(Rule(), interval_s=60.0, state=file)
    assert later.step(seconds=50) == []
    assert later.step(seconds=11)[0]["decision"] == 2


def test_a_command_that_cannot_be_run_is_as_one_that_fails(tmp_path, capfd):
    """Executable, and nothing says by what."""
    script = tmp_path / "hook"
    script.write_text("neither a program nor a script\n")
    script.chmod(0o755)
    bench = Bench(hook=Hook([str(script)], tmp_path / "plan.json", 60.0), interval_s=60.0)
    bench.step(SLOW)
    (failed,) = applied(bench)
    assert failed["status"] == 126 and failed["in_force"] is False and bench.rule.choice == 0
    assert "apply: " in capfd.readouterr().err
    (again,) = bench.step(seconds=61)
    assert again["decision"] == 2
    applied(bench)


def test_a_file_that_was_read_to_its_end_is_remembered_at_once(tmp_path):
    """Its end comes by itself, without a measurement."""
    file = str(tmp_path / "state")
    bench = Bench(state=file)
    bench.step(FAST)
    bench.watcher.position = "1.csv"
    bench.step()
    assert Bench(Rule(), state=file).watcher.position == "1.csv"


def test_a_command_that_takes_too_long_is_killed_with_its_children(tmp_path):
    words = command(tmp_path / "hook.py", "time.sleep(600)")
    bench = Bench(hook=Hook(words, tmp_path / "plan.json", 0.2))
    bench.step(SLOW)
    (killed,) = applied(bench)
    assert killed["status"] == -9 and killed["in_force"] is False


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"apply": " "}, "apply: expected a command"),
        ({"apply": "'unclosed"}, "apply"),
        ({"plan_file": "plan.json"}, "--apply"),
        ({"folder": ".", "listen": 0}, "folder, listen"),
        ({"metrics": 70_000}, "metrics"),
        ({"seconds": 0.0}, "seconds"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings, named):
    with pytest.raises(ValueError, match=named):
        WatchConfig(**settings)


@pytest.mark.parametrize("settings", ["folder", "state", "listen", "metrics"])
def test_what_cannot_be_opened_is_refused_before_anything_is_loaded(
    settings, monkeypatch, tmp_path
):
    monkeypatch.setattr(service, "make_responder", lambda config: pytest.fail("was loaded"))
    (tmp_path / "broken").write_text("{}")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        values = {"folder": str(tmp_path / "absent"), "state": str(tmp_path / "broken")}
        config = WatchConfig(**{settings: values.get(settings, port)})
        with pytest.raises(InputError, match=settings):
            watch(config, io.StringIO(), io.StringIO())


def test_a_program_that_is_not_there_is_refused_before_anything_is_loaded(monkeypatch):
    monkeypatch.setattr(service, "make_responder", lambda config: pytest.fail("was loaded"))
    config = WatchConfig(apply="no-such-program --now")
    with pytest.raises(InputError, match="apply: no-such-program: no such program"):
        watch(config, io.StringIO(), io.StringIO())


# --- the whole loop -------------------------------------------------------------------------------


def test_from_a_stream_to_its_end(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(service, "make_responder", lambda config: Rule())
    text = "".join(json.dumps(x) + "\n" for x in (FAST, SLOW)) + "broken\n"
    words = f"{sys.executable} -c pass"
    config = WatchConfig(apply=words, metrics=0, state=str(tmp_path / "state"))
    out = io.StringIO()
    watch(config, io.StringIO(text), out)
    ready, decision, done, end = (json.loads(line) for line in out.getvalue().splitlines())
    assert ready["ready"] and ready["restored"] is False
    assert "--allow any" in capsys.readouterr().err  # the rule's plans use one domain
    assert ready["metrics"].startswith("http://127.0.0.1:")
    assert decision["plan"] == "plan 1" and done["in_force"]
    within = end.pop("within_ms")
    assert end == {"end": True, "lines": 3, "refused": 1, "decisions": 1}
    assert 0 < within["p50"] <= within["p99"] <= within["all"]
    again = io.StringIO()
    watch(config, io.StringIO(""), again)
    ready = json.loads(again.getvalue().splitlines()[0])
    assert ready["restored"] and ready["plan"] == "plan 1"


def test_from_a_folder_for_some_seconds(tmp_path, monkeypatch):
    monkeypatch.setattr(service, "make_responder", lambda config: Rule())
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.csv").write_text("src,dst,bandwidth_gbps\nohio,oregon,0.5\n")
    out = io.StringIO()
    watch(WatchConfig(folder=str(tmp_path / "in"), seconds=1.0), io.StringIO(), out)
    _, decision, end = (json.loads(line) for line in out.getvalue().splitlines())
    assert decision["plan"] == "plan 1" and end["lines"] == 1
