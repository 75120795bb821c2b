"""Errors of predictors of bandwidth, on paths they were not fitted to."""

from __future__ import annotations

import argparse

from analysis.records import RunWriter
from experiments.common import put_result
from jaxsim.network import (
    REFERENCE,
    WINDOW,
    best_predictor,
    folds_of,
    held_out_errors,
    read_series,
    summarise_errors,
)


def predict(options: argparse.Namespace) -> None:
    """Try every predictor on paths it was not fitted to, write the errors by horizon."""
    series, left_out = read_series(options.traces, options.interval)
    interval_s, seed = float(options.interval), options.seed
    config = {"traces": options.traces, "interval_s": interval_s, "window": WINDOW}
    rows = held_out_errors(series, seed)
    errors = summarise_errors(rows, interval_s, seed)
    best = best_predictor(errors)
    with RunWriter.create("network_predict", config, seed, options.run_dir) as writer:
        writer.append("errors", errors.to_dict("records"))
        by_path = rows.assign(error_pct=100.0 * rows["error"].abs())
        by_path = by_path.groupby(["path", "predictor", "horizon"], sort=False)["error_pct"].mean()
        writer.append("paths", by_path.reset_index().to_dict("records"))
        summary = {
            "best": best,
            "reference": REFERENCE,
            "folds": len(folds_of(len(series))),
            "paths": len(series),
            "left_out": left_out,
            "errors": errors.to_dict("records"),
        }
        writer.finish(summary)
    if not put_result(summary, options.json):
        return
    print(
        f"mean absolute error [% of the path's median], saved against {REFERENCE} [%], by horizon:"
    )
    for name, part in errors.groupby("predictor", sort=False):
        cells = [
            f"{r.horizon_s:g} s {r.error_pct:.2f} ({r.gain_pct:+.1f})" for r in part.itertuples()
        ]
        print(f"  {name + (' *' if name == best else ''):13} {'; '.join(cells)}")
    print(f"run folder: {writer.dir}")
