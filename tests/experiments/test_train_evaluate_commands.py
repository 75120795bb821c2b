"""train, evaluate and report from their command lines: what they write, and how they go on."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest
from helpers.refusals import refused
from helpers.summary_keys import SUMMARY_KEYS
from helpers.tiny_training import (
    ARGV,
    EPOCHS,
    SEEDS,
    WORLD,
    cached_world,
    compiled_pieces,
    evaluators,
    shared_run,
    tiny_config,
)

from agents.hi_ppo.checkpoint import load_checkpoint, policies
from agents.registry import ENTRIES, default_settings, find, names
from analysis.records import load
from analysis.report import __main__ as report
from experiments.common.options import from_mapping
from experiments.common.tables import scheduler_table
from experiments.evaluate import __main__ as evaluate
from experiments.evaluate import evaluation as evaluation_module
from experiments.evaluate import evaluator as evaluation
from experiments.evaluate.config import EvaluateConfig
from experiments.evaluate.contestants import contestants, with_tuned_here
from experiments.evaluate.evaluator import tune
from experiments.train import __main__ as train
from experiments.train import training, worlds
from experiments.train.config import TrainConfig
from experiments.train.training import TrainingRun
from jaxsim.files import InputError
from jaxsim.scenario import scenario_bank
from jaxsim.trees import take

pytestmark = [
    pytest.mark.slow,  # as a whole: its tests share what takes long to compile
    pytest.mark.usefixtures("scoring_is_optimised"),
]

ROOT = Path(__file__).parents[2]
CLOCK = ["wall_s", "train_s", "steps_per_s"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """No test writes into the clone."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module", autouse=True)
def pieces():
    with compiled_pieces() as patch:
        yield patch


@pytest.fixture(scope="module")
def trained(pieces, tmp_path_factory):
    """Folder of a training run that nothing interrupted."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    assert train.main([*ARGV, "--out", str(folder)]) == 0
    return folder


def without_clock(folder):
    return load(folder).table("metrics").drop(columns=CLOCK)


def equals_uninterrupted(folder, trained):
    """Everything but the clock, bit for bit."""
    pd.testing.assert_frame_equal(without_clock(folder), without_clock(trained), check_exact=True)
    assert (folder / "eval.csv").read_bytes() == (trained / "eval.csv").read_bytes()
    ours, theirs = load_checkpoint(folder), load_checkpoint(trained)
    assert ours.meta == theirs.meta
    jax.tree.map(np.testing.assert_array_equal, ours.tree, theirs.tree)
    assert load(folder).summary == load(trained).summary


def test_training_leaves_a_complete_run_folder(trained):
    record = load(trained)
    assert record.run["status"] == "finished" and record.run["kind"] == "train"
    assert record.run["seed"] == list(SEEDS)
    metrics = record.table("metrics")
    assert len(metrics) == EPOCHS * len(SEEDS) and metrics.notna().all(axis=None)
    assert metrics["update"].tolist() == sorted([*range(1, EPOCHS + 1)] * 2)
    assert (metrics["env_steps"] == metrics["update"] * 4 * 8).all()
    assert set(record.table("eval")["update"]) == {0, EPOCHS}
    assert record.summary["env_steps"] == EPOCHS * 4 * 8
    assert set(record.summary["regret_pct"]) == {"0", "1"}
    meta = load_checkpoint(trained).meta
    assert meta["epoch"] == EPOCHS and meta["seeds"] == list(SEEDS) and meta["hidden"] == 8
    # What the run says of itself is enough to do it again.
    assert from_mapping(TrainConfig, record.run["config"], "run.json").epochs == EPOCHS


def stop_at(monkeypatch, epoch, stop):
    """Call `stop` while the given epoch is computed."""
    trainer = shared_run().trainer
    whole = trainer.run_epoch

    def run_epoch(state):
        if int(state.epoch[0]) + 1 == epoch:
            stop()
        return whole(state)

    monkeypatch.setattr(trainer, "run_epoch", run_epoch)


def test_ctrl_c_saves_after_the_epoch_at_hand_and_resumes_exactly(trained, tmp_path, capsys):
    folder, before = tmp_path / "run", signal.getsignal(signal.SIGINT)
    with pytest.MonkeyPatch.context() as patch:
        stop_at(patch, 7, lambda: signal.raise_signal(signal.SIGINT))
        assert train.main([*ARGV, "--out", str(folder)]) == 130
    assert f"--resume {folder}" in "".join(capsys.readouterr())
    assert load(folder).run["status"] == "interrupted"
    assert load_checkpoint(folder).meta["epoch"] == 7
    assert without_clock(folder)["update"].max() == 7
    assert signal.getsignal(signal.SIGINT) is before
    assert train.main(["--resume", str(folder)]) == 0
    equals_uninterrupted(folder, trained)


@pytest.fixture
def interrupted(tmp_path):
    """Folder of a training run that Ctrl-C ended after 7 epochs."""
    folder = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        stop_at(patch, 7, lambda: signal.raise_signal(signal.SIGINT))
        assert train.main([*ARGV, "--out", str(folder)]) == 130
    return folder


def test_the_clock_of_a_resumed_run_goes_on(interrupted):
    metrics = load(interrupted).table("metrics")
    metrics.assign(wall_s=1000.0 + metrics["update"]).to_csv(
        interrupted / "metrics.csv", index=False
    )
    assert train.main(["--resume", str(interrupted)]) == 0
    after = load(interrupted).table("metrics")
    assert after["wall_s"].is_monotonic_increasing
    assert (after["wall_s"][after["update"] > 7] > 1007).all()


def test_a_resumed_run_may_be_made_longer_or_shorter(interrupted, monkeypatch):
    run = shared_run()

    def same_pieces(config, mesh=None, options=None):
        run.config = config
        return run

    monkeypatch.setattr(training, "TrainingRun", same_pieces)
    assert train.main(["--resume", str(interrupted), "--epochs", "9"]) == 0
    record = load(interrupted)
    assert record.run["config"]["epochs"] == 9 and record.run["status"] == "finished"
    assert (
        record.table("metrics")["update"].max() == load_checkpoint(interrupted).meta["epoch"] == 9
    )
    assert record.table("eval")["update"].max() == 9


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["--seeds", "[0,1,2]"], "seeds"),  # refused even where it is the default
        (["--epochs", "200", "--train.upper.clip", "0.3"], "train.upper.clip"),
        (["--config", "more.yaml"], "scenarios"),
        (["--out", "elsewhere"], "out"),
        (["--epochs", "6"], "epochs"),
    ],
)
def test_a_resumed_run_takes_no_other_option(interrupted, capsys, argv, named):
    Path("more.yaml").write_text("scenarios: 8\n")
    before = {p.name: p.read_bytes() for p in interrupted.iterdir()}
    line = refused(capsys, "train", ["--resume", str(interrupted), *argv])
    assert line.startswith(f"error: train: {named}: ")
    assert {p.name: p.read_bytes() for p in interrupted.iterdir()} == before


@pytest.mark.parametrize("epoch", [0, 100])
def test_ctrl_c_in_an_evaluation_saves_the_last_whole_epoch_and_resumes_exactly(
    trained, tmp_path, capsys, epoch
):
    folder, run = tmp_path / "run", shared_run()
    (evaluator,), done = run.evaluators, []
    whole = evaluator.regret_pct

    def regret_pct(scheduler):
        # Between the two policies of one evaluation.
        if int(run.state.epoch[0]) == epoch:
            if done:
                signal.raise_signal(signal.SIGINT)
            done.append(scheduler)
        return whole(scheduler)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluator, "regret_pct", regret_pct)
        patch.setattr(TrainingRun, "_evaluates", lambda self, done: done in (0, 100, EPOCHS))
        assert train.main([*ARGV, "--out", str(folder)]) == 130
    assert f"--resume {folder}" in "".join(capsys.readouterr())
    assert load(folder).run["status"] == "interrupted"
    assert load_checkpoint(folder).meta["epoch"] == epoch
    assert train.main(["--resume", str(folder)]) == 0
    equals_uninterrupted(folder, trained)


def test_a_crash_goes_back_to_the_last_checkpoint_and_resumes_exactly(trained, tmp_path):
    folder = tmp_path / "run"

    def crash():
        raise RuntimeError("the power went")

    with pytest.MonkeyPatch.context() as patch:
        stop_at(patch, 100, crash)
        with pytest.raises(RuntimeError, match="power"):
            train.main([*ARGV, "--out", str(folder)])
    assert load(folder).run["status"] == "failed"
    assert without_clock(folder)["update"].max() == 99
    assert load_checkpoint(folder).meta["epoch"] == 60
    assert train.main(["--resume", str(folder)]) == 0
    equals_uninterrupted(folder, trained)


def test_a_diverged_policy_ends_the_run_and_the_last_good_checkpoint_is_kept(tmp_path, capsys):
    folder, trainer = tmp_path / "run", shared_run().trainer
    whole = trainer.run_epoch

    def run_epoch(state):
        state, metrics = whole(state)
        if int(state.epoch[0]) == 70:
            state = jax.tree.map(
                lambda x: x * np.float32("nan") if x.dtype == np.float32 else x, state
            )
        return state, metrics

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "run_epoch", run_epoch)
        assert train.main([*ARGV, "--out", str(folder)]) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if "error: " in line]
    assert len(errors) == 1 and "not finite" in errors[0] and "kept" in errors[0]
    assert load(folder).run["status"] == "failed"
    assert load_checkpoint(folder).meta["epoch"] == 60


def started_training(*argv):
    """`hippo train` in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "experiments.train", *map(str, argv)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )


@pytest.mark.nightly
def test_a_real_process_obeys_sigint_and_its_run_resumes_exactly(tmp_path):
    """Held against a process that was left alone: what this one compiled may round otherwise."""
    folder, whole = tmp_path / "run", tmp_path / "whole"
    metrics = folder / "metrics.csv"
    alone = started_training(*ARGV, "--out", whole)
    errors = alone.communicate(timeout=600)[1]
    assert alone.returncode == 0, errors
    process = started_training(*ARGV, "--out", folder)
    try:
        patience = time.monotonic() + 300
        while not metrics.exists() and process.poll() is None and time.monotonic() < patience:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        errors = process.communicate(timeout=60)[1]
    finally:
        process.kill()
    assert process.returncode == 130, errors
    assert "Traceback" not in errors and errors.rstrip().endswith("interrupted")
    assert 1 <= load_checkpoint(folder).meta["epoch"] < EPOCHS
    resumed = started_training("--resume", folder)
    errors = resumed.communicate(timeout=600)[1]
    assert resumed.returncode == 0, errors
    equals_uninterrupted(folder, whole)


EVALUATE = [
    *WORLD,
    *("--seeds", "3", "--steps", "8", "--tuning-scenarios", "0"),
]


@pytest.fixture(scope="module")
def evaluated(trained, tmp_path_factory):
    """Folder, result file and contents of an evaluation of two others and the trained policies."""
    folder = tmp_path_factory.mktemp("evaluations")
    names = f"best_static,clairvoyant,{trained}"
    out, file = folder / "run", folder / "result.json"
    argv = [*EVALUATE, "--schedulers", names, "--out", str(out), "--json", str(file)]
    assert evaluate.main(argv) == 0
    return out, file, strict(file.read_text())


def strict(text):
    """Parse JSON as its standard has it: no NaN, no infinity."""

    def refuse(constant):
        raise AssertionError(f"{constant} in strict JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.nightly
def test_a_large_family_is_bounded_by_those_that_come_near_the_best(evaluated, monkeypatch):
    bank = next(iter(evaluators.values()))
    whole, size = bank.bound(), bank.n_bounding
    monkeypatch.setattr(evaluation, "EVERY_PAIR", size - 1)
    monkeypatch.setattr(evaluation, "CONTENDERS", 40)
    few = bank.bound()
    assert bank.n_bounding == 40 < size
    assert np.all(few <= whole * (1 + 1e-6)) and np.all(few > 0.999 * whole)
    assert np.all(few >= bank.truth.table.rate[:, 1:].max(axis=2).sum(axis=1) * 60.0 * 0.9999)


def test_the_result_has_every_promised_key_for_every_scheduler(trained, evaluated):
    result = evaluated[2]
    assert set(result["schedulers"]) == {"best_static", "clairvoyant", str(trained)}
    for name, row in result["schedulers"].items():
        assert set(row) >= SUMMARY_KEYS, name
        low, high = row["regret_ci95_pct"]
        assert low <= row["regret_pct"] <= high
        assert 0 <= row["regret_pct"] <= row["bound_pct"] + 1e-3
        assert 0 < row["utilisation"] < 1 and 0 <= row["bandwidth_utilisation"] <= 1
        assert 0 < row["decision_ms_p50"] <= row["decision_ms_p99"]
    assert result["schedulers"]["best_static"]["replans"] == 0
    assert abs(result["schedulers"]["clairvoyant"]["regret_pct"]) < 1e-4
    assert result["headroom"]["n_scenarios"] == 3
    assert result["scenario"]["cluster"] == "four-aws-regions"
    assert result["scenario"]["seeds"] == 3 and result["scenario"]["weights"] == [1, 0, 0, 0]
    assert result["scenario"]["nominated"] == []  # nobody here brings plans of its own
    assert set(result["paired"][str(trained)]) == {"best_static", "clairvoyant"}


def test_the_run_folder_of_an_evaluation_holds_one_row_per_policy_and_scenario(evaluated):
    record = load(evaluated[0])
    assert record.run["status"] == "finished" and record.summary == evaluated[2]
    rows = record.table("scenarios")
    assert len(rows) == 3 * (1 + 1 + len(SEEDS))
    learned = rows[~rows["scheduler"].isin(names())]
    assert sorted(set(learned["policy_seed"])) == list(SEEDS)
    assert len(record.table("timeline")) == 3 * 8
    assert len(record.table("links")) == 8 * 12


@pytest.mark.nightly
def test_the_same_seeds_give_the_same_numbers_and_nothing_else_on_standard_output(
    trained, evaluated, capsys, tmp_path
):
    argv = [*EVALUATE, "--schedulers", "best_static,hi_ppo", "--json", "-"]
    # More headroom is asked for than there is: a remark, and all scenarios are compared.
    argv += ["--threshold-pct", "900"]
    capsys.readouterr()
    # By the checkpoint's name this time, which the name hi_ppo stands for.
    checkpoint = ["--checkpoint", str(trained / "checkpoint.msgpack")]
    assert evaluate.main([*argv, *checkpoint, "--out", str(tmp_path / "again")]) == 0
    out, err = capsys.readouterr()
    again, before = strict(out), evaluated[2]
    assert "no scenario has 900 % headroom" in err
    assert again["headroom"]["n_kept"] == 3
    paths = {"hi_ppo": str(trained)}
    for name, row in again["schedulers"].items():
        other = before["schedulers"][paths.get(name, name)]
        for key in SUMMARY_KEYS - {"decision_ms_p50", "decision_ms_p99", "gain_over_pct"}:
            assert row[key] == other[key], (name, key)
        for rival, gain in row["gain_over_pct"].items():
            assert gain == other["gain_over_pct"][paths.get(rival, rival)], (name, rival)
    assert again["scenario"] == before["scenario"]


def test_the_seeds_alone_name_the_scenarios(evaluated):
    """What the test above takes from memory: the same seeds draw the same bank, others another."""
    del evaluated
    world = shared_run().worlds[0].world
    settings, weights = EvaluateConfig().scenario, (1.0, 0.0, 0.0, 0.0)
    banks = [
        scenario_bank(world, settings, range(start, start + 3), split, weights)
        for start, split in ((0, "test"), (0, "test"), (3, "test"), (0, "train"))
    ]
    links = [np.asarray(params.network.ou_sigma) for params, _ in banks]
    keys = [np.asarray(jax.random.key_data(key))[:, 1] for _, key in banks]
    jax.tree.map(np.testing.assert_array_equal, banks[0][0], banks[1][0])
    for some in (links, keys):
        np.testing.assert_array_equal(some[0], some[1])
        for other in some[2:]:
            assert not np.any(some[0] == other)


@pytest.mark.nightly
def test_where_nothing_can_run_nothing_is_guessed(tmp_path, capsys):
    """Local jobs hold all GPUs: no regret, no step time, no price."""
    argv = [*EVALUATE, "--scenario.load-share", "1.0", "--schedulers", "best_static,clairvoyant"]
    capsys.readouterr()
    assert evaluate.main([*argv, "--out", "run", "--json", "-"]) == 0
    out, err = capsys.readouterr()
    assert "nothing to compare" in err and "Warning" not in err
    result = strict(out)
    assert result["headroom"]["n_kept"] == 0
    for name, row in result["schedulers"].items():
        for key in ("regret_pct", "bound_pct", "headroom_pct", "step_s", "usd_per_mtoken"):
            assert row[key] is None, (name, key)
        assert row["tokens_per_s"] == 0 and row["regret_ci95_pct"] == [None, None]
    rows = load(tmp_path / "run").table("scenarios")
    assert (rows["progress"] == 0).all() and rows["regret_pct"].isna().all()
    assert "0 of 3 scenarios" in scheduler_table(result)


def test_headroom_is_what_clairvoyant_gains_over_each(evaluated):
    """Best static plays 1 - regret of clairvoyant's work: clairvoyant gains regret / (1 - regret)."""
    rows = evaluated[2]["schedulers"]
    for row in rows.values():
        share = 1 - row["regret_pct"] / 100
        assert row["headroom_pct"] == pytest.approx(100 * (1 / share - 1), abs=1e-9)
    assert rows["best_static"]["headroom_pct"] > 0
    text = scheduler_table(evaluated[2])
    assert text.index("headroom") < text.index("% of clairvoyant")


@pytest.mark.nightly
def test_an_interrupted_evaluation_goes_on_with_the_same_numbers(trained, evaluated, capsys):
    names = f"best_static,clairvoyant,{trained}"
    argv = [*EVALUATE, "--schedulers", names, "--out", "run"]
    whole, played = evaluation_module.Evaluation._play, []

    def play(self, *known):
        name = known[-1]
        if name == "clairvoyant" and "clairvoyant" not in played:
            played.append(name)
            raise KeyboardInterrupt
        played.append(name)
        return whole(self, *known)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation_module.Evaluation, "_play", play)
        capsys.readouterr()
        assert evaluate.main(argv) == 130
        assert "--resume run" in capsys.readouterr().err
        assert load("run").run["status"] == "interrupted"
        # A row of one that was not finished, as a kill between two tables leaves it.
        timeline = Path("run", "timeline.csv")
        timeline.write_text(timeline.read_text() + "clairvoyant,0.0,1.0,1.0,0,0,torn\n")
        assert "seeds" in refused(capsys, "evaluate", ["--resume", "run", "--seeds", "9"])
        assert evaluate.main(["--resume", "run", "--json", "again.json"]) == 0
    assert played == ["best_static", "clairvoyant", "clairvoyant", str(trained)]
    again, before = strict(Path("again.json").read_text()), evaluated[2]
    for name, row in again["schedulers"].items():
        for key in SUMMARY_KEYS - {"decision_ms_p50", "decision_ms_p99"}:
            assert row[key] == before["schedulers"][name][key], (name, key)
    assert {k: v for k, v in again.items() if k != "schedulers"} == {
        k: v for k, v in before.items() if k != "schedulers"
    }
    for table in ("scenarios", "timeline", "traffic", "links", "bounds"):
        ours, theirs = (Path(f) / f"{table}.csv" for f in ("run", evaluated[0]))
        assert ours.read_bytes() == theirs.read_bytes(), table
    assert load("run").run["status"] == "finished"


def test_the_report_is_made_from_both_run_folders(trained, evaluated, capsys):
    assert report.main([str(evaluated[0]), str(trained)]) == 0
    path = evaluated[0] / "report.md"
    assert path.is_file() and str(path) in capsys.readouterr().out
    text = path.read_text()
    assert "clairvoyant" in text and "![" in text


class Fake:
    """An evaluator whose regret is the distance of a tuned value from the one it likes."""

    world = types.SimpleNamespace(
        table=types.SimpleNamespace(candidates_of={"sailor": np.ones((1, 1), bool)}),
        problem=types.SimpleNamespace(choices=types.SimpleNamespace(size=1)),
    )

    def __init__(self, likes):
        self.likes, self.asked = likes, 0

    def regret_pct(self, scheduler):
        self.asked += 1
        value = getattr(scheduler, "decay" if hasattr(scheduler, "decay") else "horizon")
        return np.full(4, abs(float(value) - self.likes))


def test_rivals_are_tuned_to_the_value_of_least_regret_on_their_grid():
    tuned_ones = [e for e in ENTRIES if len(e.tunables) == 1 and e.tunables[0].grid]
    names = [entry.name for entry in tuned_ones]
    assert names == ["hysteresis", "self_tuning_hysteresis", "replan_oracle"]
    for entry in tuned_ones:
        grid, key = entry.tunables[0].grid, entry.tunables[0].key
        for best in grid:
            fake = Fake(best)
            tuned = tune([fake], ["best_static", entry.name])
            assert tuned == {**default_settings(), key: best} and fake.asked == len(grid)
    assert tune([Fake(0.0)], ["best_static", "random"]) == default_settings()
    nothing_runs = Fake(float("nan"))
    assert tune([nothing_runs], ["hysteresis"]) == default_settings() and nothing_runs.asked


class FakeOfThree(Fake):
    """Least regret where all three are as it likes them, one of them the more the larger another."""

    def regret_pct(self, scheduler):
        self.asked += 1
        horizon, alpha, weight = self.likes
        off = abs(float(scheduler.horizon) - horizon * float(scheduler.alpha) / alpha)
        off += 10 * abs(float(scheduler.alpha) - alpha) + abs(
            float(scheduler.expected_weight) - weight
        )
        return np.full(4, off)


def test_a_rival_is_tuned_on_several_worlds_together():
    """One likes 2, two like 20: 20 loses least in the mean."""
    horizon = find("hysteresis").tunables[0]
    tuned = tune([Fake(2.0), Fake(20.0), Fake(20.0)], ["hysteresis"])
    assert tuned[horizon.key] == 20.0


def test_beside_a_policy_rivals_play_what_it_brings_and_what_is_tuned_here():
    mixture = {t.key: t.default for t in find("smoothed_hysteresis").tunables}
    names = ["best_static", "hysteresis", "smoothed_hysteresis", "outputs/mine"]
    assert with_tuned_here(names, {}) == names
    assert with_tuned_here(names, mixture) == [*names[:3], "smoothed_hysteresis@here", names[3]]
    world = shared_run().worlds[0].world
    settings = {**default_settings(), "smoothed_horizon": 5.0}
    here = contestants("smoothed_hysteresis@here", {}, settings, world)[0].scheduler
    assert float(here.horizon) == 5.0


def test_several_numbers_of_a_rival_are_tuned_together_and_nothing_is_played_twice():
    horizon, alpha, weight = find("smoothed_hysteresis").tunables
    fake = FakeOfThree((5.0, 0.7, 0.3))
    tuned = tune([fake], ["smoothed_hysteresis"])
    assert [tuned[t.key] for t in (horizon, alpha, weight)] == [5.0, 0.7, 0.3]
    sizes = [len(t.grid) for t in (horizon, alpha, weight)]
    assert max(sizes) < fake.asked <= 2 * sum(sizes) - 3


def test_a_trace_trains_on_its_first_part_and_the_rest_is_held_out(tmp_path, monkeypatch):
    monkeypatch.setattr(worlds, "load_world", cached_world)
    file = tmp_path / "links.csv"
    rows = [f"{60 * t},virginia,ohio,{1 + t}" for t in range(8)]
    file.write_text("\n".join(["t_s,src,dst,factor", *rows, ""]))
    config = tiny_config(trace=file)
    assert config.scenario.jitter == "none" and config.scenario.base_spread == 0.5  # as given
    (world,) = worlds.training_worlds(config)
    factors = {key: world.spec.domains.index(key) for key in ("virginia", "ohio")}
    link = (slice(None), factors["virginia"], factors["ohio"])
    assert world.traces["network_trace"][link].tolist() == [1, 2, 3, 4, 5, 6]
    assert world.held_out["network_trace"][link].tolist() == [7, 8]
    assert world.traces["load_trace"] is world.held_out["load_trace"] is None
    params, _ = world.bank(config)
    shown = np.asarray(params.network.trace)[(slice(None), *link)]
    assert shown.tolist() == [[1, 2, 3, 4, 5, 6]] * config.scenarios
    with pytest.raises(InputError, match=r"nowhere\.csv"):
        worlds.training_worlds(dataclasses.replace(config, trace="nowhere.csv"))


@pytest.mark.parametrize(("rows", "first"), [(1, 1), (2, 2), (4, 3), (8, 6), (9, 7)])
def test_every_row_of_a_trace_has_its_part(rows, first):
    train_on, held_out = worlds.divided(np.arange(rows))
    assert train_on.tolist() == list(range(first))
    assert held_out.tolist() == (list(range(first, rows)) or list(range(rows)))


def test_sizes_that_do_not_divide_are_one_line(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "_in_chunks", lambda *_: shared_run().trainer.tapes)
    argv = [*WORLD[:4], "--train.algorithm", "ppo", "--train.rollout", "3"]
    argv += ["--scenarios", "1", "--out", "run"]
    capsys.readouterr()
    assert train.main(argv) == 2
    line = capsys.readouterr().err
    assert line.startswith("error: train: ") and line.count("\n") == 1 and "rollout" in line
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("program", ["train", "evaluate"])
def test_a_folder_that_holds_something_is_not_written_to(
    program, trained, capsys, tmp_path, monkeypatch
):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work")
    argv = ARGV if program == "train" else [*EVALUATE, "--schedulers", "random"]
    line = refused(capsys, program, [*argv, "--out", str(folder)])
    assert str(folder) in line and "not empty" in line
    assert [p.name for p in folder.iterdir()] == ["thesis.txt"]
    before = sorted((p.name, p.stat().st_mtime_ns) for p in trained.iterdir())
    assert "not empty" in refused(capsys, program, [*argv, "--out", str(trained)])
    assert sorted((p.name, p.stat().st_mtime_ns) for p in trained.iterdir()) == before


@pytest.mark.parametrize("program", ["train", "evaluate"])
def test_the_run_folder_is_checked_before_the_work(program, capsys, monkeypatch):
    module, worker = {
        "train": (training, "TrainingRun"),
        "evaluate": (evaluation_module, "Evaluation"),
    }[program]
    monkeypatch.setattr(module, worker, lambda *_: pytest.fail("work has started"))
    Path("thesis.txt").write_text("years of work")
    for folder in (".", "thesis.txt", "thesis.txt/run"):
        assert folder in refused(capsys, program, ["--out", folder])
    assert [p.name for p in Path().iterdir()] == ["thesis.txt"]


def test_a_run_whose_checkpoint_is_damaged_is_left_as_it_is(trained, tmp_path, capsys):
    folder = tmp_path / "copy"
    folder.mkdir()
    for path in trained.iterdir():
        if path.is_file():
            (folder / path.name).write_bytes(path.read_bytes())
    checkpoint = folder / "checkpoint.msgpack"
    checkpoint.write_bytes(checkpoint.read_bytes()[:-40])
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    line = refused(capsys, "train", ["--resume", str(folder)])
    assert str(checkpoint) in line and "truncated" in line
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before


def test_a_folder_that_holds_no_run_is_not_resumed(capsys, tmp_path):
    line = refused(capsys, "train", ["--resume", "nowhere"])
    assert "nowhere" in line and "run.json" in line
    assert not list(tmp_path.iterdir())


def test_an_evaluation_is_not_resumed_as_training(evaluated, capsys):
    before = sorted((p.name, p.stat().st_mtime_ns) for p in evaluated[0].iterdir())
    refused(capsys, "train", ["--resume", str(evaluated[0])])
    assert sorted((p.name, p.stat().st_mtime_ns) for p in evaluated[0].iterdir()) == before


def test_training_starts_from_the_policy_that_is_named(trained):
    run = TrainingRun(tiny_config(start=trained))
    expected = policies(load_checkpoint(trained))[0]
    for i in range(len(SEEDS)):
        jax.tree.map(np.testing.assert_array_equal, take(run.state.policy, i), expected)
