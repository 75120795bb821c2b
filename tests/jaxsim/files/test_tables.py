"""Files of text and tables: packed, torn, too wide; what a cell may hold."""

import bz2
import gzip
import io
import lzma
import zipfile

import numpy as np
import pytest

from jaxsim.files import reading
from jaxsim.files.errors import InputError
from jaxsim.files.reading import read_text
from jaxsim.files.tables import numbers, read_header, read_text_table


def packed(suffix, content=b"a,b\n1,x\n2,y\n", names=("t.csv",)):
    if suffix != ".zip":
        return {".gz": gzip, ".bz2": bz2, ".xz": lzma}[suffix].compress(content)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            archive.writestr(name, content)
    return file.getvalue()


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zip"])
def test_a_packed_table_is_read_and_a_torn_one_is_named(tmp_path, suffix, monkeypatch):
    path = tmp_path / f"t.csv{suffix}"
    path.write_bytes(packed(suffix))
    assert read_text_table(path).to_dict("list") == {"a": ["1", "2"], "b": ["x", "y"]}
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], whole[:-5], b"a,b\n1,2\n"):
        path.write_bytes(content)
        with pytest.raises(InputError, match=f"{suffix[1:]} data torn or damaged"):
            read_text_table(path)
    path.write_bytes(packed(suffix, b"a\n" * 10_000))
    monkeypatch.setattr(reading, "MOST_BYTES", 10_000)
    with pytest.raises(InputError, match="larger than 10,000 bytes"):
        read_text(path, "a table", 10_000)


def test_an_archive_holds_one_file(tmp_path):
    (tmp_path / "t.zip").write_bytes(packed(".zip", names=("a.csv", "b.csv")))
    with pytest.raises(InputError, match="an archive of 2 files"):
        read_text_table(tmp_path / "t.zip")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b,a\n1,2,3\n", "line 1: the column 'a' stands twice"),
        ("a,b\n1,2,3\n", r"line 2: more cells \(3\) than columns \(2\)"),
        ("a,b\n1,2\n1,2,3\n", r"line 3: more cells \(3\) than columns \(2\)"),
        ("a,b\n", "holds no row below its header"),
        ("", "cannot be read as a CSV table"),
        ("a,b\n1,\x1b[2J\n", "line 2 holds the control character"),
        (f"a,b\n1,{'x' * 10_001}\n", "line 2: b: a cell of more than 10000 characters"),
    ],
)
def test_what_is_no_table(tmp_path, text, words):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(InputError, match=words):
        read_text_table(tmp_path / "t.csv")


def test_headers_that_are_allowed(tmp_path):
    (tmp_path / "t.csv").write_text("\ufeffa,b\n1,x\n2,y\n", encoding="utf-8")
    headers = [("b", "a"), ("a", "b")]
    assert len(read_text_table(tmp_path / "t.csv", columns=headers)) == 2
    assert read_header(tmp_path / "t.csv") == ["a", "b"]
    with pytest.raises(InputError, match="expected the columns b,a; it has a, b"):
        read_text_table(tmp_path / "t.csv", columns=headers[:1])
    (tmp_path / "empty.csv").write_text("a,b\n")
    assert read_text_table(tmp_path / "empty.csv", row=None).empty


def test_numbers_of_a_column(tmp_path):
    (tmp_path / "t.csv").write_text("a\n1\n2.5e3\n0\n")
    column = read_text_table(tmp_path / "t.csv")["a"]
    np.testing.assert_array_equal(numbers(column, "t.csv"), [1, 2500, 0])
    with pytest.raises(InputError, match=r"line 4: a: expected a number > 0 and at most 1e\+12"):
        numbers(column, "t.csv", above=0.0)
    for bad in ("nan", "inf", "-1", "1e308", "many", "", "1_000", "0x10"):
        (tmp_path / "t.csv").write_text(f"a,b\n1,1\n{bad},1\n")
        with pytest.raises(InputError, match=r"line 3: a: expected a number >= 0"):
            numbers(read_text_table(tmp_path / "t.csv")["a"], "t.csv")
