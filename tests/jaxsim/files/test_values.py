"""The one validator: what passes as itself, and what the line says of the rest."""

import math

import pytest

from jaxsim.files import values
from jaxsim.files.errors import InputError


def refused(check, value, *limits):
    with pytest.raises(InputError) as error:
        check(value, "f.yaml: key", *limits)
    line = str(error.value)
    assert line.startswith("f.yaml: key") and line.isprintable() and len(line.encode()) <= 480
    return line


@pytest.mark.parametrize("value", [0, 0.0, 7, 1e12, 10**12, 2.5])
def test_numbers_pass_as_floats(value):
    got = values.number(value, "x")
    assert got == value and type(got) is float


@pytest.mark.parametrize(
    "value",
    [
        -1,
        -1e-320,
        1e13,
        10**400,
        -(10**400),
        10**5000,
        math.nan,
        math.inf,
        True,
        None,
        "1",
        [1],
        {},
    ],
    ids=range(13),  # Python does not print the largest
)
def test_what_is_no_number_in_range_is_refused(value):
    assert "expected a number >= 0 and at most 1e+12, got " in refused(values.number, value)


@pytest.mark.parametrize("value", [0, 2**24 + 1, 10**400, 1.0, True, None, "1", math.nan])
def test_what_is_no_count_is_refused(value):
    assert "expected an integer >= 1 and at most 16777216" in refused(values.count, value)


@pytest.mark.parametrize("text", ["16", " 16 ", "16.0", "1.6e1", "+16"])
def test_a_cell_holds_a_count_however_it_is_written(text):
    assert values.cell_count(text, "x") == 16 and values.cell_number(text, "x") == 16.0


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        " ",
        "many",
        "nan",
        "inf",
        "1e400",
        "-1",
        "0x10",
        "1_000",
        "1,5",
        "٣",
        "9" * 5000,
    ],
)
def test_a_cell_that_is_no_number_is_shown_as_it_stands(text):
    for check in (values.cell_number, values.cell_count):
        got = refused(check, text).partition(", got ")[2]
        assert got == repr(text) or (len(text) > 400 and got.startswith("'9999") and "..." in got)


def test_half_a_gpu_is_no_count():
    assert "'16.5'" in refused(values.cell_count, "16.5")


@pytest.mark.parametrize(
    "value", ["", "a\nb", "a\x1b[31m", "n" * 201, None, True, 1.5, [], "\ud800"]
)
def test_what_is_no_name_is_refused(value):
    assert "expected text of 1 to 200 characters" in refused(values.name, value)


def test_an_integer_stands_for_its_digits():
    assert values.name(1, "x") == "1" and values.name("NA", "x") == "NA"


def test_keys_that_are_missing_unknown_or_misspelt_are_named():
    keys = ("parameters",), ("fitted_on", "correlation")
    assert "missing key 'parameters'" in refused(values.mapping, {}, *keys)
    line = refused(values.mapping, {"parameters": 1, "corelation": 2}, *keys)
    assert "unknown key 'corelation' (did you mean correlation?); allowed: parameters, " in line
    assert "expected a mapping with parameters" in refused(values.mapping, [1], *keys)
    assert "unknown key 1;" in refused(values.mapping, {"parameters": 1, 1: 2}, *keys)


def test_a_choice_need_not_be_hashable():
    for value in (["heavy"], {"heavy": 1}, None, 1):
        assert "expected one of heavy, outage" in refused(values.choice, value, ("heavy", "outage"))
    line = refused(values.choice, "outtage", ("heavy", "outage"))
    assert line.endswith("got 'outtage' (did you mean outage?)")
