"""`hippo kpi`: the eight key figures.

worlds    the scenes: jitter, steady links, local load
jobs      utilisation of a cluster that many jobs share
response  a real process: from a measurement to the plan printed
table     the scoreboard as text
"""
