"""Damage to files: what a slip of the hand, a torn copy or an ill will makes of a good one."""

from __future__ import annotations

import random
import re

# What may stand where a number, a name or a word was.
SCALARS = [
    *("1.0e12", "1e12", "1e308", "-1e308", "1e-308", "1e-320", "1e400", "-1", "0", "-0.0", "0.5"),
    *("7", "1e-30", "2147483648", "4294967296", "9223372036854775808", "18446744073709551616"),
    *(".nan", ".inf", "-.inf", "nan", "inf", "-inf", "NaN", "Infinity", "null", "~", "true"),
    *("false", "yes", "no", "0x10", "0o17", "017", "1_000", "1:30", "12:30:45", "2021-10-01"),
    *("2021-02-30", "2021-10-01T00:00:00Z", "[heavy]", "{a: 1}", "[]", "{}", "[[1]]", "*", "&"),
    *("!", "-", "?", "|", ">", "%", "@", "`", "!!python/object:os.system", "!!binary", "!!set"),
    *("!!str", "!!float", "!!int", "!!timestamp", "<<", "", " ", "two words", "a,b", "a;b"),
    *("9" * 400, "-" + "9" * 400, "0." + "3" * 400, "9" * 5000, "n" * 300, "a" * 5000),
    *("A" * 100_000, '"\\x1b[31mred\\x07"', '"\\0"', "'a''b'", '"two\\nlines"', "\x1b[2J"),
    *("Größe", "\u0661\u0662", "\u202etxt", "\u2028", '"\\ud800"', "../../etc/passwd", "/dev/zero"),
]
TOKEN = re.compile(rb"[\w.+-]+")
BOMB = b"a: &a [x,x,x,x,x,x,x,x,x]\n" + b"".join(
    b"%c: &%c [%s]\n" % (i + 1, i + 1, b",".join([b"*%c" % i] * 9)) for i in range(97, 109)
)


def mutated(content: bytes, rng: random.Random) -> bytes:
    """The content with one to three kinds of damage."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        content = rng.choice(KINDS)(content, rng)
    return content


def _token(content: bytes, rng: random.Random) -> bytes:
    places = list(TOKEN.finditer(content))
    if not places:
        return content
    place = rng.choice(places)
    return content[: place.start()] + rng.choice(SCALARS).encode() + content[place.end() :]


def _misspelt(content: bytes, rng: random.Random) -> bytes:
    """A letter of a word dropped, doubled or changed: keys above all."""
    places = [p for p in TOKEN.finditer(content) if len(p.group()) > 3 and p.group()[:1].isalpha()]
    if not places:
        return content
    at = (place := rng.choice(places)).start() + rng.randrange(len(place.group()))
    return content[:at] + rng.choice((b"", content[at : at + 1] * 2, b"z")) + content[at + 1 :]


def _flip(content: bytes, rng: random.Random) -> bytes:
    damaged = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 8)) if content else 0):
        damaged[rng.randrange(len(content))] = rng.randrange(256)
    return bytes(damaged)


def _cut(content: bytes, rng: random.Random) -> bytes:
    """A copy that ended early, or lost a piece."""
    start = rng.randrange(len(content) + 1)
    stop = rng.choice((len(content), start + rng.randrange(1, 40)))
    return content[:start] + content[stop:]


def _inserted(content: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(content) + 1)
    what = (b"\0", b"\x1b[31m", b"\x07", b"\xff", b"\xc3", b"\xed\xa0\x80", b'"', b"'", b",", b":")
    what += (
        b"\r",
        b"\n",
        b"\t",
        b"{",
        b"[",
        b"]",
        b"}",
        b"#",
        b"&x ",
        b"*x ",
        b"- ",
        b"\xe2\x80\xa8",
    )
    return content[:at] + rng.choice(what) * rng.choice((1, 1, 2, 3000)) + content[at:]


def _lines(content: bytes, rng: random.Random) -> bytes:
    lines = content.splitlines(keepends=True) or [b""]
    i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
    act = rng.randrange(4)
    if act == 0:
        lines.insert(j, lines[i])  # a key or a row twice
    elif act == 1:
        del lines[i]
    elif act == 2:
        lines[i], lines[j] = lines[j], lines[i]
    else:
        lines[i] = lines[i].rstrip(b"\n") + rng.choice((b",1\n", b",\n", b" extra: 1\n", b"\n\n"))
    return b"".join(lines)


def _encoded(content: bytes, rng: random.Random) -> bytes:
    text = content.decode("latin-1")
    codes = ("utf-8-sig", "utf-16", "utf-32", "utf-7", "cp500")
    marked = rng.choice((0, 0, 1))
    return text.replace("\n", "\r\n").encode() if marked else text.encode(rng.choice(codes))


def _nested(content: bytes, rng: random.Random) -> bytes:
    depth = rng.choice((100, 3000))
    shape = rng.randrange(3)
    if shape == 0:
        deep = b"[" * depth + b"]" * depth
    elif shape == 1:
        deep = b'{"a":' * depth + b"1" + b"}" * depth
    else:
        deep = b"- " * depth + b"1"
    places = list(TOKEN.finditer(content))
    if not places or rng.random() < 0.3:
        return deep
    place = rng.choice(places)
    return content[: place.start()] + deep + content[place.end() :]


def _aliased(content: bytes, rng: random.Random) -> bytes:
    bombs = (
        BOMB + b"z: *l\n" + content,
        content + b"z: &z [*z]\n",
        b"&z\n" + content + b"\nz: *z\n",
        content + b"<<: &m {a: 1}\n",
        content + b"z: &z {<<: *z}\n",
        BOMB.replace(b"[", b"{<<: [").replace(b"]", b"]}") + content,
    )
    return rng.choice(bombs)


def _whole(content: bytes, rng: random.Random) -> bytes:
    wholes = (
        b"",
        b"\n",
        b"null",
        b"[]",
        b"{}",
        b"1",
        b'"text"',
        b"---\n---\n",
        b"\xef\xbb\xbf",
        b"?",
    )
    return rng.choice(wholes) if rng.random() < 0.5 else content + content


# Slips with values are what people make; they come oftener.
KINDS = (_token,) * 5 + (_misspelt,) * 2 + (_lines,) * 2
KINDS += (_flip, _cut, _inserted, _encoded, _nested, _aliased, _whole)
