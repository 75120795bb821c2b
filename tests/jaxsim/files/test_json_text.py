"""JSON: what is refused beside what is no JSON."""

import pytest

from jaxsim.files.errors import InputError
from jaxsim.files.json_text import parse_json, read_json


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"a": 1, "b": 2, "a": 1}', "the key 'a' stands twice"),
        ('{"x": {"a": 1, "a": 1}}', "the key 'a' stands twice"),
        ("[1e400]", "no finite number"),
        ("[NaN]", "no finite number"),
        ("[-Infinity]", "no finite number"),
        ("[" * 100_000, "nested too deep"),
        ("[" + "9" * 5000 + "]", "digits"),
        ('["\\ud800"]', "surrogates"),
        ("{", "not valid JSON"),
        ("", "not valid JSON"),
    ],
)
def test_what_is_refused_in_one_line(text, words):
    with pytest.raises(InputError) as error:
        parse_json(text, "p.json", "a profile")
    line = str(error.value)
    assert (
        line.startswith("p.json: cannot be read as a profile: not valid JSON: ") and words in line
    )
    assert line.isprintable() and len(line.encode()) <= 480


def test_a_good_value_is_read(tmp_path):
    (tmp_path / "p.json").write_bytes(b'\xef\xbb\xbf{"a": [1, 2.5, null, "\\u00e9"]}')
    assert read_json(tmp_path / "p.json", "a profile") == {"a": [1, 2.5, None, "é"]}
