"""How fast the parts of training are: messages between ranks, operators, whole steps.

collectives       collectives by kind, size and number of ranks
collective_model  seconds from bytes, with the error on sizes that were left out
operators         matrix products, convolutions, attention, optimizer steps, copies
steps             whole training steps, alone and with gradients summed over ranks
together          works that all ranks begin together
profile           measured collectives as a file for `hippo calibrate`
figures           the roofline
settings          options of the command
work              the command's work
"""

import lazy_loader

# Names are listed in __init__.pyi; each module loads when a name of it is first used.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
