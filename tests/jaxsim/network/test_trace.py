"""Network trace files: factors by hand, refusals."""

import dataclasses

import numpy as np
import pytest
from helpers.toy_world import cluster_spec

from jaxsim.files.errors import InputError
from jaxsim.network.trace import read_network_trace

SPEC = cluster_spec(3, gbps=4.0)


def write(path, *rows, header="t_s,src,dst,factor"):
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def test_factors_are_interval_means_held_until_the_next_sample(tmp_path):
    samples = ["0,a,b,0.5", "59,a,b,1.5", "70,a,b,0.25", "200,a,b,2", "130,c,a,3"]
    path = write(tmp_path / "t.csv", *samples)
    got = read_network_trace(path, SPEC, 60.0)
    np.testing.assert_allclose(got[:, 0, 1], [1.0, 0.25, 0.25, 2.0])
    np.testing.assert_allclose(got[:, 2, 0], [1.0, 1.0, 3.0, 3.0])
    others = np.ones((3, 3), bool)
    others[0, 1] = others[2, 0] = False
    assert np.all(got[:, others] == 1) and got.dtype == np.float32


def test_bandwidth_is_taken_relative_to_the_cluster_file(tmp_path):
    base = SPEC.bandwidth_gbps[1, 2]
    path = write(tmp_path / "t.csv", f"0,b,c,{base / 4}", header="t_s,src,dst,bandwidth_gbps")
    np.testing.assert_allclose(read_network_trace(path, SPEC, 60.0)[0, 1, 2], 0.25)


def test_a_domain_may_be_called_anything(tmp_path):
    spec = dataclasses.replace(SPEC, domains=("NA", "1", "null"))
    path = write(tmp_path / "t.csv", "0,NA,1,0.5", "0,1,null,2", "61,null,NA,3")
    got = read_network_trace(path, spec, 60.0)
    assert (got[0, 0, 1], got[0, 1, 2], got[1, 2, 0]) == (0.5, 2, 3)


def test_the_longest_trace_allowed_is_read(tmp_path):
    path = write(tmp_path / "t.csv", "0,a,b,0.5", "99999,a,b,2")
    assert read_network_trace(path, SPEC, 1.0).shape[0] == 100_000
    path = write(tmp_path / "u.csv", "100001,a,b,2", "5,a,b,1")
    with pytest.raises(InputError, match=r"line 2: t_s: expected seconds from 0, .* got 100001$"):
        read_network_trace(path, SPEC, 1.0)


def refuse(path, words):
    with pytest.raises(InputError) as error:
        read_network_trace(path, SPEC, 60.0)
    text = str(error.value)
    assert "\n" not in text
    for word in [str(path), *words]:
        assert word in text, f"{word!r} is not in {text!r}"


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("0,a,mars,1", ["line 3", "dst 'mars'", "known: a, b, c"]),
        ("0,mars,a,1", ["line 3", "src 'mars'", "known: a, b, c"]),
        ("0,a,b,nan", ["line 3", "factor: expected a number > 0", "nan"]),
        ("0,a,b,", ["line 3", "factor: expected a number > 0"]),
        ("0,a,b,fast", ["line 3", "factor: expected a number > 0", "fast"]),
        ("nan,a,b,1", ["line 3", "t_s: expected a number >= 0"]),
        ("-5,a,b,1", ["line 3", "t_s: expected a number >= 0", "-5"]),
        ("0,a,b,-1", ["line 3", "factor: expected a number > 0", "-1"]),
        ("0,a,b,inf", ["line 3", "factor: expected a number > 0", "inf"]),
        ("0,a,a,1", ["line 3", "src", "dst", "'a'"]),
        ("1764806400,a,b,1", ["line 3", "t_s", "seconds from 0", "1764806400", "100,000"]),
        ("0,a,b,1,9", ["cannot be read", "line 3"]),
        ("0,a,b", ["line 3", "factor: expected a number > 0"]),
    ],
)
def test_bad_trace_row_is_one_line_naming_file_and_key(tmp_path, row, words):
    refuse(write(tmp_path / "t.csv", "0,a,b,1", row), words)


def test_bad_trace_files(tmp_path):
    refuse(tmp_path / "missing.csv", ["cannot be read"])
    refuse(write(tmp_path / "header.csv", header="time,src,dst,factor"), ["t_s,src,dst"])
    refuse(write(tmp_path / "empty.csv"), ["no sample"])
    nothing = tmp_path / "nothing.csv"
    nothing.write_text("")
    refuse(nothing, ["cannot be read"])
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"\xff\xfe\x00\x81\x00")
    refuse(binary, [])
    refuse(
        write(tmp_path / "loop.csv", "0,b,b,3", header="t_s,src,dst,bandwidth_gbps"), ["src", "dst"]
    )
