"""A stand-in for the process that responds, which takes tens of seconds to begin."""

from pathlib import Path

import numpy as np


class Answering:
    """Answers every measurement at once."""

    open = 0

    def __init__(self, command):
        assert "experiments.respond.handed" in command and Path(command[-1]).is_file()
        Answering.open += 1

    def response_s(self, spec, count):
        assert spec is not None and Answering.open > 0
        return np.full(count, 0.02)

    def close(self):
        Answering.open -= 1
