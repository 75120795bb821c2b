"""Types of command-line arguments that several commands take."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable


def number(text: str, allowed: Callable[[float], bool], wanted: str) -> float:
    """A finite number that `allowed` accepts; the error says what is `wanted`."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and allowed(value)):
        raise argparse.ArgumentTypeError(f"expected {wanted}, got {text!r}")
    return value


def whole_seconds(text: str) -> int:
    """Whole, so that t_s / interval falls exactly on the interval when a trace is read."""
    return int(number(text, lambda x: x >= 1 and x == int(x), "whole seconds >= 1"))


def seed(text: str) -> int:
    """Of a random generator."""
    return int(number(text, lambda x: x >= 0 and x == int(x), "a whole number >= 0"))
