"""The report of data-parallel runs, in two languages.

findings  what one or two runs show: their tables, what was fitted, what was compared
tables    those findings as Markdown tables
text      the sentences, and the templates that they fill
"""

from analysis.report.ddp.findings import RIVAL, Findings, find, read_inputs, read_run
from analysis.report.ddp.tables import (
    HEADERS,
    LANGUAGES,
    accuracy_section,
    gradient_section,
    time_table,
    wall_table,
)
from analysis.report.ddp.text import FILES, render, summary_page

__all__ = [
    "FILES",
    "HEADERS",
    "LANGUAGES",
    "RIVAL",
    "Findings",
    "accuracy_section",
    "find",
    "gradient_section",
    "read_inputs",
    "read_run",
    "render",
    "summary_page",
    "time_table",
    "wall_table",
]
