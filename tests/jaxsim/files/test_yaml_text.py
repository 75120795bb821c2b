"""YAML: which scalars are what, and what is refused before it grows."""

import os
import stat

import pytest
import yaml

from jaxsim.files import yaml_text
from jaxsim.files.errors import InputError
from jaxsim.files.yaml_text import MOST_DEPTH, dump_yaml, load_yaml, parse_yaml, read_yaml

SCALARS = {
    "1.0e12": 1e12,
    "1e12": 1e12,
    "-1E-3": -1e-3,
    "1.5": 1.5,
    ".5": 0.5,
    ".inf": float("inf"),
    "1_000": 1000,
    "0": 0,
    "-7": -7,
    "true": True,
    "null": None,
    "~": None,
    "": None,
    "no": "no",
    "off": "off",
    "017": "017",
    "0x10": "0x10",
    "12:30": "12:30",
    "2021-10-01": "2021-10-01",
    "2021-02-30": "2021-02-30",
    "=": "=",
    "'1'": "1",
}


@pytest.mark.parametrize("text", SCALARS)
def test_scalars_are_those_of_yaml_1_2(text):
    got = load_yaml(f"key: {text}\n")["key"]
    assert got == SCALARS[text] and type(got) is type(SCALARS[text])


@pytest.mark.parametrize("value", ["1e5", "1.0e12", "017", "no", "2021-10-01", "12:30", "null", ""])
def test_text_that_looks_like_something_else_survives_its_file(value):
    assert load_yaml(dump_yaml({"key": value, value or "k": [value]}))["key"] == value


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{b}: &{b} [{','.join(['*' + a] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGED = "a: &a {k: 1}\n" + "".join(
    f"{b}: &{b} {{<<: [{','.join(['*' + a] * 9)}]}}\n"
    for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
REFUSED = {
    "lists 3,000 deep": ("[" * 3000 + "]" * 3000, "nested deeper than"),
    "mappings 3,000 deep": ('{"a":' * 3000 + "1" + "}" * 3000, "nested deeper than"),
    "dashes 3,000 deep": ("- " * 3000 + "1", "nested deeper than"),
    "aliases of aliases": (BOMB, "aliases counted"),
    "merged aliases of aliases": (MERGED, "aliases counted"),
    "a list within itself": ("a: &a [*a]", "holds itself"),
    "a mapping within itself": ("a: &a {<<: *a}", "holds itself"),
    "a key twice": ("a: 1\nb: 2\na: 3\n", "line 3: the key 'a' stands twice"),
    "a key twice, deeper": ("x: {y: {a: 1, a: 1}}", "the key 'a' stands twice"),
    "merged twice": ("a: &a {k: 1}\nb: {<<: *a, <<: *a}", "the key '<<' stands twice"),
    "a list for a key": ("? [a]\n: 1\n", "a key that is no word or number"),
    "an object": ("a: !!python/object:os.system ls", "could not determine a constructor"),
    "a date": ("a: !!timestamp 2021-02-30", "could not determine a constructor"),
    "a word called a number": ("a: !!int many", "not valid YAML"),
    "nothing called a number": ('a: !!int ""', "not valid YAML"),
    "two documents": ("a: 1\n---\nb: 1\n", "not valid YAML"),
    "a number of 5,000 digits": (f"a: {'4' * 5000}", "digits"),
    "a control character": ("a: \x1b[31m", "line 1 holds the control character"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_in_one_line(case):
    text, words = REFUSED[case]
    with pytest.raises(InputError) as error:
        parse_yaml(text, "c.yaml", "a test")
    line = str(error.value)
    assert line.startswith("c.yaml: cannot be read as a test: not valid YAML: ") and words in line
    assert line.isprintable() and len(line.encode()) <= 480


def test_the_slower_loader_says_the_same(monkeypatch):
    """Where PyYAML was built without its C library."""
    plain = type("Plain", (yaml.SafeLoader,), dict(vars(yaml_text._Loader)))
    monkeypatch.setattr(yaml_text, "_Loader", plain)
    for case in REFUSED:
        test_what_is_refused_in_one_line(case)
    for text in SCALARS:
        test_scalars_are_those_of_yaml_1_2(text)


def test_depth_and_size_end_where_they_say(monkeypatch):
    text = "[" * MOST_DEPTH + "]" * MOST_DEPTH
    assert load_yaml(text)
    with pytest.raises(yaml.YAMLError):
        load_yaml(f"[{text}]")
    monkeypatch.setattr(yaml_text, "MOST_NODES", 7)
    assert load_yaml("[1, 2, 3, [4, 5]]") == [1, 2, 3, [4, 5]]
    with pytest.raises(yaml.YAMLError, match="more than 7"):
        load_yaml("[1, 2, 3, [4, 5], 6]")


def test_a_mapping_merged_before_it_is_built_has_no_key_twice():
    """PyYAML writes the merged keys into the mapping that merges."""
    text = "p: &p {a: 1}\nx: {deep: {k: &k {<<: *p, a: 2}}}\ny: {<<: *k, b: 3}\n"
    assert load_yaml(text)["y"] == {"a": 2, "b": 3}


def test_own_keys_win_then_what_is_named_first():
    text = "p: &p {a: 1, b: 1}\nq: &q {b: 2, c: 2}\nx: {<<: [*q, *p], c: 3, d: {<<: *p}}\n"
    assert load_yaml(text)["x"] == {"a": 1, "b": 2, "c": 3, "d": {"a": 1, "b": 1}}
    assert load_yaml(text)["p"] == {"a": 1, "b": 1}
    for wrong in ("a: {<<: 1}", "a: {<<: [1]}"):
        with pytest.raises(yaml.YAMLError, match="mappings for merging"):
            load_yaml(wrong)


def test_what_is_no_file_of_text_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe.yaml")
    assert stat.S_ISFIFO((tmp_path / "pipe.yaml").stat().st_mode)
    (tmp_path / "large.yaml").write_bytes(b"#" * (yaml_text.MOST_BYTES + 1))
    (tmp_path / "latin.yaml").write_bytes("a: 1\nb: Größe\n".encode("latin-1"))
    (tmp_path / "folder").mkdir()
    for path, words in (
        ("/dev/zero", "no regular file"),
        (tmp_path / "pipe.yaml", "no regular file"),
        (tmp_path / "folder", "it is a folder"),
        (tmp_path / "none.yaml", "No such file"),
        (tmp_path / "large.yaml", "larger than 4,194,304 bytes"),
        (tmp_path / "latin.yaml", "line 2 is not UTF-8"),
        (tmp_path / ("n" * 300), "too long"),
        (str(tmp_path / "a\0b"), "null"),
    ):
        with pytest.raises(InputError, match=words) as error:
            read_yaml(path, "a test")
        assert str(error.value).isprintable()


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path):
    (tmp_path / "bom.yaml").write_bytes(b"\xef\xbb\xbfa: 1\r\nb: 2\r\n")
    assert read_yaml(tmp_path / "bom.yaml", "a test") == {"a": 1, "b": 2}
