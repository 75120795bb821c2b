"""`hippo evaluate`: schedulers on the same scenarios, one scene or a suite of them.

config             What an evaluation is asked for, and the checks of it
contestants        Who plays: schedulers by name, and checkpoints with an entry for each of their
decision           One decision as it is timed: what a scheduler works out once, when it is made
evaluation         One evaluation, from checked inputs to tables and summary
evaluator          Playing schedulers on one bank of scenarios: common random numbers, the truth
jobs               Compare schedulers on many jobs: `python -m experiments.evaluate --jobs FILE
low_communication  Low-communication training, apart from the rest: a plan table and a
suites             Suites: named lists of scenes, evaluated one after another into one folder
tables             The tables of an evaluation: rows from episodes, on disk after every scheduler
"""

import lazy_loader

# Names are listed in __init__.pyi; each module loads when a name of it is first used.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
