"""`hippo kpi`: the eight key figures.

jobs      The key figure that one job cannot show: how well many jobs use a cluster that they
response  The response of a real process: from a measurement sent to the new two-level plan
table     The scoreboard as text
worlds    The scenes that the KPIs are measured in: each cluster with jitter, without, and under
"""
