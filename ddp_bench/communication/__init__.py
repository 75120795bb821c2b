"""How gradients get from rank to rank: methods behind one hook, and which of them is worth it now.

links     emulated links whose rate and latency change
channel   messages between ranks, each with its bytes, hops and seconds
methods   what is sent: everything, rounded, quantised, the largest, low rank, or nothing for a while
hook      one hook of DistributedDataParallel whose method can be changed between steps
sharded   the same for models that FSDP2 shards
selector  link estimated from messages, method chosen with hysteresis; regret in hindsight
training  real training under a method or under the selector
settings  options of the command
work      the command's work
"""

import lazy_loader

# Names are listed in __init__.pyi; each module loads when a name of it is first used.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
