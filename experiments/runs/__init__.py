"""`hippo runs`: which run folders there are, and how two of them differ.

config   what is asked for
listing  folders, their tables, their differences
dry      what a dry run of a long command tells: the most alike of the runs that finished
"""

import lazy_loader

# Names are listed in __init__.pyi; each module loads when a name of it is first used.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
