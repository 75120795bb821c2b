"""`hippo communication`: compare how gradients are sent, and choose while training.

The same as `python -m ddp_bench.communication`, which runs as a subprocess.
"""

import sys

from experiments.common import room_command

main = room_command("communication")

if __name__ == "__main__":
    sys.exit(main())
