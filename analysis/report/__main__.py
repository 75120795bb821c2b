"""`python -m analysis.report RUN [RUN ...]`."""

import sys

from analysis.report.report import main

sys.exit(main())
