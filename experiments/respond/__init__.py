"""`hippo respond`: answer measurements with plans.

config        What a process that answers measurements is asked for
responder     The scheduler as a service
handed        The same process in a world that another command has made already
measurements  One JSON object of a link or a domain, checked; the network as last measured; drawn ones
memory        What the service remembers as plain numbers, and whose they are
"""

import lazy_loader

# Names are listed in __init__.pyi; each module loads when a name of it is first used.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
