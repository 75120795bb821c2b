"""What the measuring commands share.

checkpoints  failures of torch's checkpoints as errors that can be caught
command  a room as a command: options, run folder, result, one line for what goes wrong
llama    a small Llama
launch   functions on several ranks
timing   interleaved repeats; medians with intervals
text     tables for the terminal
"""

import lazy_loader

# Names are listed in __init__.pyi; each module loads when a name of it is first used, so that
# reading the command line does not wait for torch.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
