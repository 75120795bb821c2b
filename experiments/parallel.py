"""`hippo parallel`: how ranks share a model; layouts predicted, trained, changed while training.

The same as `python -m ddp_bench.layouts`, which runs as a subprocess: the room is called `layouts`,
because `ddp_bench.parallel` trains over an emulated network.
"""

import sys

from experiments.common import room_command

main = room_command("layouts", "parallel")

if __name__ == "__main__":
    sys.exit(main())
