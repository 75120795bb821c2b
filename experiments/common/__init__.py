"""What commands share.

options           command lines from dataclasses: a YAML file, then overrides, then checks
arguments         command lines with several commands
errors            how every command ends
files             writing results: a fault is one line and leaves nothing behind
known             names that options take, with the nearest of them for a slip
abreast           work in threads, where most of it is the compiler's
progress          bars that say what is going on, compiling included
real_training     commands of ddp_bench, started as subprocesses
prices            what the plans of a table cost, of which budgets are shares
running           a plan that was told before, from a file
setup             worlds from options, compiled programs kept between runs
kept_worlds       worlds that were built before, on disk
compiler_options  options of XLA, set only where it knows them
tables            tables for the terminal
"""

import lazy_loader

# Names are listed in __init__.pyi; each module loads when a name of it is first used.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
