"""Messages: short, on one line, without control characters, whatever they quote."""

import pytest

from jaxsim.files.errors import InputError
from jaxsim.files.shown import listed, meant, one_line, shown

NASTY = [
    "A" * 100_000,
    "\x1b[2J\x07",
    "a\nb\r\nc",
    "\u2028",
    "\ud800",
    "\u202e",
    "ü" * 5000,
    10**4999,
]
NASTY += [[["x" * 999] * 99] * 99, {"k" * 999: "v" * 999}, b"\0" * 999]


@pytest.mark.parametrize("value", NASTY, ids=range(len(NASTY)))
def test_whatever_a_message_quotes_it_is_one_short_line(value):
    line = str(InputError(f"{value if isinstance(value, str) else shown(value)}: bad"))
    assert line.isprintable() and len(line.encode()) <= 480 and line.endswith(": bad")
    assert shown(value).isprintable() and len(shown(value)) <= 150


def test_a_short_message_is_left_as_it_is():
    text = "c.yaml: gpus: expected an integer >= 1, got 'viele Größen'"
    assert one_line(text) == text == str(InputError(text))


def test_of_a_long_list_the_first_the_last_and_the_number_are_named():
    assert listed("abc") == "a, b, c"
    names = [f"parameter_{i}" for i in range(100)]
    text = listed(names)
    assert text.startswith("parameter_0, parameter_1, ") and len(text) < 300
    assert text.endswith(", ..., parameter_99 (100 in all)")


def test_a_name_is_guessed_only_where_one_is_near():
    assert meant("histeresis", ["random", "hysteresis"]) == " (did you mean hysteresis?)"
    assert meant("x", ["random", "hysteresis"]) == ""
