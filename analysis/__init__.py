"""Run folders, statistics, figures and reports.

`records` is the only schema of a run folder, and everything else here reads nothing but that.
This package knows no simulator, no scheduler and no training framework.
"""
