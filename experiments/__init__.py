"""Commands: parse, call, write. One file or folder is one command.

cli            `hippo SUBCOMMAND`: the table of commands
common         what commands share
completion     command lines completed by the TAB key
plan           a plan in seconds: search, price, thresholds, what-if
train          train Hi-PPO
evaluate       schedulers on the same scenarios
respond        answers measurements with plans
watch          follows live measurements, says when the plan should change
probe          links measured between hosts, as a cluster file
doctor         what is installed, what is missing for what
kpi            the eight key figures
validate       predictions beside measured runs
calibrate      efficiencies fitted to measured runs
fidelity       closed form against event-exact
foresight      what re-planners lose, and what of it is foresight
sweep          schedulers over a designed range of worlds
cluster        clusters and traces from measurements
network        link processes fitted to measured paths
jobs           lists of jobs, drawn
bench          speed
wan            a network on one machine, and real training over it
runs           run folders, listed and compared
parallel       how ranks share a model: predicted, trained, changed
ddp            data-parallel training: train, replay, analyse
communication  gradients sent in several ways, one chosen while training
comparative    frameworks that train the same model, compared
microbench     messages between ranks, operators, whole steps: measured
memory         memory of real training: predicted, budgeted, replayed
"""
