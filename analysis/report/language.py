"""A report in another language: sentence by sentence, what a run filled in carried over as it is.

The sections write English. A catalog (templates/sentences.zh.yaml) holds each of their sentences,
headings and cells with places for what a run fills in, and the same in the other language. The
numbers of both languages are therefore the same characters.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import yaml

from analysis.report.ddp import HEADERS

LANGUAGES = ("en", "zh")
_CATALOGS = Path(__file__).parent / "templates"
_PLACE = re.compile(r"\\\{([a-z])\\\}")  # of an escaped template
_HEADING = re.compile(r"(#+ )(.*?)( \([^()]*\))?$")
_CELLS = re.compile(r"(?<!\\)\|")


class Sentence(NamedTuple):
    """What recognises a sentence, and its form in the other language."""

    pattern: re.Pattern[str]
    other: str


class Catalog:
    """The sentences of one language; `unknown` collects what it did not hold."""

    def __init__(self, pairs: dict[str, str]) -> None:
        self.fixed = {english: other for english, other in pairs.items() if "{" not in english}
        # The longest first: a sentence is never taken for the beginning of a shorter one.
        ordered = sorted(pairs, key=len, reverse=True)
        self.sentences = [Sentence(_pattern(english), pairs[english]) for english in ordered]
        self.unknown: list[str] = []

    def block(self, text: str) -> str:
        """A paragraph, list item or caption; what the catalog lacks stays English."""
        rest, parts = " ".join(text.split()), []
        while rest:
            for sentence in self.sentences:
                if found := sentence.pattern.match(rest):
                    break
            else:
                self.unknown.append(rest)
                parts.append(rest)
                break
            parts.append(
                _filled(sentence.other, {k: self._term(v) for k, v in found.groupdict().items()})
            )
            rest = rest[found.end() :].lstrip()
        return "".join(parts)

    def heading(self, text: str) -> str:
        """A heading, which is one sentence to its end."""
        for pattern, other in self.sentences:
            if found := pattern.fullmatch(text):
                return _filled(other, found.groupdict())
        self.unknown.append(text)
        return text

    def cell(self, text: str) -> str:
        """A cell of a table: words that the catalog holds whole, everything else as it is."""
        bare = text.strip()
        return text.replace(bare, self.fixed[bare]) if bare in self.fixed else text

    def _term(self, value: str) -> str:
        return self.fixed.get(value, value)


def _pattern(english: str) -> re.Pattern[str]:
    """Places match as little as they can; a sentence ends where the text does or at a space."""
    return re.compile(_PLACE.sub(r"(?P<\1>.+?)", re.escape(english)) + r"(?=\s|$)")


def _filled(template: str, values: dict[str, str]) -> str:
    return re.sub(r"\{([a-z])\}", lambda place: values[place.group(1)], template)


@functools.cache
def _pairs(language: str) -> dict[str, str]:
    text = (_CATALOGS / f"sentences.{language}.yaml").read_text(encoding="utf-8")
    heads = {english: other for english, other in HEADERS.values()}
    return heads | yaml.safe_load(text)


def translated(markdown: str, language: str) -> tuple[str, list[str]]:
    """A report in another language, and what of it the catalog does not hold.

    Args:
        markdown: a report as the sections write it, in English.
        language: one of LANGUAGES.

    Returns:
        The page, and its blocks (or their ends) that stayed English.
    """
    if language == "en":
        return markdown, []
    catalog = Catalog(_pairs(language))
    lines = [_translated_line(line, catalog) for line in _lines(markdown)]
    return "\n".join(lines), catalog.unknown


def _lines(markdown: str) -> Iterator[str]:
    """Paragraphs and list items joined to one line each; tables and code line by line."""
    for block in re.split(r"(```.*?\n```)", markdown, flags=re.DOTALL):
        if block.startswith("```"):
            yield block
            continue
        for paragraph in block.split("\n\n"):
            if paragraph.lstrip().startswith("|"):
                yield from paragraph.strip("\n").split("\n")
            else:
                yield from re.split(r"\n(?=- )", paragraph.strip("\n"))
            yield ""


def _translated_line(line: str, catalog: Catalog) -> str:
    if not line or line.startswith("```"):
        return line
    if line.startswith("|"):
        cells = _CELLS.split(line)
        return "|".join(catalog.cell(cell) for cell in cells)
    if line.startswith("### "):  # the name of a run
        return line
    if found := _HEADING.match(line):
        return found[1] + catalog.heading(found[2]) + (found[3] or "")
    if line.startswith("!["):
        title, file = line[2:].split("](", 1)
        return f"![{catalog.heading(title)}]({file}"
    if line.startswith("- "):
        return "- " + catalog.block(line[2:])
    if line.startswith("*") and not line.startswith("**") and line.count("*") % 2 == 0:
        inner = line.strip()
        if (
            inner.endswith("*")
            and inner not in catalog.fixed
            and not inner.startswith("*Identified")
        ):
            return f"*{catalog.block(inner[1:-1])}*"
    return catalog.block(line)
