"""The one exception that bad input raises, and the one way to check a settings object."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jaxsim.files.shown import one_line, shown


class InputError(ValueError):
    """Input that cannot be used: one line that names the source, the key and the allowed values.

    Whatever the message quotes, it is one line of at most 480 bytes without control characters.
    Command-line entry points print the line on standard error and exit with status 2.
    """

    def __init__(self, message: str):
        super().__init__(one_line(message))


def check_fields(
    settings: Any, names: Iterable[str], allowed: str, holds: Callable[[Any], bool]
) -> None:
    """Raise ValueError that names the first of the fields for which `holds` is False; `allowed`
    says in words what is expected."""
    for name in names:
        value = getattr(settings, name)
        if not holds(value):
            text = shown(value) if isinstance(value, int) else value
            raise ValueError(f"{name}: expected {allowed}, got {text}")


def check_counts(settings: Any, most: Mapping[str, int], least: int = 1) -> None:
    """Raise ValueError that names the first of the fields in `most` (name -> largest allowed) that is
    not a whole number from `least` on; None is not looked at."""
    for name, high in most.items():
        allowed = f"an integer >= {least} and <= {high:,}"
        check_fields(
            settings, (name,), allowed, lambda x, high=high: x is None or least <= x <= high
        )


def is_positive(value: float) -> bool:
    """> 0 and finite (NaN is not)."""
    return 0 < value < math.inf


def is_non_negative(value: float) -> bool:
    """>= 0 and finite (NaN is not)."""
    return 0 <= value < math.inf


def is_share(value: float) -> bool:
    """From 0 to 1 (NaN is not)."""
    return 0 <= value <= 1


def is_count(value: int) -> bool:
    """At least one."""
    return value >= 1
