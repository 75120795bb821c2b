"""The pages of the documentation: which there are, their blocks of code, the commands in them."""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
FORMATS = ROOT / "docs" / "file-formats.md"
# Rooms of `ddp_bench` that are commands, by the command's name.
ROOMS = ("parallel", "memory", "microbench", "communication", "comparative")
ROOM_OF = {"parallel": "layouts"}  # where the room has another name
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A fenced block: its page, line, language and text."""

    page: Path
    line: int
    language: str
    text: str

    @property
    def name(self):
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def pages():
    """Every page that a reader is sent to."""
    top = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    rooms = [path for package in ("jaxsim", "ddp_bench") for path in (ROOT / package).rglob("*.md")]
    return [*top, *sorted((ROOT / "docs").rglob("*.md")), *sorted(rooms)]


def blocks(*languages):
    """The blocks in these languages, page by page."""
    return [
        Block(page, text[: found.start()].count("\n") + 1, found[1], found[2])
        for page in pages()
        for text in (page.read_text(encoding="utf-8"),)
        for found in FENCE.finditer(text)
        if found[1] in languages
    ]


def of_format(heading, language):
    """The blocks under a heading of the page on file formats."""
    text = FORMATS.read_text()
    start = text[: text.index(f"\n## {heading}\n")].count("\n") + 2
    end = text.find("\n## ", text.index(f"\n## {heading}\n") + 1)
    last = text[:end].count("\n") + 1 if end > 0 else len(text)
    found = [b for b in blocks(language) if b.page == FORMATS and start <= b.line <= last]
    assert found, heading
    return [b.text for b in found]


class Command(NamedTuple):
    """A line of a shell block, as the shell would split it."""

    where: str
    words: tuple[str, ...]

    @property
    def name(self):
        return f"{self.where} {' '.join(self.words[:3])}"


def commands():
    """Every command of every shell block; lines that end in a backslash go on."""
    out = []
    for block in blocks("sh"):
        for line in block.text.replace("\\\n", " ").splitlines():
            words = tuple(shlex.split(line, comments=True))
            if words:
                out.append(Command(block.name, words))
    return out
