"""Memory of training: peaks predicted, recomputation chosen within a budget, allocators replayed.

step             the training step, and what its units keep, recompute or offload
offload          saved tensors in pinned host memory or in files
predict          peak memory without running, by MemTracker under FakeTensorMode
measure          what the step really asks of the allocator
trace            allocations in order, and what is alive in between
recompute_times  what a choice costs, measured
chooser          least time within a budget
arena            one range of addresses, its holes split, merged, pushed together
allocators       policies of allocators
replay           traces under those policies
settings         options of the command
work             the command's work
figures          the timeline and the replay as pictures
"""

import lazy_loader

# Names are listed in __init__.pyi; each module loads when a name of it is first used.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
