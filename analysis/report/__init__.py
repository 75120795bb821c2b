"""A report from run folders: text and figures by the kind of run.

report    `python -m analysis.report RUN [RUN ...]`: the page of one run or several
ddp       the report of data-parallel runs, in two languages
sections  what a report says about one run, by the kind of run
"""

from analysis.report import ddp
from analysis.report.report import write_report

__all__ = ["ddp", "write_report"]
