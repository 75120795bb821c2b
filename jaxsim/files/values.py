"""The one validator of values: numbers, counts, names, choices, mappings.

Each function returns the value in its own type or raises InputError; `where` begins the message and
names the source and the key, such as "c.yaml: wan.rtt_ms".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from jaxsim.files.errors import InputError
from jaxsim.files.shown import listed, meant, shown

LARGEST = 1e12  # of any figure, whatever its unit: float32 computes with it
LARGEST_COUNT = 2**24  # float32 counts up to it one by one
LONGEST_NAME = 200
_DECIMAL = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")


def number(
    value: Any, where: str, low: float = 0.0, high: float = LARGEST, allowed: str = ""
) -> float:
    """A number from `low` to `high`; `allowed` says it in other words."""
    if not _within(value, int | float, low, high):
        words = allowed or f"a number >= {low:g} and at most {high:g}"
        raise InputError(f"{where}: expected {words}, got {shown(value)}")
    return float(value)


def _within(value: Any, kinds: Any, low: float, high: float) -> bool:
    # Compared, not converted: an integer may be longer than any float. No NaN passes either.
    return isinstance(value, kinds) and not isinstance(value, bool) and low <= value <= high


def count(value: Any, where: str, low: int = 1, high: int = LARGEST_COUNT) -> int:
    """An integer from `low` to `high`."""
    if not _within(value, int, low, high):
        words = f"an integer >= {low} and at most {high}"
        raise InputError(f"{where}: expected {words}, got {shown(value)}")
    return value


def cell_number(
    text: str | None, where: str, low: float = 0.0, high: float = LARGEST, allowed: str = ""
) -> float:
    """`number` of a table's cell."""
    value = _parsed(text)
    return number(value if _within(value, float, low, high) else text, where, low, high, allowed)


def cell_count(text: str | None, where: str, low: int = 1, high: int = LARGEST_COUNT) -> int:
    """`count` of a table's cell, which may be written 16, 16.0 or 1.6e1."""
    value = _parsed(text)
    whole = _within(value, float, low, high) and value == int(value)
    return count(int(value) if whole else text, where, low, high)


def _parsed(text: str | None) -> float | str | None:
    """A cell as a number where it is one, written with decimal digits."""
    good = text is not None and len(text) < 400 and _DECIMAL.fullmatch(text.strip())
    return float(text) if good else text


def name(value: Any, where: str, longest: int = LONGEST_NAME) -> str:
    """Text that can be printed, not empty; an integer stands for its digits."""
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(text, str) or not 0 < len(text) <= longest or not text.isprintable():
        words = f"text of 1 to {longest} characters that can be printed"
        raise InputError(f"{where}: expected {words}, got {shown(value)}")
    return text


def flag(value: Any, where: str) -> bool:
    """true or false."""
    if not isinstance(value, bool):
        raise InputError(f"{where}: expected true or false, got {shown(value)}")
    return value


def choice(value: Any, where: str, known: Iterable[str]) -> str:
    """One of the known names."""
    known = tuple(known)
    if not isinstance(value, str) or value not in known:
        near = meant(value, known)
        raise InputError(f"{where}: expected one of {listed(known)}, got {shown(value)}{near}")
    return value


def mapping(
    value: Any, where: str, must: Iterable[str] = (), may: Iterable[str] = ()
) -> Mapping[str, Any]:
    """A mapping with all keys of `must`, and of `may` any."""
    must, known = tuple(must), (*must, *may)
    if not isinstance(value, Mapping):
        raise InputError(f"{where}: expected a mapping with {listed(known)}, got {shown(value)}")
    # First what is there: a key that is missing may be one that is misspelt.
    for key in value:
        if key not in known:
            raise InputError(unknown(f"{where}: unknown key", key, known))
    for key in must:
        if key not in value:
            raise InputError(f"{where}: missing key {key!r}")
    return value


def names(value: Any, where: str, what: str) -> Mapping[str, Any]:
    """A mapping from at least one name to something; `what` says to what."""
    if not isinstance(value, Mapping) or not value:
        raise InputError(f"{where}: expected a mapping from {what}, got {shown(value)}")
    for key in value:
        name(key, f"{where}: key")
    return value


def entries(value: Any, where: str, what: str) -> list:
    """A list of at least one entry; `what` says what an entry is."""
    if not isinstance(value, list) or not value:
        raise InputError(f"{where}: expected a list of at least one {what}, got {shown(value)}")
    return value


def unknown(begin: str, key: Any, known: Iterable[Any]) -> str:
    """The message for a name that is not among the known ones."""
    known = tuple(known)
    return f"{begin} {shown(key)}{meant(key, known)}; allowed: {listed(known)}"
