"""`hippo evaluate`: schedulers on the same scenarios, one scene or a suite.

config             what an evaluation is asked for
inputs             its files, read before anything is built
contestants        who plays: names and checkpoints
evaluation         one evaluation, from checked inputs to tables and summary
evaluator          plays schedulers on a bank of scenarios, the truth beside them
playing            a block of scenarios, interval by interval
programs           what else it compiles: each program once for all banks of one size
tables             rows from episodes
trust              band of a plan, and what of it lies outside what was calibrated
alternatives       the best synchronous plan and the best of any, side by side
suites             named lists of scenes
jobs               the comparison on many jobs
low_communication  low-communication training, with a table of its own
dry                a dry run: files read, what there is to play counted
"""

import lazy_loader

# Names are listed in __init__.pyi; each module loads when a name of it is first used.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
