"""How a message shows what it was given: short, on one line, nothing that a terminal obeys."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable
from typing import Any

MOST_BYTES = 480  # of a message; a command prints `error: ` before it
MOST_SHOWN = 150  # bytes of a value in it
MOST_LISTED = 260  # characters of a list of names
NEAR = 0.6  # similarity from which a name is taken for a misspelling of another

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 60
_short.maxlong = 40
_short.maxlevel = 2


def shown(value: Any) -> str:
    """`value` as Python writes it, about 60 characters of a word, control characters escaped."""
    if isinstance(value, int) and value.bit_length() > 10_000:  # Python refuses to print it
        return f"an integer of about {round(value.bit_length() * 0.30103):,} digits"
    return one_line(_short.repr(value), MOST_SHOWN)


def listed(names: Iterable[Any]) -> str:
    """Names joined by commas; of a long list the first ones, the last and how many there are."""
    texts = [one_line(str(name), 60) for name in names]
    if len(whole := ", ".join(texts)) <= MOST_LISTED:
        return whole
    head, room = [], MOST_LISTED - 20 - len(texts[-1])
    for text in texts[:-1]:
        room -= len(text) + 2
        if room < 0:
            break
        head.append(text)
    return f"{', '.join(head)}, ..., {texts[-1]} ({len(texts)} in all)"


def meant(name: Any, known: Iterable[Any]) -> str:
    """` (did you mean ...?)` where a known name is close to `name`, else nothing."""
    near = difflib.get_close_matches(str(name)[:80], [str(k) for k in known], n=1, cutoff=NEAR)
    return f" (did you mean {near[0]}?)" if near else ""


def one_line(text: str, most: int = MOST_BYTES) -> str:
    """`text` on one line of at most `most` bytes: what does not print is escaped, and of a text that
    is too long the beginning and the end are left."""
    if len(text) > 4 * most:
        text = f"{text[: 2 * most]} ... {text[-most:]}"
    text = "".join(c if c.isprintable() else _escaped(c) for c in " ".join(text.split()))
    content = text.encode()
    if len(content) <= most:
        return text
    tail = (most - 5) // 3
    ends = content[: most - 5 - tail], content[-tail:]
    return " ... ".join(end.decode(errors="ignore") for end in ends)


def _escaped(character: str) -> str:
    return ascii(character)[1:-1]
