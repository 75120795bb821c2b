"""A report from run folders.

report    `python -m analysis.report RUN [RUN ...]`: the page of one run or several
sections  what is said about a run, by its kind
ddp       the page of a data-parallel run, in two languages (templates/)
"""

from analysis.report import ddp
from analysis.report.report import write_report

__all__ = ["ddp", "write_report"]
