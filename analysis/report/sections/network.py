"""What a report says about fitted link processes and about predictors of bandwidth."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from analysis import figures
from analysis.figures import MOVEMENT_COLUMNS, PREDICTION_COLUMNS
from analysis.records import RunRecord
from analysis.report.sections.common import Picture, Section, drawn_from, optional_table
from analysis.report.sections.markdown import cell, fixed, interval, table

CHECK_COLUMNS = ("kind", "check", "statistic", "measured_pct", "predicted_pct", "error_pp")
GAIN_COLUMNS = (*PREDICTION_COLUMNS, "gain_pct", "gain_lo", "gain_hi")


def fit_sections(record: RunRecord, notes: list[str]) -> Iterator[Section]:
    """Fitted against measured, then the checks on what was not fitted."""
    what = "Fitted against measured"
    quantiles = optional_table(record, "quantiles", (*MOVEMENT_COLUMNS, "level"), what, notes)
    memory = optional_table(record, "memory", (*MOVEMENT_COLUMNS, "lag_s"), what, notes)
    outside = optional_table(record, "outside", (*MOVEMENT_COLUMNS, "path"), what, notes)
    if quantiles is not None and memory is not None and outside is not None:
        pictures = (
            Picture(
                "fitted-quantiles",
                drawn_from(record, "quantiles", figures.fitted_quantiles, quantiles),
                "Quantiles of the deviation from a path's median, all paths pooled, from 0.5 % to "
                "99.5 %: a dot on the diagonal is right. Axes are linear within ±5 % and "
                "logarithmic outside; dashed lines at ±30 %. Vertical bars: 95 % of the simulated "
                "records; horizontal bars: 95 % bootstrap over bursts of tests.",
            ),
            Picture(
                "fitted-memory",
                drawn_from(record, "memory", figures.fitted_memory, memory, outside),
                "Left: rank autocorrelation at each lag, over pairs of intervals exactly so far "
                "apart. Right: share of intervals outside ±30 % of the median, path by path: "
                + "; ".join(f"{i + 1} {path}" for i, path in enumerate(_by_share(outside)))
                + ". Grey band and bars: 95 % bootstrap over bursts of tests.",
            ),
        )
        text = (
            f"Fitted to {record.summary.get('intervals')} intervals of "
            f"{cell(record.run['config'].get('interval_s'))} s on "
            f"{record.summary.get('paths')} paths. Simulated records have the intervals and gaps "
            "of the measured ones."
        )
        yield Section(what, text, pictures)
    yield from _checks(record, notes)


def _by_share(outside: pd.DataFrame) -> list[str]:
    measured = outside[outside["source"] == "measured"]
    return measured.sort_values("value", ascending=False)["path"].tolist()


def _checks(record: RunRecord, notes: list[str]) -> Iterator[Section]:
    columns = (*CHECK_COLUMNS, "limit_pp", "lo_pct", "hi_pct")
    checks = optional_table(record, "checks", columns, "Checks of the fits", notes)
    if checks is None:
        return
    share = record.run["config"].get("fit_share", float("nan"))
    halves = record.summary.get("random_halves", {})
    header = ["check", "process", "p5 [%]", "p25", "p75", "p95", "outside ±30 % [%]", "passed"]
    text = (
        "Each row: what the process predicts for data it was not fitted to, and in parentheses "
        "how far that is from what was measured, in percentage points. Allowed are 5 for a "
        "quantile and 3 for the share outside ±30 %. *later part*: fitted to the first "
        f"{fixed(100 * share, 0)} % of every path's record, checked on the rest of the same paths. "
        "*each group by the others*: paths dealt into five groups in order of name, each predicted "
        "from the fits to the other four, all pooled. *other paths*: fitted to every other path in "
        "order of name, checked on the paths between; *reversed* the other way round. *Within 95 %* "
        "counts the measured figures that lie within 95 % of the simulated records.\n\n"
        + table([*header, "within 95 %"], _check_rows(checks), 2)
        + "\n\nPaths differ so much that a check on other paths depends on which they are. Share "
        "of random halves of the paths on which a process fitted to the other half stays within "
        "the allowed errors: "
        + ", ".join(f"{name} {fixed(100 * value, 0)} %" for name, value in halves.items())
        + ". The first of these forecasts no half: it knows the pooled record of all paths, and "
        "is about what any fit can reach with so few of them."
    )
    yield Section("What was not fitted", text + _parts_text(record, notes))


def _check_rows(checks: pd.DataFrame) -> Iterator[list[str]]:
    """For every check what was measured, then what each process predicts."""
    for name, part in checks.groupby("check", sort=False):
        measured = part[part["kind"] == part["kind"].iloc[0]]["measured_pct"]
        yield [name, "*measured*", *map(fixed, measured), "", ""]
        for kind, rows in part.groupby("kind", sort=False):
            cells = zip(rows["predicted_pct"], rows["error_pp"], strict=True)
            shown = [f"{fixed(value)} ({fixed(error)})" for value, error in cells]
            passed = bool((rows["error_pp"].abs() <= rows["limit_pp"]).all())
            inside = rows["measured_pct"].between(rows["lo_pct"], rows["hi_pct"]).sum()
            yield [name, kind, *shown, "yes" if passed else "no", f"{inside} of {len(rows)}"]


def _parts_text(record: RunRecord, notes: list[str]) -> str:
    """Errors on the later part of the records by how much of them was fitted."""
    statistics = ("p5", "p25", "p75", "p95", "outside")
    what = "Checks by the part that was fitted"
    parts = optional_table(
        record, "parts", ("kind", "fit_share", *statistics, "passed"), what, notes
    )
    if parts is None:
        return ""
    rows = []
    for kind, part in parts.groupby("kind", sort=False):
        worst = part[list(statistics[:4])].abs().max(axis=1)
        cells = zip(worst, part["outside"].abs(), part["passed"], strict=True)
        shown = [f"{fixed(a)}, {fixed(b)}" + ("" if ok else " (no)") for a, b, ok in cells]
        rows.append([kind, *shown])
    shares = [f"first {fixed(100 * s, 0)} %" for s in parts["fit_share"].unique()]
    return (
        "\n\nThe later part by how much of every record was fitted: worst error of the four "
        "quantiles and error of the share outside ±30 %, in points; (no) where that is too far.\n\n"
        + table(["process", *shares], rows)
    )


def prediction_sections(record: RunRecord, notes: list[str]) -> Iterator[Section]:
    """Errors by horizon on paths that no predictor has seen."""
    errors = optional_table(record, "errors", GAIN_COLUMNS, "Errors of predictors", notes)
    if errors is None:
        return
    reference = record.summary["reference"]
    picture = Picture(
        "prediction-errors",
        drawn_from(record, "errors", figures.prediction_errors, errors, reference),
        "Left: mean absolute error of the predicted bandwidth, relative to the path's median. "
        f"Right: how much of the error of {reference} each saves; above zero is better. Bars: 95 % "
        "bootstrap over bursts of tests. Markers of one horizon are set side by side.",
    )
    horizons = sorted(errors["horizon_s"].unique())
    rows = []
    for name, part in errors.groupby("predictor", sort=False):
        by = part.set_index("horizon_s").loc[horizons]
        cells = [
            f"{fixed(r['error_pct'], 2)}"
            + ("" if name == reference else f" ({fixed(r['gain_pct'])} {_interval(r)})")
            for _, r in by.iterrows()
        ]
        rows.append([name, *cells])
    header = ["predictor", *(f"{h:g} s" for h in horizons)]
    text = (
        f"Paths are dealt into {record.summary['folds']} groups; whatever is fitted is fitted to "
        "the paths of the other groups, so every path is predicted by one that has not seen it. "
        f"Mean absolute error [% of the path's median] by horizon, and how much of {reference}'s "
        f"error is saved [%] with its 95 % interval. Best by mean error over the "
        f"horizons: **{record.summary['best']}**.\n\n" + table(header, rows)
    )
    yield Section("Predicting bandwidth", text, (picture,))


def _interval(row: pd.Series) -> str:
    return interval([row["gain_lo"], row["gain_hi"]])
