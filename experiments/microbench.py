"""`hippo microbench`: measure messages between ranks, operators and whole training steps.

The same as `python -m ddp_bench.microbench`, which runs as a subprocess.
"""

import sys

from experiments.common import room_command

main = room_command("microbench")

if __name__ == "__main__":
    sys.exit(main())
