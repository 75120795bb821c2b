"""`hippo comparative`: training frameworks on the same model; equal losses first, then speed.

The same as `python -m ddp_bench.comparative`, which runs as a subprocess.
"""

import sys

from experiments.common import room_command

main = room_command("comparative")

if __name__ == "__main__":
    sys.exit(main())
