"""`hippo calibrate`: efficiency parameters fitted to measured runs.

config        What a calibration is asked for
fit           Fit the efficiency parameters of all machines, write the calibration file and the record
adapt         Adapt one software stack to a user's own runs
microbench    What `hippo microbench` measured of a machine
machine       The simulator's parameters from it
machine_file  The calibration file of a machine
"""

import lazy_loader

# Names are listed in __init__.pyi; each module loads when a name of it is first used.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
