"""A report from run folders: text and figures by the kind of run.

report    `python -m analysis.report RUN [RUN ...]`: the page of one run or several
ddp       the page of a data-parallel run: templates in two languages, filled from what was measured
sections  what a report says about one run, by the kind of run
"""

from analysis.report import ddp
from analysis.report.ddp import RIVAL
from analysis.report.report import write_report

__all__ = ["RIVAL", "ddp", "write_report"]
