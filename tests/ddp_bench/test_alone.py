"""Whole runs of one rank inside this process: what is refused, what is left behind, resuming."""

import json
import logging
import shutil

import numpy as np
import pandas as pd
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from helpers.tiny_encoder import save_tiny_encoder  # noqa: E402

from ddp_bench.train_ddp import main  # noqa: E402

BASE = [
    *("--dataset", "synthetic", "--synthetic_rows", "200", "--eval_samples", "20"),
    *("--global_batch", "4", "--eval_every", "2", "--steps", "4"),
    *("--tensorboard", "false", "--cost", "tokens", "--max_length", "32"),
    *("--mode", "compare", "--arms", "static,dynamic"),
]


def end_job():
    """What the end of a process would do."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    logger = logging.getLogger("ddp_bench")
    for handler in [*logger.handlers]:
        logger.removeHandler(handler)
        handler.close()


@pytest.fixture(scope="module", autouse=True)
def as_before():
    """A run limits the threads of its process: undo that."""
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM", "TRANSFORMERS_VERBOSITY"):
            patch.setenv(name, "")  # so that it is put back
            patch.delenv(name)
        patch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        yield
    torch.set_num_threads(threads)


@pytest.fixture
def run(capfd):
    """`run(*arguments)` -> (exit status, lines that ddp_bench wrote on standard error)."""

    def call(*arguments):
        status = main([str(argument) for argument in arguments])
        end_job()
        said = capfd.readouterr().err
        assert "Traceback" not in said
        return status, [line for line in said.splitlines() if line.startswith("ddp_bench:")]

    return call


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """BASE with a model."""
    return [*BASE, "--model", str(save_tiny_encoder(tmp_path_factory.mktemp("encoder")))]


def losses(folder):
    table = pd.read_csv(folder / "merged_metrics.csv")
    return table.pivot(index="step", columns="arm", values="global_loss")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--dataset", "rows.tsv"), "rows.tsv: line 3"),
        (("--model", "empty"), "model 'empty'"),
        (("--b_max", "3"), "b_max sums to 3"),
    ],
)
def test_bad_input_is_one_line_and_makes_no_folder(
    run, base, tmp_path, monkeypatch, arguments, said
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.tsv").write_text("sentence\tlabel\nfine\t1\nbroken\n")
    (tmp_path / "empty").mkdir()
    status, lines = run(*base, "--output_dir", "run", *arguments)
    assert status == 2 and len(lines) == 1 and said in lines[0]
    assert not (tmp_path / "run").exists()


def test_checking_gradients_does_not_change_training(run, base, tmp_path):
    for name, extra in (("plain", ()), ("checked", ("--check_gradients",))):
        assert run(*base, "--output_dir", tmp_path / name, *extra) == (0, [])
    pd.testing.assert_frame_equal(losses(tmp_path / "plain"), losses(tmp_path / "checked"))
    checked = json.loads((tmp_path / "checked" / "summary.json").read_text())["gradient_check"]
    assert np.max([list(errors.values()) for errors in checked.values()]) <= 1e-5


def test_which_data_and_model_were_used_is_said_and_recorded(tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    asked = ["--model", "distilbert-base-uncased", "--dataset", "sst2", "--synthetic_rows", "300"]
    shape = ["--eval_samples", "20", "--steps", "1", "--mode", "pooled"]
    assert main([*asked, *shape, "--output_dir", str(tmp_path / "r")]) == 0
    end_job()
    said = capfd.readouterr().err
    assert "SYNTHETIC corpus" in said and "SMALL encoder" in said
    setup = json.loads((tmp_path / "r" / "summary.json").read_text())["setup"]
    assert (setup["model"], setup["data_source"]) == ("small", "synthetic")


def test_very_long_sentences_are_cut_and_said(base, tmp_path, capfd):
    rows = tmp_path / "rows.tsv"
    body = [f"film number {i}\t{i % 2}" for i in range(60)] + ["word " * 10000 + "\t1"]
    rows.write_text("sentence\tlabel\n" + "\n".join(body) + "\n")
    given = ["--dataset", str(rows), "--eval_samples", "8", "--max_length", "256"]
    assert main([*base, *given, "--output_dir", str(tmp_path / "run")]) == 0
    end_job()
    assert "1 sentence(s) cut at 256 tokens" in capfd.readouterr().err


@pytest.fixture(scope="module")
def stopped(tmp_path_factory, base):
    """A run that failed at step 3 of 4, with a checkpoint after step 2."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    drill = ("--checkpoint_every", "2", "--inject", "raise:0:3")
    assert main([*base, "--output_dir", str(folder), *drill]) == 1
    end_job()
    return folder


@pytest.fixture
def interrupted(stopped, tmp_path):
    """A copy of it, to be changed."""
    return shutil.copytree(stopped, tmp_path / "run")


def test_resuming_needs_nothing_but_the_folder(run, base, interrupted, tmp_path):
    assert run(*base, "--output_dir", tmp_path / "whole") == (0, [])
    assert run("--resume", interrupted, "--timeout_s", "60") == (0, [])
    pd.testing.assert_frame_equal(losses(interrupted), losses(tmp_path / "whole"))
    config = json.loads((interrupted / "run.json").read_text())["config"]
    assert (config["steps"], config["timeout_s"], config["inject"]) == (4, 60.0, "")
    # A run that is already over ends as it did.
    before = (interrupted / "eval_rows.csv").read_text()
    assert run("--resume", interrupted) == (0, [])
    assert (interrupted / "eval_rows.csv").read_text() == before


@pytest.mark.parametrize(
    "changes",
    [
        *(("--max_length", "8"), ("--learning_rate", "0.1"), ("--eval_samples", "10")),
        *(("--model", "distilbert-base-uncased"), ("--synthetic_rows", "300"), ("--seed", "1")),
        *(("--cost", "fitted"), ("--arms", "static"), ("--output_dir", "elsewhere")),
    ],
)
def test_other_settings_are_refused_and_nothing_is_written(run, interrupted, changes):
    before = contents(interrupted)
    status, lines = run("--resume", interrupted, *changes)
    assert status == 2 and len(lines) == 1
    assert f"{changes[0].removeprefix('--')} is " in lines[0] and "allowed" in lines[0]
    assert contents(interrupted) == before


def test_another_number_of_ranks_is_refused(run, interrupted):
    status, lines = run("--resume", interrupted, "--validate_only", "--for_ranks", "2")
    assert status == 2 and len(lines) == 1 and "2 ranks: allowed to resume" in lines[0]
    record = json.loads((interrupted / "run.json").read_text())
    record["config"]["ranks"] = 2
    (interrupted / "run.json").write_text(json.dumps(record))
    before = contents(interrupted)
    status, lines = run("--resume", interrupted)
    assert status == 2 and len(lines) == 1 and "1 ranks: allowed to resume" in lines[0]
    assert contents(interrupted) == before


@pytest.mark.parametrize("check", [(), ("--validate_only",)])
def test_a_truncated_checkpoint_is_one_line(run, interrupted, check):
    path = interrupted / "checkpoint.pt"
    path.write_bytes(path.read_bytes()[:-1000])
    before = contents(interrupted)
    status, lines = run("--resume", interrupted, *check)
    assert status == 2 and len(lines) == 1 and str(path) in lines[0] and "damaged" in lines[0]
    assert contents(interrupted) == before


def test_a_checkpoint_of_another_run_is_refused(run, interrupted):
    """The settings in run.json no longer are those of the checkpoint beside it."""
    record = json.loads((interrupted / "run.json").read_text())
    record["config"]["max_length"] = 8
    (interrupted / "run.json").write_text(json.dumps(record))
    status, lines = run("--resume", interrupted)
    assert status == 2 and len(lines) == 1
    assert "checkpoint.pt: max_length is 8; allowed to resume is 32" in lines[0]


def contents(folder):
    """Every file of a folder, byte for byte."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
