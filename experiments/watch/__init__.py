"""`hippo watch`: follow live measurements, and say when the plan should change.

config    What is watched, and what a change of plan sets off
lines     Measurements from text: JSON objects or CSV
sources   Where they come from: standard input, new files in a folder, a socket
watcher   Measurements in, decisions out: one step of the loop
service   The loop, from the settings to the end of the measurements
hook      The user's command that puts a plan into force
state     What survives the process
metrics   Counters for Prometheus
"""

import lazy_loader

# Names are listed in __init__.pyi; each module loads when a name of it is first used.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
