"""Training frameworks compared: the same model, weights and batches; equal losses before the clock.

frameworks  what trains: a protocol, and one module for each framework
entries     all that are compared, by name
rank        one rank: builds its adapter, waits for its turn
group       the ranks of a framework, started, asked, ended
judge       losses against the reference, intervals
outcome     what came out of one framework
moves       saved in one layout, loaded in another
page        a page in two languages
settings    options of the command
work        the command's work
"""

import lazy_loader

# Names are listed in __init__.pyi; each module loads when a name of it is first used.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
