"""Run folders, statistics, figures and reports.

records          the only schema of a run folder: everything here reads nothing else
folder_lock      one writer per run folder
provenance       commit, package versions, machine
json_files       strict JSON, written whole or not at all
statistics       tables -> numbers with intervals
figures          tables -> pictures
report           records -> a page
analyze_metrics  data-parallel runs: figures, tables, report in two languages

This package knows no simulator, no scheduler and no training framework.
"""
