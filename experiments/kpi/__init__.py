"""`hippo kpi`: the eight key figures.

config      what is asked for
board       the command: the scoreboards of all settings, and their records
frames      rows of episodes and of fronts
scoreboard  every key figure in one setting, for a policy and for its best rival
rivals      who stands beside the policy
worlds      the scenes: jitter, steady links, local load
jobs        utilisation of a cluster that many jobs share
response    a real process: from a measurement to the plan printed
table       the scoreboard as text
"""
