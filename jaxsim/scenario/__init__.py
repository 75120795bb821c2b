"""Worlds drawn from seeds.

settings  how worlds are drawn: plain settings, without JAX
scenario  one job: the world of a cluster, banks of scenarios
jobs      the same for many jobs
"""

import lazy_loader

# Names are listed in __init__.pyi; each module loads when a name of it is first used.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
