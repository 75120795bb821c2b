"""Whole runs of one rank inside this process: what is refused, what is left behind, resuming."""

import json
import logging

import numpy as np
import pandas as pd
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from ddp_bench.train_ddp import main  # noqa: E402

BASE = [
    *("--dataset", "synthetic", "--synthetic_rows", "200", "--eval_samples", "20"),
    *("--model", "small", "--global_batch", "4", "--eval_every", "2", "--steps", "4"),
    *("--tensorboard", "false", "--cost", "tokens", "--max_length", "32"),
    *("--mode", "compare", "--arms", "static,dynamic"),
]


@pytest.fixture
def run(monkeypatch, capfd):
    """`run(*arguments)` -> (exit status, lines that ddp_bench wrote on standard error)."""
    for name in ("OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM", "TRANSFORMERS_VERBOSITY"):
        monkeypatch.setenv(name, "1" if name.startswith("OMP") else "false")
    monkeypatch.setenv("TRANSFORMERS_VERBOSITY", "error")
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    threads = torch.get_num_threads()

    def call(*arguments):
        status = main([str(argument) for argument in arguments])
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        logger = logging.getLogger("ddp_bench")
        for handler in [*logger.handlers]:
            logger.removeHandler(handler)
            handler.close()
        said = capfd.readouterr().err
        assert "Traceback" not in said
        return status, [line for line in said.splitlines() if line.startswith("ddp_bench:")]

    yield call
    torch.set_num_threads(threads)


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
def test_bad_input_is_one_line_and_makes_no_folder(run, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.tsv").write_text("sentence\tlabel\nfine\t1\nbroken\n")
    (tmp_path / "empty").mkdir()
    status, lines = run(*BASE, "--output_dir", "run", *arguments)
    assert status == 2 and len(lines) == 1 and said in lines[0]
    assert not (tmp_path / "run").exists()


def test_checking_gradients_does_not_change_training(run, tmp_path):
    for name, extra in (("plain", ()), ("checked", ("--check_gradients",))):
        assert run(*BASE, "--output_dir", tmp_path / name, *extra) == (0, [])
    pd.testing.assert_frame_equal(losses(tmp_path / "plain"), losses(tmp_path / "checked"))
    checked = json.loads((tmp_path / "checked" / "summary.json").read_text())["gradient_check"]
    assert np.max([list(errors.values()) for errors in checked.values()]) <= 1e-5
