"""What trains: one module for each framework, under one protocol.

task            what all of them train
adapter         what a framework must offer, and the lines that its adapter takes
pytorch         PyTorch alone, DDP, FSDP2, a pipeline
deepspeed_zero  DeepSpeed's ZeRO stages
megatron_core   megatron-core, data and tensor parallel
titan           torchtitan's FSDP2
picotron        Picotron's data parallelism, from a checkout
"""

import lazy_loader

# Names are listed in __init__.pyi; each module loads when a name of it is first used. The modules of
# frameworks are named by `entries`, and load in ranks alone.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
