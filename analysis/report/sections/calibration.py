"""What a report says about a fitted calibration: errors in sample, and every parameter."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from analysis import figures
from analysis.figures import IDENTIFIED, PARAMETER_COLUMNS
from analysis.records import RunRecord
from analysis.report.sections.common import Picture, Section, drawn_from, optional_table
from analysis.report.sections.markdown import MISSING, cell, fixed, number, table
from analysis.report.sections.validation import dataset_summaries, dataset_table

TABLE_COLUMNS = (*PARAMETER_COLUMNS, "unit", "about", "told_by")
_SECONDS = ((1.0, "s"), (1e3, "ms"), (1e6, "µs"))


def calibration_sections(record: RunRecord, notes: list[str]) -> Iterator[Section]:
    """Errors on the runs fitted, the picture of all parameters, a table for each GPU type."""
    text = (
        "Errors on the very runs that were fitted. How well the fit carries over is shown by "
        "refits that leave runs out, which are part of a validation.\n\n"
    )
    fitted = ", ".join(record.summary.get("gpus") or [])
    text = (f"GPU types fitted: {cell(fitted)}. " if fitted else "") + text
    yield Section("Fit to measured runs", text + dataset_table(dataset_summaries(record)))
    parameters = optional_table(record, "metrics", TABLE_COLUMNS, "Parameters", notes)
    if parameters is None:
        return
    yield _overview(record, parameters)
    for gpu in parameters["gpu"].unique():
        yield _one_gpu(gpu, parameters[parameters["gpu"] == gpu])


def _overview(record: RunRecord, parameters: pd.DataFrame) -> Section:
    drawn = drawn_from(record, "metrics", figures.parameters_fitted, parameters)
    caption = (
        "Every parameter divided by the value of its prior for that GPU type, so that the dotted "
        "line is the prior; the parameter that the data identify best is on top. Hatched bar: "
        "95 % interval of the prior. Line: 95 % interval of the fit. Filled marker: the data have "
        f"at least halved what was not known (identified > {IDENTIFIED:g}); where it is open, the "
        "fit is mostly the prior and should not be quoted as a measurement."
    )
    identified = parameters.groupby("gpu", sort=False)["identified"].agg(
        lambda values: f"{(values > IDENTIFIED).sum()} of {len(values)}"
    )
    text = (
        "*Identified* is 1 - (spread after the fit / spread of the prior): 0 means that the data "
        "say nothing about a parameter, 1 that they fix it. Above "
        f"{IDENTIFIED:g} are: "
        + ", ".join(f"{share} parameters of {cell(gpu)}" for gpu, share in identified.items())
        + "."
    )
    text += "".join(f" {line}" for line in _conflicts(parameters))
    return Section("Parameters, prior and fit", text, (Picture("parameters", drawn, caption),))


def _conflicts(parameters: pd.DataFrame) -> Iterator[str]:
    """A sentence for each GPU type whose data and priors contradict each other."""
    outside = ~parameters["value"].between(parameters["prior_lo"], parameters["prior_hi"])
    known = parameters[["prior_lo", "prior_hi"]].notna().all(axis=1)
    for gpu, rows in parameters[outside & known].groupby("gpu", sort=False):
        names = ", ".join(cell(name) for name in rows["parameter"])
        yield (
            f"On {cell(gpu)} the fit lies outside the prior's 95 % interval for {names}: the data "
            "contradict what was believed, or the parameter makes up for what the model lacks."
        )


def readable_unit(unit: str, size: float) -> tuple[float, str]:
    """Factor and unit in which a value of about `size` is easily read; only seconds change."""
    if unit != "s":
        return 1.0, unit
    fits = (scale for scale in _SECONDS if size * scale[0] >= 0.1)
    return next(fits, _SECONDS[-1])


def _span(lo: float, hi: float) -> str:
    return MISSING if pd.isna(lo) or pd.isna(hi) else f"[{number(lo)}, {number(hi)}]"


def _one_gpu(gpu: str, parameters: pd.DataFrame) -> Section:
    """Unit, prior, fit, interval and what identified it, best first."""
    header = ["parameter", "what it is", "identified by (share of information)", "unit", "prior"]
    header += ["prior, 95 %", "fit", "fit, 95 %", "identified"]
    rows = []
    ranked = parameters.sort_values("identified", ascending=False, kind="stable")
    for _, row in ranked.iterrows():
        unit, about = str(row["unit"]), str(row["about"])
        factor, shown = readable_unit(unit, row["prior"])
        prior, prior_lo, prior_hi, value, lo, hi = (
            factor * row[key] for key in ("prior", "prior_lo", "prior_hi", "value", "lo", "hi")
        )
        name = cell(row["parameter"])
        rows.append(
            [
                f"**{name}**" if row["identified"] > IDENTIFIED else name,
                cell(about.removeprefix(f"[{unit}] ")),
                MISSING if pd.isna(row["told_by"]) else cell(row["told_by"]),
                cell(shown),
                number(prior),
                _span(prior_lo, prior_hi),
                number(value),
                _span(lo, hi),
                fixed(row["identified"], 2),
            ]
        )
    text = f"Bold: identified > {IDENTIFIED:g}.\n\n" + table(header, rows, 4)
    return Section(f"Parameters of {gpu}", text)
