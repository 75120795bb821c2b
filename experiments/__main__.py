"""`python -m experiments SUBCOMMAND ...`: the same as `hippo SUBCOMMAND ...`."""

import sys

from experiments.cli import main

if __name__ == "__main__":
    sys.exit(main())
