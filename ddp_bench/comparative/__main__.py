"""Entry point: python -m ddp_bench.comparative [--quick] [--json FILE]"""

import sys

from ddp_bench.comparative.settings import ROOM
from ddp_bench.toolbox import run_room

if __name__ == "__main__":
    sys.exit(run_room(ROOM))
