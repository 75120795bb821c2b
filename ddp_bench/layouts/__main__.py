"""Entry point: python -m ddp_bench.layouts [--quick] [--json FILE]"""

import sys

from ddp_bench.layouts.settings import ROOM
from ddp_bench.toolbox import run_room

if __name__ == "__main__":
    sys.exit(run_room(ROOM))
