"""Worlds drawn from seeds.

settings  how worlds are drawn: plain settings, without JAX
world     one job: what its scenarios share, the table of plans above all
scenario  one job: banks of scenarios
outlook   what a scenario may look like: the states to be expected
jobs      the same for many jobs
padding   worlds with domains that are not there
"""

import lazy_loader

# Names are listed in __init__.pyi; each module loads when a name of it is first used.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
