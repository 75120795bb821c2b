"""What one or two data-parallel runs show: their tables, what was fitted, what was compared."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from analysis.records import RecordError, RunRecord, load
from analysis.statistics import (
    COLUMNS,
    COST_COLUMNS,
    Cost,
    accuracy_table,
    ceiling,
    fitted_costs,
    gains,
    predictions,
    summary_table,
)

RIVAL = "hf_batch_rebalance"  # the split that Transformers ships
# Runs that agree in these did the same work on the same samples step by step: what was set, and
# what was really used, since a hub out of reach changes model and data.
STREAM_KEYS = (
    *("dataset", "train_samples", "eval_samples", "synthetic_rows", "synthetic_tail", "bad_rows"),
    *("model", "max_length", "global_batch", "seed"),
)
USED_KEYS = ("model", "data_source", "train_rows")


@dataclass(frozen=True)
class Inputs:
    """What is analysed: rows of all arms, held-out rows if both runs have them, the baseline."""

    merged: pd.DataFrame
    correct: pd.DataFrame | None
    base: str
    paired: bool
    costs: dict[str, Cost]  # by arm; empty where no run has a fit


@dataclass(frozen=True)
class Findings:
    """Everything the report says; tables as `analysis.statistics` makes them."""

    run: RunRecord
    base: str
    paired: bool
    summary: pd.DataFrame
    against_rival: pd.DataFrame | None  # the summary with RIVAL as its baseline
    gains: pd.DataFrame
    quality: dict
    ceiling: dict | None
    accuracy: pd.DataFrame | None
    modelled: pd.DataFrame | None
    merged: pd.DataFrame  # rows of all arms, ranks and steps
    late: pd.DataFrame  # rows of the steps that costs were tested on
    other: RunRecord | None = None  # the run whose arms are compared with those of `run`
    missing: list[str] = field(default_factory=list)  # why something is not part of the report

    @property
    def runs(self) -> list[RunRecord]:
        """The baseline's run first."""
        return [self.run] if self.other is None else [self.run, self.other]


def read_run(folder: Path) -> RunRecord:
    """The data-parallel run in a folder.

    Raises:
        RecordError: when there is none.
    """
    record = load(folder)
    if record.run["kind"] != "ddp":
        raise RecordError(f"{folder}/run.json: kind is {record.run['kind']!r}; allowed is 'ddp'")
    return record


def _correct(record: RunRecord) -> pd.DataFrame | None:
    return record.table("eval_rows") if "eval_rows" in record.tables() else None


def _costs(record: RunRecord, name: str = "") -> dict[str, Cost]:
    """The run's fitted costs by arm; {} for a run from before fits were recorded."""
    if "cost_fit" not in record.tables():
        return {}
    return fitted_costs(record.table("cost_fit", COST_COLUMNS), name)


def _stream(record: RunRecord) -> list:
    """What determines the samples of every step and the work they are."""
    config, used = record.run["config"], record.summary.get("setup", {})
    return [*(config.get(key) for key in STREAM_KEYS), *(used.get(key) for key in USED_KEYS)]


def read_inputs(run: RunRecord, other: RunRecord | None, baseline: str | None) -> Inputs:
    """Rows of one or two runs with distinct arm names; the baseline is an arm of the first.

    Raises:
        RecordError: when a table is missing or the baseline is no arm.
    """
    merged = run.table("merged_metrics", COLUMNS)
    correct, paired, costs = _correct(run), True, _costs(run)
    arms = list(merged["arm"].unique())
    base = baseline or ("static" if "static" in arms else arms[0])
    if other is not None:
        second, right = other.table("merged_metrics", COLUMNS), _correct(other)
        name = other.run["run_id"]
        rename = {arm: f"{name}/{arm}" for arm in set(arms) & set(second["arm"])}
        second["arm"] = second["arm"].replace(rename)
        costs |= {rename.get(arm, arm): cost for arm, cost in _costs(other, name).items()}
        merged = pd.concat([merged, second], ignore_index=True)
        paired = _stream(run) == _stream(other)
        paired &= merged.groupby("arm")["step"].nunique().nunique() == 1
        if correct is not None and right is not None and paired:
            right["arm"] = right["arm"].replace(rename)
            correct = pd.concat([correct, right], ignore_index=True)
    if base not in set(merged["arm"]):
        raise RecordError(f"baseline {base!r}: allowed {', '.join(merged['arm'].unique())}")
    if correct is not None and base not in set(correct["arm"]):
        correct = None
    return Inputs(merged, correct, base, bool(paired), costs)


def find(run: RunRecord, other: RunRecord | None = None, baseline: str | None = None) -> Findings:
    """Everything that is to be said about a run, or about two.

    Args:
        run: holds the baseline.
        other: its arms are added.
        baseline: the arm compared with; `static` or the run's first arm if none is named.

    Raises:
        RecordError: when the runs are not what is needed.
    """
    inputs = read_inputs(run, other, baseline)
    merged, base = inputs.merged, inputs.base
    late, quality = predictions(merged, inputs.costs)
    missing = []
    if not inputs.costs:
        missing.append(f"{run.dir} holds no fitted cost: predictions are left out.")
    padded = next((cost for cost in inputs.costs.values() if cost.group == "padded"), None)
    rival = RIVAL in set(merged["arm"])
    return Findings(
        run=run,
        base=base,
        paired=inputs.paired,
        summary=summary_table(merged, base, inputs.paired),
        against_rival=summary_table(merged, RIVAL, inputs.paired) if rival else None,
        gains=gains(late, base),
        quality=quality,
        ceiling=ceiling(late, base, padded) if "padded" in quality else None,
        accuracy=None if inputs.correct is None else accuracy_table(inputs.correct, base),
        modelled=run.table("modelled") if "modelled" in run.tables() else None,
        merged=merged,
        late=late,
        other=other,
        missing=missing,
    )
