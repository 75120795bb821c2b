"""What a report says about a run, by its kind, from its records only.

common       sections, pictures, tables that may be missing
markdown     numbers and tables as Markdown
evaluation   schedulers compared
jobs         many jobs
scoreboard   key figures, suites
training     learning curves
validation   predictions beside measured runs
left_out     groups of runs that a fit did without
calibration  fitted parameters
network      fitted link processes, predictors
ddp          data-parallel training
fidelity     closed form against event-exact
sweep        schedulers over a designed range of worlds
plan         the best plans side by side, on the map
wan          predictions beside real runs over an emulated network
other        benchmarks, and kinds of run without pictures
"""

from __future__ import annotations

from analysis.records import RunRecord
from analysis.report.sections.calibration import calibration_sections
from analysis.report.sections.common import Picture, Section
from analysis.report.sections.ddp import ddp_sections
from analysis.report.sections.evaluation import evaluation_sections
from analysis.report.sections.fidelity import fidelity_sections
from analysis.report.sections.jobs import jobs_sections
from analysis.report.sections.markdown import MISSING, cell, table
from analysis.report.sections.network import fit_sections, prediction_sections
from analysis.report.sections.other import bench_sections, summary_sections
from analysis.report.sections.plan import plan_sections
from analysis.report.sections.scoreboard import kpi_sections, suite_sections
from analysis.report.sections.sweep import sweep_sections
from analysis.report.sections.training import compared_training, training_sections
from analysis.report.sections.validation import VALIDATION_METHOD, validation_sections
from analysis.report.sections.wan import efficiency_sections, end_to_end_sections, wan_sections

__all__ = [
    "MISSING",
    "VALIDATION_METHOD",
    "Picture",
    "Section",
    "cell",
    "compared_training",
    "sections_of",
    "table",
]

_MAKERS = {
    "evaluate": evaluation_sections,
    "evaluate_jobs": jobs_sections,
    "suite": suite_sections,
    "sweep": sweep_sections,
    "kpi": kpi_sections,
    "train": training_sections,
    "bench": bench_sections,
    "network_fit": fit_sections,
    "network_predict": prediction_sections,
    "validate": validation_sections,
    "calibrate": calibration_sections,
    "fidelity": fidelity_sections,
    "ddp": ddp_sections,
    "plan": plan_sections,
    "wan_study": wan_sections,
    "wan_efficiency": efficiency_sections,
    "wan_end_to_end": end_to_end_sections,
}


def sections_of(record: RunRecord, notes: list[str]) -> list[Section]:
    """The sections of a run; what had to be left out, and why, is added to `notes`.

    Raises:
        RecordError: when a table that is there lacks a column or contradicts itself.
    """
    return list(_MAKERS.get(record.run["kind"], summary_sections)(record, notes))
