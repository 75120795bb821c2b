"""Drawing worlds from seeds, for one job and for many.

jobs      Worlds and scenarios of several jobs
scenario  Scenarios: seeds -> worlds. A bank of them is generated ahead, so that a reset is an
"""

import lazy_loader

# Names are listed in __init__.pyi; each module loads when a name of it is first used.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
