"""What commands share: command lines, errors, files, worlds, tables for the terminal.

arguments         Command lines with several commands, and the types of arguments that they take
compiler_options  Options of XLA, which ends the process for one that it does not know: ask
errors            One way for all entry points to end
files             Writing results and text files: a fault is one line and leaves nothing behind
options           Command lines from typed dataclasses: a YAML file, then overrides, then checks
setup             What the entry points share: compiled programs, loading of worlds
tables            Tables for the terminal
"""

import lazy_loader

# Names are listed in __init__.pyi; each module loads when a name of it is first used.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
