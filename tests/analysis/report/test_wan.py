"""The report of a study of sim-to-real."""

import pandas as pd

from analysis.figures import WAN_COLUMNS
from analysis.records import RunWriter
from analysis.report.__main__ import main

ERRORS = {"n": 2, "median_ape_pct": 7.25, "p90_ape_pct": 9.0, "bias_pct": -1.0}
SUMMARY = {
    "families": {"data_parallel": ERRORS},
    "all": ERRORS,
    "choices": {
        "far": {"kendall_tau": 0.5, "chosen": "rings", "best": "pipeline", "loss_pct": 3.5}
    },
    "choices_near_best_pct": 100.0,
    "largest_errors": [
        {
            "condition": "far",
            "plan": "rings",
            "measured_s": 1.0,
            "predicted_s": 1.125,
            "error_pct": 12.5,
        }
    ],
    "moves": {"n": 6, "lost_s_median": 0.75, "median_ape_pct": 10.0},
}


def written(folder, table=True):
    rows = [
        ("near", "rings", "data_parallel", True, 1.0, 1.1),
        ("far", "rings", "data_parallel", False, 1.125, 1.0),
    ]
    with RunWriter.create("wan_study", {"steps": 3}, 0, folder) as writer:
        if table:
            writer.write_table("runs", pd.DataFrame(rows, columns=list(WAN_COLUMNS)))
        writer.finish(SUMMARY)
    assert main([str(folder)]) == 0
    return (folder / "report.md").read_text()


def test_errors_choices_and_changes_of_plan_are_told(tmp_path):
    text = written(tmp_path / "run")
    assert "| data parallel | 2 | 7.2 | 9.0 | -1.0 |" in text or "| 7.3 | 9.0 |" in text
    assert "| far | rings | pipeline | 3.5 | 0.50 |" in text
    assert "| far | rings | 1.000 | 1.125 | 12.5 |" in text
    assert "6 changes of plan stopped training for 0.75 s" in text
    assert (tmp_path / "run" / "figures" / "sim-to-real.png").is_file()


def test_a_run_without_its_table_says_so(tmp_path):
    text = written(tmp_path / "run", table=False)
    assert "runs.csv" in text and "sim-to-real.png" not in text
