"""`hippo memory`: peak memory predicted, recomputation chosen within a budget, allocators replayed.

The same as `python -m ddp_bench.memory`, which runs as a subprocess.
"""

import sys

from experiments.common import room_command

main = room_command("memory")

if __name__ == "__main__":
    sys.exit(main())
