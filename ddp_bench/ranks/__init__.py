"""Messages between ranks, and what happens when one is lost.

comm      The process group, and a second one on the CPU for small control messages
faults    Fault drills: one rank fails at one step
rollcall  Which ranks are still there after a message between them failed
"""

from ddp_bench.ranks import comm
from ddp_bench.ranks.comm import Control
from ddp_bench.ranks.faults import Drill
from ddp_bench.ranks.rollcall import EXPLAINED, LOST

__all__ = ["EXPLAINED", "LOST", "Control", "Drill", "comm"]
