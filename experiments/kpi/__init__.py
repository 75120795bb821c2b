"""`hippo kpi`: the eight key figures.

config      what is asked for
scoreboard  every key figure, for a policy and for its best rival
worlds      the scenes: jitter, steady links, local load
jobs        utilisation of a cluster that many jobs share
response    a real process: from a measurement to the plan printed
table       the scoreboard as text
"""
