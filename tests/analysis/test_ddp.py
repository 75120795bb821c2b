"""Tables, figures and reports of data-parallel runs, on made-up runs with known answers."""

import re

import numpy as np
import pandas as pd
import pytest
from helpers.synthetic_ddp import A, B, C, fits, made_up, write_run

from analysis.analyze_metrics import main
from analysis.figures import ddp as ddp_figures
from analysis.records import RunWriter, load, write_json
from analysis.report import ddp as ddp_report
from analysis.report import write_report
from analysis.report.ddp import read_inputs
from analysis.statistics import ddp as ddp_tables


@pytest.fixture
def undrawn(monkeypatch):
    """For tests of text: pictures are made, but not painted, which takes most of the time."""
    monkeypatch.setattr("analysis.analyze_metrics.save", lambda figure, path: path)


def predictions(table):
    return ddp_tables.predictions(table, ddp_tables.fitted_costs(fits(table)))


def test_summary_recovers_known_changes_and_intervals_shrink_with_steps():
    table = made_up(200)
    summary = ddp_tables.summary_table(table, "static").set_index("arm")
    slowest = table[table["step"] >= 10].groupby(["arm", "step"])["compute_ms"].max()
    wanted = 100 * (slowest["pooled"].mean() / slowest["static"].mean() - 1)
    row = summary.loc["pooled"]
    assert row["mean_change_pct"] == pytest.approx(wanted)
    assert row["mean_change_pct_lo"] < wanted < row["mean_change_pct_hi"]
    assert summary.loc["static", "mean_change_pct"] == 0
    wide = ddp_tables.summary_table(made_up(50), "static").set_index("arm").loc["pooled"]
    width = row["mean_change_pct_hi"] - row["mean_change_pct_lo"]
    assert width < wide["mean_change_pct_hi"] - wide["mean_change_pct_lo"]


def test_pairing_narrows_the_interval_when_steps_share_their_difficulty():
    rng = np.random.default_rng(0)
    base = rng.uniform(50, 150, 200)
    other = 0.8 * base * rng.normal(1, 0.02, 200)
    paired = ddp_tables.relative_change(other, base, np.mean, True)
    loose = ddp_tables.relative_change(other, base, np.mean, False)
    assert paired["lo"] < -20 < paired["hi"] or abs(paired["estimate"] + 20) < 1
    assert paired["hi"] - paired["lo"] < 0.3 * (loose["hi"] - loose["lo"])
    with pytest.raises(ValueError, match="paired"):
        ddp_tables.relative_change(other[1:], base, np.mean, True)


def test_fitted_cost_is_recovered_and_predicts_the_gain():
    late, quality = predictions(made_up(200))
    assert quality["padded"]["coefficients_ms"] == pytest.approx([A, B, C], rel=0.15)
    assert quality["padded"]["mape_pct"] < 2.5 < quality["padded"]["mape_tokens_sq_pct"]
    gains = ddp_tables.gains(late, "static").set_index("arm")
    assert abs(gains.loc["pooled", "error_points"]) < 1.5
    bound = ddp_tables.ceiling(late, "static", ddp_tables.Cost("padded", A, B, C))
    assert bound["gain_pct"] < 100
    assert bound["fixed_ms"] == A and 5 < bound["fixed_share_pct"] < 30


def test_the_ceiling_is_not_exceeded_by_a_perfect_schedule():
    table = made_up(100, noise=0.0, arms={"static": 8})
    work = ["padded_tokens", "real_tokens", "attention_tokens_sq"]
    table[work] = table[work].astype(float)
    perfect = table.copy()
    perfect["arm"] = "perfect"
    for _, rows in perfect.groupby("step"):
        share = rows["real_tokens"].sum() / 4
        mean = rows["real_tokens"].sum() / rows["local_batch"].sum()
        perfect.loc[rows.index, ["padded_tokens", "real_tokens"]] = share
        perfect.loc[rows.index, "attention_tokens_sq"] = share * mean
        perfect.loc[rows.index, "compute_ms"] = A + B * share + C * share * mean
    late, quality = predictions(pd.concat([table, perfect], ignore_index=True))
    gains = ddp_tables.gains(late, "static").set_index("arm")
    bound = ddp_tables.ceiling(
        late, "static", ddp_tables.Cost("padded", *quality["padded"]["coefficients_ms"])
    )
    assert gains.loc["perfect", "measured_gain_pct"] <= bound["gain_pct"] + 0.5


def test_command_writes_figures_tables_and_both_reports(tmp_path, capsys):
    run = write_run(tmp_path / "run", made_up())
    assert main(["--run_dir", str(run)]) == 0
    assert "| `pooled` |" in capsys.readouterr().out
    figures = {path.stem for path in (run / "figures").glob("*.png")}
    for name in ("report.md", "report.zh.md"):
        text = (run / name).read_text(encoding="utf-8")
        assert "[[" not in text and "nan" not in text.lower()
        assert set(re.findall(r"figures/(\w+)\.png", text)) == figures
        assert "SYNTHETIC data" in text
        assert "1.0e-15" in text
    assert (run / "summary.csv").exists() and (run / "summary.md").exists()
    assert "摘要" in (run / "report.zh.md").read_text(encoding="utf-8")


def test_a_run_too_short_for_a_fit_is_reported_without_predictions(tmp_path):
    run = write_run(tmp_path / "run", made_up(4, arms={"static": 8, "pooled": 4}))
    assert main(["--run_dir", str(run)]) == 0
    text = (run / "report.md").read_text()
    assert "| `pooled` | 4" in text and "nan" not in text.lower()
    assert re.search(r"\| `pooled` \| [\d.]+ \| – \| – \| – \|", text)


def test_the_baseline_is_an_arm_of_run_dir(tmp_path, undrawn):
    """`--run_dir static --compare_dir dynamic` says what dynamic changes against static."""
    static = write_run(tmp_path / "static", made_up(arms={"static": 8}))
    pooled = write_run(tmp_path / "pooled", made_up(arms={"pooled": 4}))
    for run, other, base in ((static, pooled, "static"), (pooled, static, "pooled")):
        out = tmp_path / f"against-{base}"
        command = ["--run_dir", str(run), "--compare_dir", str(other), "--out", str(out)]
        assert main(command) == 0
        assert f"against `{base}`" in (out / "summary.md").read_text().splitlines()[0]
        summary = pd.read_csv(out / "summary.csv", index_col="arm")
        changes = summary["mean_change_pct"]
        assert changes[base] == 0 and (changes.drop(base) < 0).all() == (base == "static")
        report = (out / "report.md").read_text()
        assert (
            "| run | `static` | `pooled` |" in report or "| run | `pooled` | `static` |" in report
        )


def test_two_runs_with_equal_arms_are_compared_with_that_of_run_dir(tmp_path):
    first = write_run(tmp_path / "first", made_up(arms={"static": 8}))
    second = write_run(tmp_path / "second", made_up(arms={"static": 8}, seed=1))
    inputs = read_inputs(load(first), load(second), None)
    assert inputs.base == "static" and set(inputs.merged["arm"]) == {"static", "second/static"}
    assert inputs.costs["static"].group == "padded"
    assert inputs.costs["second/static"].group == "padded, second"


@pytest.mark.parametrize("steps", [39, 40])
def test_a_run_and_its_analysis_leave_the_same_warm_up_out(steps):
    table = made_up(steps, arms={"static": 8, "packed": 5})
    first = ddp_tables.first_step(table)
    assert first == (10 if steps >= 40 else 0)
    used = fits(table).set_index(["arm", "steps"])["rows"]
    assert used["static", "even"] == 4 * len(range(first, steps, 2))
    assert used["static", "all"] == used["packed", "all"] == 4 * steps


def test_padded_and_packed_arms_have_fits_of_their_own():
    table = made_up(200)
    table.loc[table["arm"] == "packed", "compute_ms"] *= 2
    costs = ddp_tables.fitted_costs(fits(table))
    assert costs["static"] == costs["pooled"] != costs["packed"]
    assert costs["static"][1:] == pytest.approx([A, B, C], rel=0.15)
    assert costs["packed"].a_ms + 100 * costs["packed"].b_ms_per_token > 1.5 * (A + 100 * B)
    assert fits(made_up(4, arms={"static": 8})).empty


def test_proxies_of_cost_by_hand():
    """Time in proportion to tokens: that proxy is exact, the quadratic one is off by 28.6 %."""
    tokens = np.array([100, 200, 400])
    train = pd.DataFrame({"padded_tokens": tokens, "compute_ms": 0.5 * tokens})
    test = pd.DataFrame({"padded_tokens": [300], "compute_ms": [150.0]})
    found = ddp_tables._proxy_errors(train, test)
    assert found["mape_tokens_pct"] == pytest.approx(0.0, abs=1e-9)
    # Mean of tokens^2 / ms is 2 (100 + 200 + 400) / 3; 300^2 over it, against 150.
    predicted = 300**2 / (2 * 700 / 3)
    assert found["mape_tokens_sq_pct"] == pytest.approx(100 * (predicted / 150 - 1))


def test_accuracies_are_percentages_of_the_held_out_rows():
    correct = {"static": [1, 1, 1, 0], "dynamic": [1, 1, 0, 0]}
    rows = [
        {"row": i, "arm": arm, "correct": x}
        for arm, xs in correct.items()
        for i, x in enumerate(xs)
    ]
    table = ddp_tables.accuracy_table(pd.DataFrame(rows), "static").set_index("arm")
    assert table["accuracy_pct"].to_dict() == {"dynamic": 50.0, "static": 75.0}
    assert table["difference_points"].to_dict() == {"dynamic": -25.0, "static": 0.0}
    for arm in correct:
        assert 0.0 <= table["accuracy_lo"][arm] <= table["accuracy_pct"][arm]
        assert table["accuracy_pct"][arm] <= table["accuracy_hi"][arm] <= 100.0


def test_wall_time_and_throughput_come_with_percentiles_and_spread():
    """Two ranks whose clocks differ by 5 ms: a step's wall time is their mean."""
    times = np.array([100.0, 110.0, 120.0, 150.0, 400.0])
    rows = [
        {**row, "step": step, "rank": rank, "step_time_ms": time + (5 * rank - 2.5)}
        for step, time in enumerate(times)
        for rank in (0, 1)
        for row in [made_up(1, arms={"static": 8}).iloc[rank].to_dict()]
    ]
    table = pd.DataFrame(rows)
    row = ddp_tables.summary_table(table, "static").iloc[0]
    assert row["step_time_ms_mean"] == pytest.approx(times.mean())
    assert row["step_time_ms_p95"] == pytest.approx(np.percentile(times, 95))
    assert row["step_time_ms_std"] == pytest.approx(times.std(ddof=1))
    assert row["step_time_ms_iqr"] == pytest.approx(40.0)
    rate = 16 / (times / 1e3)
    assert row["samples_per_s_mean"] == pytest.approx(rate.mean())
    assert row["samples_per_s_p5"] == pytest.approx(np.percentile(rate, 5))
    assert row["samples_per_s_std"] == pytest.approx(rate.std(ddof=1))
    tokens = table.groupby("step")["real_tokens"].sum().to_numpy() / (times / 1e3)
    assert row["real_tokens_per_s_mean"] == pytest.approx(tokens.mean())
    ranks = table.groupby("step")["compute_ms"]
    assert row["imbalance"] == pytest.approx((ranks.max() / ranks.mean()).mean())


def test_a_run_without_a_kept_fit_says_that_predictions_are_left_out(tmp_path, undrawn):
    run = write_run(tmp_path / "run", made_up())
    (run / "cost_fit.csv").unlink()
    assert main(["--run_dir", str(run)]) == 0
    assert "holds no fitted cost" in (run / "report.md").read_text()
    assert re.search(r"\| `pooled` \| [\d.]+ \| – \| – \| – \|", (run / "summary.md").read_text())


def contents(folder):
    """Every file of a folder, byte for byte."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_general_report_has_the_runs_tables_and_overwrites_nothing(tmp_path):
    run = write_run(tmp_path / "run", made_up())
    assert main(["--run_dir", str(run)]) == 0
    before = contents(run)
    path = write_report([run])
    assert {**contents(run), **before} == contents(run)
    text = path.read_text()
    assert path.name == "overview.md" and "clairvoyant" not in text
    assert "| `pooled` | " in text and "samples/s" in text and "1.0e-15" in text
    assert "SYNTHETIC data" in text
    for picture in re.findall(r"\(figures/([\w-]+\.png)\)", text):
        assert (run / "figures" / picture).exists()


def test_two_runs_are_compared_and_pairing_is_only_claimed_where_it_holds(tmp_path, undrawn):
    static = write_run(tmp_path / "static", made_up(arms={"static": 8}))
    pooled = write_run(tmp_path / "pooled", made_up(arms={"pooled": 4}))
    other = write_run(tmp_path / "other", made_up(arms={"static": 8}, seed=3), seed=3)
    assert main(["--run_dir", str(pooled), "--compare_dir", str(static)]) == 0
    assert "not paired" not in (pooled / "summary.md").read_text()
    out = tmp_path / "out"
    command = ["--run_dir", str(pooled), "--compare_dir", str(other), "--out", str(out)]
    assert main(command) == 0
    assert "not paired" in (out / "summary.md").read_text()
    again = ["--run_dir", str(static), "--compare_dir", str(other), "--out", str(tmp_path / "o2")]
    assert main(again) == 0
    assert "`other/static`" in (tmp_path / "o2" / "summary.md").read_text()


@pytest.mark.parametrize(
    "changes",
    [
        *({"synthetic_tail": 4.0}, {"bad_rows": "skip"}, {"model": "small"}, {"max_length": 8}),
        {"used": {"model": "small"}},
    ],
)
def test_runs_on_other_texts_or_work_are_not_paired(tmp_path, changes):
    table = made_up(12, arms={"static": 8})
    runs = [write_run(tmp_path / "a", table), write_run(tmp_path / "b", table, **changes)]
    inputs = read_inputs(load(runs[0]), load(runs[1]), None)
    assert not inputs.paired
    assert read_inputs(load(runs[0]), load(runs[0]), None).paired


def test_arms_behind_the_rival_beyond_the_interval_are_named(tmp_path, undrawn):
    """Half the work is ahead, the same work with a little noise is level, more work is behind."""
    table = made_up(40, arms={"static": 8, "pooled": 4, "packed": 5})
    level = table[table["arm"] == "packed"].copy()
    level["compute_ms"] *= np.random.default_rng(2).normal(1, 0.02, len(level))
    names = {"packed": "hf_batch_rebalance"}
    table["arm"] = table["arm"].replace(names)
    table = pd.concat([table, level.assign(arm="dynamic")], ignore_index=True)
    run = write_run(tmp_path / "run", table)
    assert main(["--run_dir", str(run)]) == 0
    text = (run / "report.md").read_text()
    assert "Slower than it beyond the interval: by the mean `static`; by P95 `static`" in text
    only = write_run(tmp_path / "only", made_up(12, arms={"static": 8, "pooled": 4}))
    assert main(["--run_dir", str(only)]) == 0
    assert "beyond the interval" not in (only / "report.md").read_text()


def test_bad_input_is_one_line_and_status_2(tmp_path, capsys):
    assert main(["--run_dir", str(tmp_path)]) == 2
    assert "not a run folder" in capsys.readouterr().err
    run = write_run(tmp_path / "run", made_up(30))
    assert main(["--run_dir", str(run), "--baseline", "nope"]) == 2
    error = capsys.readouterr().err
    assert "allowed static, pooled, packed" in error and error.count("\n") == 1
    with RunWriter.create("bench", {}, 0, tmp_path / "bench") as writer:
        writer.finish({})
    assert main(["--run_dir", str(tmp_path / "bench")]) == 2


def test_memory_that_was_not_measured_is_said_not_drawn_as_zero():
    table = made_up(20)
    drawn = ddp_figures.spread(table, "peak_mem_mb", "MB", "memory")
    assert "not measured" in drawn.axes[0].texts[0].get_text()
    table["peak_mem_mb"] = 100.0 + table["rank"]
    drawn = ddp_figures.spread(table, "peak_mem_mb", "MB", "memory")
    assert not drawn.axes[0].texts


def test_templates_in_both_languages_have_the_same_holes_and_sections(tmp_path):
    from importlib import resources

    folder = resources.files("analysis.report") / "templates"
    texts = [
        (folder / f"ddp_report.{language}.md").read_text(encoding="utf-8")
        for language in ddp_report.LANGUAGES
    ]
    holes = [re.findall(r"\[\[(\w+)\]\]", text) for text in texts]
    assert holes[0] == holes[1] and len(holes[0]) > 10
    counts = [len(re.findall(r"^#+ ", text, re.MULTILINE)) for text in texts]
    assert counts[0] == counts[1]


def test_modelled_tables_show_rules_by_batch_and_variants_at_the_smallest(tmp_path, undrawn):
    rows = [
        {
            "lengths": lengths,
            "global_batch": batch,
            "arm": arm,
            "max_compute_ms_mean": time,
            "max_compute_ms_p95": time * 1.2,
            "imbalance": 1.1,
            "padding_waste": 0.3,
        }
        for lengths in ("as run", "tail x 4")
        for batch in (32, 64)
        for arm, time in (("static", 10.0), ("pooled", 5.0), ("dynamic@greedy", 8.0))
    ]
    run = write_run(tmp_path / "run", made_up())
    RunWriter(run, {}).write_table("modelled", pd.DataFrame(rows))
    write_json(run / "lengths.json", {"count": [1]})
    assert main(["--run_dir", str(run)]) == 0
    text = (run / "report.md").read_text()
    assert "| tail x 4 | 64 | `pooled` | 5.00 | 6.00 | -50.0 |" in text
    assert "| as run | 32 | `dynamic@greedy` | 8.00 | 9.60 | -20.0 |" in text
    assert "| as run | 64 | `dynamic@greedy`" not in text
