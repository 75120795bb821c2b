"""Tables of measured runs: what is read, what is refused, and what is predicted of a run."""

import dataclasses

import numpy as np
import pytest
from helpers.measured_runs import ROW, made_run, varied_runs, write_runs
from helpers.plan_check import check_plan

from jaxsim.calibration.measured import (
    NODE_GB_PER_S,
    is_measured_table,
    load_measured,
    predict_runs,
    run_arrays,
)
from jaxsim.cluster.efficiency import prior_calibration
from jaxsim.files.errors import InputError
from jaxsim.trees import take
from jaxsim.workload.workload import ModelConfig


def test_a_row_becomes_a_run(tmp_path):
    runs, left_out = load_measured(write_runs(tmp_path / "made.csv", {}))
    assert left_out == []
    assert runs == [made_run(row_id="r-0", dataset="made")]
    job = runs[0].job
    assert (job.global_batch, job.seq, job.flash_attention) == (64, 2048, True)
    assert job.causal_flops and job.sequence_parallel and not job.async_tensor_parallel


def test_optional_columns_and_empty_fields_have_defaults(tmp_path):
    left = dict.fromkeys(("zero_stage", "interleave", "compile", "async_tp", "peak_memory_gib"))
    path = write_runs(tmp_path / "made.csv", {**left, "sequence_parallel": "", "note": None})
    (run,), _ = load_measured(path, strict=True)
    assert (run.zero_stage, run.virtual_stages, run.async_tp) == (0, 1, False)
    assert run.peak_memory_gib is None and not run.sequence_parallel and run.note == ""
    assert run.compiled, "fused kernels exist in 16 bits"
    (run,), _ = load_measured(write_runs(tmp_path / "wide.csv", {"precision": "fp32"}))
    assert not run.compiled
    (run,), _ = load_measured(write_runs(tmp_path / "memory.csv", {"step_s": ""}))
    assert run.step_s is None


def test_aliases_notes_and_modes(tmp_path):
    note = "mode x; activation_GiB 9.5625; param_opt_GiB 45.5"
    path = write_runs(
        tmp_path / "made.csv",
        {"gpu": "GH-96", "note": note, "recompute": "per-op SAC", "ffn_matrices": 3},
        {"note": "activation_GiB ; param_opt_GiB 31.5", "attention": "unfused"},
    )
    first, second = load_measured(path, strict=True)[0]
    assert first.gpu == "GH200-96GB"
    assert (first.activation_gib, first.state_gib) == (9.5625, 45.5)
    assert (second.activation_gib, second.state_gib) == (None, 31.5)
    assert second.model.tied_embeddings and not first.model.tied_embeddings
    assert not second.flash and not second.job.causal_flops


BAD_ROWS = {
    "zero time": ({"step_s": 0}, ["step_s", "> 0", "'0'"]),
    "negative time": ({"step_s": -1.5}, ["step_s", "> 0", "'-1.5'"]),
    "NaN time": ({"step_s": "nan"}, ["step_s", "finite", "'nan'"]),
    "infinite memory": ({"peak_memory_gib": "inf"}, ["peak_memory_gib", "finite", "'inf'"]),
    "time in words": ({"step_s": "fast"}, ["step_s", "number", "'fast'"]),
    "plan and GPUs": ({"n_gpus": 24}, ["tp x cp x pp x dp = 16", "n_gpus = 24"]),
    "batch": ({"global_batch": 66}, ["global_batch 66", "multiple of 4"]),
    "stages": ({"layers": 1}, ["pp", "2 stages for 1 layers"]),
    "GPU": ({"gpu": "B300"}, ["gpu", "unknown 'B300'", "known: ", "A100-80GB"]),
    "recompute": ({"recompute": "most"}, ["recompute", "unknown 'most'", "none, selective"]),
    "precision": ({"precision": "int4"}, ["precision", "unknown 'int4'", "bf16, fp16, fp32"]),
    "attention": ({"attention": "ring"}, ["attention", "unknown 'ring'", "unfused, flash"]),
    "empty count": ({"hidden": ""}, ["hidden is empty"]),
    "zero heads": ({"heads": 0}, ["heads", "integer >= 1", "'0'"]),
    "half a GPU": ({"n_gpus": 16.5}, ["n_gpus", "integer >= 1", "'16.5'"]),
    "ZeRO-4": ({"zero_stage": 4}, ["zero_stage", "integer", "0", "3", "'4'"]),
    "width of a head": ({"heads": 7, "kv_heads": 7, "tp": 1, "dp": 8}, ["heads: 7", "hidden 2048"]),
    "groups of heads": ({"kv_heads": 32}, ["kv_heads: 32", "heads 16"]),
    "heads of a slice": ({"tp": 5, "n_gpus": 20}, ["tp: 5", "heads 16"]),
    "FFN": ({"ffn_matrices": 9}, ["ffn_matrices", "2 (plain) or 3 (gated)", "9"]),
    "chunks": ({"interleave": 7, "pp": 1, "dp": 4}, ["interleave: 7", "pp = 1"]),
    "the same row": ({"row_id": "r-0"}, ["row_id", "line 2"]),
    "flag": ({"sequence_parallel": 2}, ["sequence_parallel", "integer", "0", "1", "'2'"]),
}


@pytest.mark.parametrize("kind", BAD_ROWS)
def test_a_bad_row_is_left_out_or_refused(tmp_path, kind):
    changes, words = BAD_ROWS[kind]
    path = write_runs(tmp_path / "made.csv", {}, changes, {})
    runs, left_out = load_measured(path)
    assert [r.row_id for r in runs] == ["r-0", "r-2"], "its neighbours stay"
    # Line 1 is the header.
    name = changes.get("row_id", "r-1")
    assert_line(left_out[0], [f"{path}: line 3 ({name}): ", *words])
    assert len(left_out) == 1
    with pytest.raises(InputError) as error:
        load_measured(path, strict=True)
    assert str(error.value) == left_out[0]


@pytest.mark.parametrize("column", [k for k in ROW if k in ("row_id", "tp", "step_s", "gpu")])
def test_a_missing_column_is_refused_at_once(tmp_path, column):
    path = write_runs(tmp_path / "made.csv", {column: None})
    for strict in (False, True):
        with pytest.raises(InputError) as error:
            load_measured(path, strict)
        assert_line(str(error.value), [str(path), f"missing column {column!r}", "needed: row_id"])


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00\x01", b'a,b\n"1\n2,3\n4,5,6,7\n'])
def test_a_file_that_is_no_table(tmp_path, content):
    path = tmp_path / "made.csv"
    path.write_bytes(content)
    with pytest.raises(InputError) as error:
        load_measured(path)
    assert_line(str(error.value), [str(path), "cannot be read as a table of measured runs"])


def test_a_row_cut_short_is_a_bad_row(tmp_path):
    path = write_runs(tmp_path / "made.csv", {})
    path.write_text(path.read_text() + "r-1,A100-80GB,16\n")
    runs, left_out = load_measured(path)
    assert len(runs) == 1
    assert_line(left_out[0], [f"{path}: line 3 (r-1): gpus_per_node is empty"])


def test_a_header_tells_a_table_of_runs(tmp_path):
    assert is_measured_table(write_runs(tmp_path / "made.csv", {}))
    other = tmp_path / "other.csv"
    for content in (b"row_id,gpu\n", b"", b"\x1f\x8b\x08\xff\xfe\n"):
        other.write_bytes(content)
        assert not is_measured_table(other)


def test_a_run_is_a_plan_that_can_be_carried_out():
    runs = varied_runs()
    plans, works, clusters, views = run_arrays(runs)
    for i, run in enumerate(runs):
        plan, work, cluster = (take(t, i) for t in (plans, works, clusters))
        check_plan(plan, work, np.asarray(cluster.gpus), ("a",))
        assert int(plan.gpus[0]) == run.n_gpus
        assert float(cluster.intra_gb_per_s) == NODE_GB_PER_S["A100"]
    assert np.asarray(views.gpus_available).ravel().tolist() == [16] * len(runs)


def test_predictions_stand_in_the_order_of_the_runs():
    runs = varied_runs()[:6]
    together = predict_runs(run_arrays(runs), prior_calibration())
    backwards = predict_runs(run_arrays(runs[::-1]), prior_calibration())
    np.testing.assert_allclose(together.total_s, backwards.total_s[::-1], rtol=1e-6)
    assert len(set(np.asarray(together.total_s).tolist())) == 6
    assert np.all(np.asarray(together.total_s) > 0)


def test_memory_that_does_not_suffice_leaves_the_time_finite():
    large = made_run(model=ModelConfig(24, 16384, 128, 128, 65536, 2, 51200, True))
    cost = predict_runs(run_arrays([large]), prior_calibration())
    assert not bool(cost.fits[0]) and np.isinf(cost.step_s[0]) and np.isfinite(cost.total_s[0])


def test_keys_group_what_a_planner_chooses_among():
    run = made_run()
    other = dataclasses.replace(run, tp=8, dp=1, recompute="full")
    assert run.choice_key == other.choice_key and run.model_key == (24, 2048)
    assert run.choice_key != dataclasses.replace(run, global_batch=128).choice_key


def assert_line(text, words):
    assert "\n" not in text
    for word in words:
        assert word in text, f"{word!r} is not in {text!r}"
