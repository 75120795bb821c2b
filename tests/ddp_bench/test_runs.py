"""Real jobs of several ranks: training, resuming, recovering, failing. Two ranks, tiny encoder."""

import json
import re
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from helpers.ddp_launch import ENVIRONMENT, LIMIT_S, ROOT, Done, launch
from helpers.tiny_encoder import save_tiny_encoder

pytestmark = pytest.mark.slow  # processes that train

BASE = [
    *("--dataset", "synthetic", "--synthetic_rows", "600", "--eval_samples", "60"),
    *("--global_batch", "8", "--eval_every", "4", "--steps", "8"),
    *("--tensorboard", "false", "--cost", "tokens", "--max_age_steps", "3"),
]


@pytest.fixture(scope="module", autouse=True)
def environment():
    """Of the server that ranks are forked from."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return save_tiny_encoder(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="module")
def train(encoder, tmp_path_factory):
    """`train(folder, *arguments, ranks=2, max_restarts=0)` -> how the job ended."""

    def call(folder, *arguments, **options):
        logs = tmp_path_factory.mktemp("logs") / "job"
        given = (*BASE, "--model", encoder, "--output_dir", folder, *arguments)
        return launch(logs, "ddp_bench.train_ddp", *given, **options)

    return call


def torchrun(*arguments):
    """The same by the command that users start."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc_per_node=2", "-m", "ddp_bench.train_ddp", *map(str, arguments)]
    begin = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S)
    return Done(done.returncode, done.stderr, time.monotonic() - begin)


def said(done):
    """What ddp_bench, not torchrun, has to say."""
    return [line for line in done.stderr.splitlines() if line.startswith("ddp_bench:")]


def losses(folder):
    table = pd.read_csv(folder / "merged_metrics.csv")
    return table[table["rank"] == 0].pivot(index="step", columns="arm", values="global_loss")


@pytest.mark.nightly
def test_gradients_are_exact_for_uneven_and_empty_shares(tmp_path):
    done = launch(tmp_path / "logs", "helpers.ddp_worker")
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.fixture(scope="module")
def compared(tmp_path_factory, train):
    """All arms interleaved, gradients checked, with the fitted cost."""
    folder = tmp_path_factory.mktemp("compare") / "run"
    done = train(folder, "--mode", "compare", "--check_gradients", "--cost", "fitted", ranks=4)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder, done


def test_every_arm_of_compare_trains_on_the_same_stream_with_exact_gradients(compared):
    folder, _ = compared
    summary = json.loads((folder / "summary.json").read_text())
    assert len(summary["gradient_check"]) == 7
    for errors in summary["gradient_check"].values():
        assert max(errors["float64_whole"], errors["float64_accumulated"]) <= 1e-12
        assert max(errors["float32_whole"], errors["float32_accumulated"]) <= 1e-5
    evaluations = pd.read_csv(folder / "eval.csv")
    assert evaluations["stream_ok"].all() and len(evaluations) == 14
    assert (evaluations["used"] + evaluations["held"] == evaluations["cursor"]).all()
    assert json.loads((folder / "run.json").read_text())["status"] == "finished"


def test_metrics_hold_every_rank_and_step_and_never_invent_a_number(compared):
    folder, _ = compared
    table = pd.read_csv(folder / "merged_metrics.csv")
    assert len(table) == 8 * 7 * 4
    by_step = table.groupby(["arm", "step"])
    assert (by_step["local_batch"].sum() == 8).all()
    assert table["peak_mem_mb"].isna().all()  # on a CPU none is measured
    assert (table[["compute_ms", "step_time_ms", "schedule_ms"]] > 0).all(axis=None)
    padded = table[table["arm"] != "packed"]
    product = padded["local_batch"] * padded["max_seq_len_in_batch"]
    assert (padded["padded_tokens"] == product).all()
    packed = table[table["arm"] == "packed"]
    assert (packed["padded_tokens"] == packed["real_tokens"]).all()
    # Equal samples give equal first losses, whoever computes them.
    first = losses(folder).loc[0, ["static", "pooled", "packed", "hf_batch_rebalance"]]
    assert np.ptp(first.to_numpy()) < 0.05


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, train):
    """What the disturbed runs must reproduce."""
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    done = train(folder, *ARMS)
    assert done.returncode == 0, done.stderr[-2000:]
    return losses(folder)


ARMS = ("--mode", "compare", "--arms", "dynamic,group_by_length_pooled,packed")


def test_resume_after_kill_continues_to_the_same_losses(tmp_path, encoder, undisturbed):
    folder = tmp_path / "run"
    given = (*BASE, "--model", encoder, "--output_dir", folder, *ARMS)
    done = torchrun(*given, "--checkpoint_every", 3, "--inject", "kill:1:5")
    assert done.returncode != 0
    assert done.seconds < 110 and re.search(r"exitcode\s*: -9", done.stderr)
    assert said(done) == ["ddp_bench: rank 1: dead, or silent for 120 s"]
    assert "pair.cc" not in done.stderr
    done = launch(tmp_path / "logs", "ddp_bench.train_ddp", "--resume", folder)
    assert done.returncode == 0, done.stderr[-2000:]
    pd.testing.assert_frame_equal(losses(folder), undisturbed)
    assert pd.read_csv(folder / "eval.csv")["stream_ok"].all()


def test_torchrun_restarts_from_the_checkpoint(tmp_path, train, undisturbed):
    folder = tmp_path / "run"
    options = ("--checkpoint_every", 3, "--inject", "raise:0:5")
    done = train(folder, *ARMS, *options, max_restarts=1)
    assert done.returncode == 0, done.stderr[-2000:]
    pd.testing.assert_frame_equal(losses(folder), undisturbed)


def test_running_out_of_memory_on_one_rank_is_redone_on_all(tmp_path, train):
    folder = tmp_path / "run"
    done = train(folder, "--mode", "pooled", "--inject", "oom:1:2")
    assert done.returncode == 0, done.stderr[-2000:]
    table = pd.read_csv(folder / "merged_metrics.csv")
    assert table.groupby("step")["oom_redos"].apply(list).to_dict() == {
        step: [1, 1] if step == 2 else [0, 0] for step in range(8)
    }
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["fit"]["pooled"]["oom_redone"] == 1
    assert table["global_loss"].notna().all()


def test_an_exception_on_one_rank_ends_the_job_and_names_it(tmp_path, train):
    done = train(tmp_path / "run", "--mode", "pooled", "--inject", "raise:1:2")
    assert done.returncode != 0 and done.seconds < 110
    assert said(done) == ["ddp_bench: rank 1: RuntimeError: drill: exception in forward"]
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] != "finished"


@pytest.mark.nightly
def test_a_stalled_rank_ends_the_job_within_the_timeout_and_is_named(tmp_path, train):
    done = train(tmp_path / "run", "--mode", "static", "--inject", "stall:1:2", "--timeout_s", 6)
    assert done.returncode != 0 and done.seconds < 110
    assert said(done) == ["ddp_bench: rank 1: dead, or silent for 6 s"]


@pytest.mark.parametrize(
    "extra",
    [("--sync", "overlap", "--micro_batch", "2"), ("--amp", "bf16", "--pad_to_multiple_of", "8")],
)
def test_other_precisions_and_overlapping_train(tmp_path, train, extra):
    done = train(tmp_path / "run", "--mode", "dynamic", *extra)
    assert done.returncode == 0, done.stderr[-2000:]
    table = pd.read_csv(tmp_path / "run" / "merged_metrics.csv")
    assert np.isfinite(table["global_loss"]).all()
    assert table["wait_ms"].isna().all() == ("overlap" in extra)


def test_bad_input_is_said_once_and_leaves_nothing(tmp_path, train):
    rows = tmp_path / "rows.tsv"
    rows.write_text("sentence\tlabel\nfine\t1\nbroken\n")
    done = train(tmp_path / "run", "--dataset", rows)
    assert done.returncode != 0
    lines = said(done)
    assert len(lines) == 1 and "line 3" in lines[0] and str(rows) in lines[0]
    assert not (tmp_path / "run").exists() and "ConfigError" not in done.stderr
