"""How ranks share a model: layouts predicted, really trained, and changed while training.

layout      what a layout is; which ones a number of ranks has
schedule    a pipeline's step from the times of its parts
score       layouts scored by sums of measured times, explained, ranked
stream      samples by number, the same under every layout
model       one rank's part of the model
trainer     training under a layout
pieces      the profile: parts of the model, updates, messages, empty pipelines
hardware    what the machine does while all ranks ask for it
measure     layouts really trained and timed
checkpoint  a state on disk that every layout reads
move        from one layout to another, through disk or memory
relayout    whether a training that moved goes on as if it had not
adapt       when to move, and the loop that does
settings    options of the command
work        the command's work
"""

import lazy_loader

# Names are listed in __init__.pyi; each module loads when a name of it is first used.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
