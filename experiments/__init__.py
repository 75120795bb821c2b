"""Commands: parse, call, write. One file or folder is one command.

cli        `hippo SUBCOMMAND`: the table of commands
common     what commands share
train      train Hi-PPO
evaluate   schedulers on the same scenarios
respond    answers measurements with plans
kpi        the eight key figures
validate   predictions beside measured runs
calibrate  efficiencies fitted to measured runs
fidelity   closed form against event-exact
cluster    clusters and traces from measurements
network    link processes fitted to measured paths
jobs       lists of jobs, drawn
bench      speed
ddp        data-parallel training: train, replay, analyse
"""
