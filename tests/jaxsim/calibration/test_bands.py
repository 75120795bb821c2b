"""Bands of model error from left-out rows, by hand."""

import numpy as np
import pytest
from helpers.measured_runs import made_run

from jaxsim.calibration.bands import LEAST, coverage, is_inside, stack_bands, unseen_band
from jaxsim.calibration.hierarchy import Machine
from jaxsim.calibration.left_out import LeftOutRow
from jaxsim.calibration.merits import by_distance, by_size, left_out_table
from jaxsim.cluster.band import UNKNOWN, Z90, Band

MEGATRON = Machine("A100-80GB", "megatron-fused")
FOUNDRY = Machine("H100-80GB", "llm-foundry")


def row(step, machine=MEGATRON, kind="model", label="a", distance=0.0, spread=0.0, **more):
    values = {"memory": np.nan, "memory_spread": 0.0, "baseline": 0.3, **more}
    name = machine.fitted if kind == "stack" else "made"
    run = made_run(gpu=machine.gpu, row_id=more.get("row_id", label))
    return LeftOutRow(
        *(kind, name, label, machine, run, step),
        *(values["memory"], spread, values["memory_spread"], distance, values["baseline"]),
    )


def test_a_band_holds_nine_of_ten_rows():
    rows = [row(0.01 * k, label=str(k % 2)) for k in range(1, 11)]
    band = stack_bands(rows)["megatron-fused"]
    assert band.step == pytest.approx(0.10 / Z90), "the least that holds 90 %, from above"
    assert [is_inside(r, band) for r in rows] == [True] * 10
    assert stack_bands([row(1e-6)])["megatron-fused"].step == LEAST
    # Of 19 rows the 18th holds the next in nine of ten cases, of 14 the largest.
    for n, held in ((19, 18), (14, 14)):
        rows = [row(0.01 * k, label=str(k)) for k in range(1, n + 1)]
        assert stack_bands(rows)["megatron-fused"].step == pytest.approx(0.01 * held / Z90)


def test_what_the_parameters_cannot_know_is_not_the_models():
    rows = [row(0.1, spread=0.05)] * 4
    band = stack_bands(rows)["megatron-fused"]
    assert band.step == pytest.approx(np.sqrt((0.1 / Z90) ** 2 - 0.05**2))
    assert is_inside(rows[0], Band(band.step + 1e-9, 0.1, 0.0))


def test_a_band_widens_where_far_rows_are_off():
    near = [row(0.02 * s, label="near") for s in (-1, 1, 0.9, -0.8, 1.1, 0.95)]
    far = [row(0.1 * s, label="far", distance=4.0) for s in (-1, 1, 0.9, -0.8, 1.1, 0.95)]
    assert stack_bands(near + far)["megatron-fused"].per_doubling >= 0.5
    level = [r._replace(step=r.step / 5) for r in far]
    assert stack_bands(near + level)["megatron-fused"].per_doubling <= 0.1


def test_the_band_of_an_unseen_stack_is_students_for_a_handful_of_stacks():
    rows = [row(0.05, kind="stack", label=MEGATRON.fitted)] * 10
    assert unseen_band(rows) == UNKNOWN, "one stack tells nothing of the next"
    rows += [row(0.5, FOUNDRY, kind="stack", label=FOUNDRY.fitted)] * 10
    spread = np.sqrt((0.05**2 + 0.5**2) / 2) / Z90
    # Student's 95 % point with one degree of freedom is 6.314; the next is one more draw than the mean.
    assert unseen_band(rows).step == pytest.approx(spread * 6.314 / Z90 * np.sqrt(1.5), rel=1e-3)
    assert unseen_band(rows).memory == UNKNOWN.memory, "nobody measured it"
    assert unseen_band(rows, without="llm-foundry") == UNKNOWN


def test_coverage_judges_a_group_by_the_others():
    good = [row(0.02, label=str(k)) for k in range(9)]
    wild = [row(0.9, label="wild")]
    (found,) = coverage(good + wild).values()
    # The wild group is outside what the others allow; they are inside whatever it adds.
    assert (found.rows, found.inside) == (10, 9)


def test_a_run_does_not_judge_itself_by_what_another_kind_of_group_showed_of_it():
    """The wild run is left out with its model and again with its scale."""
    good = [row(0.02, kind=kind, label=str(k)) for k in range(9) for kind in ("model", "scale")]
    wild = [row(0.9, kind=kind, label="wild") for kind in ("model", "scale")]
    found = coverage(good + wild)
    assert {k: (c.rows, c.inside) for k, c in found.items()} == {
        "model": (10, 9),
        "scale": (10, 9),
    }
    lines = left_out_table(good + wild)
    assert [line["coverage_pct"] for line in lines] == pytest.approx([90.0, 90.0])


def test_the_table_of_left_out_errors_by_hand():
    rows = [row(np.log(1.1)), row(np.log(0.9), row_id="b"), row(np.nan, memory=np.log(1.2))]
    (line,) = left_out_table(rows)
    assert (line["kind"], line["dataset"], line["label"]) == ("model", "made", "A100-80GB")
    assert line["n"] == 2
    assert line["mape_pct"] == pytest.approx(10.0) and abs(line["bias_pct"]) < 1e-9
    assert line["memory_mape_pct"] == pytest.approx(20.0)
    assert line["baseline_pct"] == pytest.approx(100 * np.expm1(0.3))
    assert line["coverage_pct"] == 100.0
    sizes = {(r["by"], r["value"]): r for r in by_size(rows)}
    assert sizes["hidden", 2048]["n"] == 2 and abs(sizes["seq", 2048]["bias_pct"]) < 1e-9
    assert [r["error_pct"] for r in by_distance(rows)] == pytest.approx([10.0, -10.0])
