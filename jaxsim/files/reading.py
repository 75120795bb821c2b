"""Reading files: their bytes and text, never more than a limit, unpacked where they are packed."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import re
import stat
import struct
import zipfile
import zlib
from pathlib import Path

from jaxsim.files.errors import InputError

MOST_BYTES = 256 * 2**20  # of any file, unpacked
_UNPACK = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_FAULTS = (OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile)
_FAULTS += (ValueError, RuntimeError, struct.error)  # RuntimeError: encrypted, or packed oddly
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def read_bytes(path: str | Path, kind: str, most: int = MOST_BYTES) -> bytes:
    """The content of a file.

    Raises InputError where it is missing, no regular file (a folder, a pipe, /dev/zero) or holds
    more than `most` bytes; `kind` says what was expected, such as "a cluster file".
    """
    try:
        mode = os.stat(path).st_mode
        if not stat.S_ISREG(mode):
            what = "it is a folder" if stat.S_ISDIR(mode) else "it is no regular file"
            raise _unreadable(path, kind, what)
        with open(path, "rb") as file:
            content = file.read(most + 1)
    except OSError as error:
        raise _unreadable(path, kind, error.strerror or str(error)) from None
    except InputError:
        raise
    except ValueError as error:  # of a name that no file can have
        raise _unreadable(path, kind, str(error)) from None
    _refuse_large(path, kind, content, most)
    return content


def read_text(path: str | Path, kind: str, most: int = MOST_BYTES, controls: bool = False) -> str:
    """The text of a file (UTF-8, with or without a byte order mark; every end of a line a newline),
    unpacked where its name ends in .gz, .bz2, .xz or .zip.

    Raises InputError as `read_bytes` does, and for what is torn, not UTF-8 or, unless `controls`,
    holds control characters.
    """
    content = unpacked(path, kind, read_bytes(path, kind, most), most)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise _unreadable(path, kind, f"line {line} is not UTF-8 text") from None
    if not controls and (why := control_character(text)):
        raise _unreadable(path, kind, why)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def control_character(text: str) -> str:
    """Says where the first control character of a text stands; empty where there is none."""
    if found := _CONTROL.search(text):
        line = text.count("\n", 0, found.start()) + 1
        return f"line {line} holds the control character {found.group()!r}"
    return ""


def is_there(name: str) -> bool:
    """Whether a name is that of a file or folder; no name is too long or too odd to ask."""
    try:
        return Path(name).exists()
    except (OSError, ValueError):
        return False


def is_file(name: str) -> bool:
    """Whether a name is that of a file; no name is too long or too odd to ask."""
    try:
        return Path(name).is_file()
    except (OSError, ValueError):
        return False


def unpacked(path: str | Path, kind: str, content: bytes, most: int) -> bytes:
    """The content of a file packed as the end of its name says; `content` itself for any other name."""
    suffix = Path(path).suffix.lower()
    if suffix not in (*_UNPACK, ".zip"):
        return content
    try:
        if suffix == ".zip":
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                names = archive.namelist()
                if len(names) != 1:
                    raise ValueError(f"an archive of {len(names)} files, expected one")
                with archive.open(names[0]) as member:
                    plain = member.read(most + 1)
        else:
            with _UNPACK[suffix](io.BytesIO(content)) as file:
                plain = file.read(most + 1)
    except _FAULTS as error:
        why = f"{suffix[1:]} data torn or damaged: {error}"
        raise _unreadable(path, kind, why) from None
    _refuse_large(path, kind, plain, most)
    return plain


def _refuse_large(path: str | Path, kind: str, content: bytes, most: int) -> None:
    if len(content) > most:
        raise _unreadable(path, kind, f"it is larger than {most:,} bytes")


def _unreadable(path: str | Path, kind: str, why: str) -> InputError:
    return InputError(f"{path}: cannot be read as {kind}: {why}")
