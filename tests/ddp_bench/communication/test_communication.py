"""Methods on real ranks, the selector on emulated links, faults of both."""

import errno
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.optimize import nnls

torch = pytest.importorskip("torch")

from helpers import toolbox_command, toolbox_ranks  # noqa: E402

from analysis.records import RunWriter  # noqa: E402
from ddp_bench.communication import (  # noqa: E402
    METHODS,
    ROOM,
    Channel,
    Link,
    LinkEstimate,
    MethodCost,
    Selector,
    SwitchingHook,
    drawn_link,
    play,
    work,
)
from ddp_bench.communication.selector import least_relative  # noqa: E402
from ddp_bench.communication.training import (  # noqa: E402
    PLAIN,
    SELECTOR,
    Run,
    Trained,
    train_on_rank,
)
from ddp_bench.toolbox import RanksFailed, on_ranks, run_room  # noqa: E402
from ddp_bench.toolbox.launch import ROOT  # noqa: E402

# One method that sends all and one that keeps an error; the others are poisoned at night.
BY_DAY = ("exact", "topk")
COSTS = {
    "exact": MethodCost(((333e3, 2), (333e3, 2)), 0.0),
    "fp16": MethodCost(((166e3, 2), (166e3, 2)), 1e-3),
    "int8": MethodCost(((166e3, 1),), 3e-3),
}


@pytest.fixture
def path(monkeypatch):
    """Ranks find the tests' helpers."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "tests")]))


@pytest.mark.parametrize(
    ("name", "steps", "within"),
    [
        ("exact", 3, 1e-6),
        ("pieces", 3, 1e-6),
        ("fp16", 3, 1e-3),
        ("bf16", 3, 1e-2),
        ("int8", 20, 2e-3),
        ("topk", 300, 0.2),
        ("powersgd", 100, 0.2),
    ],
)
def test_what_is_sent_over_time_is_the_mean(path, name, steps, within):
    """With error feedback the sum over steps is right, though single steps are not."""
    first, second = on_ranks(toolbox_ranks.reduce_gradients, 2, name, steps, -1)
    assert first[0] == second[0]
    draws = [torch.randn(64 * 48 + 48, generator=torch.Generator().manual_seed(r)) for r in (0, 1)]
    wanted = steps * sum(draws) / 2
    error = torch.linalg.norm(torch.tensor(first[0]) - wanted) / torch.linalg.norm(wanted)
    assert error < within


@pytest.mark.parametrize("name", [n for n in METHODS if n != "local"])
def test_a_gradient_that_is_not_finite_is_seen_by_all_and_forgotten(path, name):
    for total, seen, _ in on_ranks(toolbox_ranks.reduce_gradients, 2, name, 4, 1):
        assert seen is True and np.isfinite(total).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in BY_DAY else pytest.mark.nightly) for n in METHODS],
)
def test_a_gradient_that_is_nan_on_one_rank_spoils_no_weight(path, name):
    """The model has several buckets, one of which is spoilt: the others are forgotten as well."""
    (first, owed, losses), (second, owed_there, _) = on_ranks(
        toolbox_ranks.train_poisoned, 2, name, 3
    )
    assert np.isfinite(first).all() and first == second
    assert owed == owed_there == [] and np.isfinite(losses).all()


def test_what_a_skipped_step_owes_is_forgotten_in_every_bucket():
    class Alone(Channel):
        def gather(self, message):
            return [message]

    hook = SwitchingHook.__new__(SwitchingHook)  # without a model that hears of it
    hook._method = METHODS["topk"]()
    good = torch.linspace(0.1, 1.0, 100)
    for bucket, flat in enumerate((good * float("nan"), good.clone())):
        hook._method.reduce(bucket, flat, [flat], Alone(1))
    assert list(hook._method._owed) == [1]  # finite itself, of a step that is skipped
    hook.forget()
    assert not hook._method._owed


@pytest.mark.nightly
def test_exact_gradients_are_those_of_plain_training():
    runs = [Run(name, seed=1, steps=6) for name in ("exact", PLAIN)]
    exact, plain = on_ranks(train_on_rank, 2, runs)[0]
    assert exact.losses == pytest.approx(plain.losses, rel=1e-6)
    assert set(plain.chosen) == {PLAIN}


def test_a_rank_that_dies_while_training_is_named(path):
    with pytest.raises(RanksFailed) as caught:
        on_ranks(toolbox_ranks.die_while_training, 2, timeout_s=30.0)
    assert str(caught.value) == "rank 1: ended by SIGKILL"


@pytest.mark.nightly
def test_a_disk_that_is_full_behind_the_pilot_is_one_line(tmp_path, monkeypatch, capfd):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device", "methods.csv")

    monkeypatch.setattr(RunWriter, "append", full)
    given = ["--methods", "exact", "--steps", "10", "--out", str(tmp_path / "run")]
    assert run_room(ROOM, given) == 2
    assert capfd.readouterr().err == "ddp_bench: methods.csv: No space left on device\n"


def test_exact_gradients_that_end_in_nan_are_one_line(tmp_path, monkeypatch, capfd):
    nan = Trained((float("nan"),), MethodCost(((1.0, 2),), 0.0), 1.0, 1.0, 0.0, 0.0, ("exact",))
    monkeypatch.setattr(work, "_trained", lambda settings, runs: [nan] * len(runs))
    assert run_room(ROOM, ["--methods", "fp16", "--out", str(tmp_path / "run")]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert "seed is 0: the loss of training by exact gradients is nan" in line


@pytest.mark.slow
def test_a_hook_that_raises_ends_the_job(path):
    with pytest.raises(RanksFailed, match=r"rank [01]"):
        on_ranks(toolbox_ranks.train_with_a_raising_hook, 2, timeout_s=20.0)


def test_the_link_is_found_from_messages_of_two_sizes():
    estimate = LinkEstimate()
    for _ in range(3):
        estimate.observe([(w, 2, 2 * 3e-3 + w / 2e7) for w in (100.0, 1e6)])
    assert estimate.latency == pytest.approx(3e-3, rel=0.02)
    assert estimate.per_byte == pytest.approx(5e-8, rel=0.02)


@given(
    st.lists(
        st.tuples(st.floats(1.0, 1e7), st.integers(1, 6), st.floats(1e-4, 10.0)),
        min_size=2,
        max_size=12,
    )
)
def test_the_closed_form_is_what_nonnegative_least_squares_finds(messages):
    """scipy's solver on all messages, as far as their sizes differ enough for one answer."""
    rows = np.array([(hops / seconds, wire / seconds) for wire, hops, seconds in messages])
    scale = np.linalg.norm(rows, axis=0)
    assume(np.linalg.cond(rows / scale) < 1e3)
    sums = (rows.T @ rows)[[0, 0, 1], [0, 1, 1]]
    found = np.array(least_relative(*sums, *rows.sum(axis=0))) * scale
    wanted, _ = nnls(rows / scale, np.ones(len(rows)))
    assert found == pytest.approx(wanted, rel=1e-6, abs=1e-9)


def test_messages_that_are_all_alike_are_explained_all_the_same():
    latency, per_byte = least_relative(4.0, 8.0, 16.0, 2.0, 4.0)
    assert latency * 2.0 + per_byte * 4.0 == pytest.approx(1.0) and min(latency, per_byte) >= 0


def test_the_selector_beats_or_nears_the_best_fixed_method():
    regrets = [play(COSTS, drawn_link(1000 + s, 500), 500, 0.02).regret_pct for s in range(20)]
    assert np.mean(regrets) <= 3 and max(regrets) <= 10


def test_links_change_within_the_rates_that_they_are_drawn_from():
    links = [drawn_link(s, 500) for s in range(20)]
    rates = 8e-9 * np.array([link.rate for link in links])
    assert rates.shape == (20, 500) and 0.045 <= rates.min() < 0.1 and 2.5 < rates.max() <= 5.5
    # A level stays for 40 to 160 steps, and rates jitter by 10 % around it.
    changes = [np.flatnonzero(np.diff(link.latency)) + 1 for link in links]
    assert all(3 <= len(one) <= 12 for one in changes)
    assert all(40 <= stay <= 160 for one in changes for stay in np.diff(one))
    for row, one in zip(rates, changes, strict=True):
        assert all(level.max() / level.min() <= 1.1 / 0.9 for level in np.split(row, one))


def test_a_small_gain_is_no_reason_to_switch():
    near = {"a": MethodCost(((1e5, 2),), 0.0), "b": MethodCost(((0.99e5, 2),), 0.0)}
    steady = Link((1e8,), (1e-3,))
    assert play(near, steady, 200, 0.01).switches == 0
    with pytest.raises(ValueError, match="at least one"):
        Selector({})


@pytest.mark.nightly
def test_the_result_holds_methods_regret_and_what_decisions_cost(tmp_path):
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    pilot = ("--methods", "fp16,local", "--steps", "12", "--seeds", "1")
    options = (*pilot, "--links", "2", "--played_steps", "60", "--sharded")
    command = [sys.executable, "-m", "ddp_bench.communication", *options, "--json", "found.json"]
    subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=True)
    found = json.loads((tmp_path / "found.json").read_text())
    assert set(found["methods"]) == {"exact", "fp16", "local"}
    assert found["methods"]["fp16"]["wire_bytes"] == pytest.approx(
        found["methods"]["exact"]["wire_bytes"] / 2
    )
    assert found["regret_pct"] <= found["regret_worst_pct"]
    assert np.isfinite(found["loss_gap"]) and 0 < found["decision_overhead_pct"] < 100
    assert 0 < found["decision_overhead_of_compute_pct"] < 100
    assert sum(found["steps_by_method"].values()) == 12
    assert 0 <= found["overlap"]["hidden"] <= 1
    assert set(found["sharded"]) == {"plain", "exact", "fp16"}
    assert abs(found["sharded"]["exact"]["loss_gap"]) < 1e-6


@pytest.mark.nightly
def test_all_ranks_send_by_the_method_that_the_first_one_chose():
    """A link so slow that the small method wins once the link is known."""
    costs = {"exact": MethodCost(((3e5, 2),), 0.0), "fp16": MethodCost(((1.5e5, 2),), 0.0)}
    run = Run(SELECTOR, seed=3, steps=12, link_seed=0, costs=costs, compute_s=1e-3)
    first, second = on_ranks(train_on_rank, 2, [run])
    assert first[0].chosen == second[0].chosen and first[0].losses == second[0].losses
    assert first[0].chosen[0] == "exact" and first[0].chosen[-1] == "fp16"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(("--ranks", "1"), "ranks is 1"), (("--loss_tolerance", "0"), "loss_tol")],
)
def test_bad_input_is_one_line(tmp_path, arguments, said):
    toolbox_command.assert_refused("communication", tmp_path, arguments, said)
