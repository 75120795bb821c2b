"""The file that outlives the process."""

import random

import numpy as np
import pytest

from experiments.watch.state import packed, read_state, unpacked, write_state
from jaxsim.files.errors import InputError

WHO = {"cluster": "c1", "job": "j1", "scheduler": "s1"}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "watch.state"


def test_arrays_come_back_bit_for_bit(path):
    arrays = [
        np.array([[1.5, np.nan], [np.inf, -0.0]], np.float32),
        np.array(7, np.int32),
        np.array([True, False]),
        np.zeros((0, 3), np.uint32),
    ]
    write_state(path, WHO, {"arrays": packed(arrays)}, durable=True)
    back = unpacked(read_state(path, WHO)["arrays"])
    assert [(x.dtype, x.shape, x.tobytes()) for x in back] == [
        (x.dtype, x.shape, x.tobytes()) for x in arrays
    ]


def test_no_file_is_no_state(path):
    assert read_state(path, WHO) is None


def test_a_damaged_file_is_refused_in_one_line(path):
    write_state(path, WHO, {"plan": "a | b", "n": [1, 2.5, None]}, durable=False)
    good, rng = path.read_bytes(), random.Random(0)
    for _ in range(300):
        at = rng.randrange(len(good))
        bad = bytearray(good)
        bad[at] ^= 1 << rng.randrange(7)
        for content in (bytes(bad), good[:at]):
            path.write_bytes(content)
            with pytest.raises(InputError) as error:
                read_state(path, WHO)
            assert str(path.name) in str(error.value) and "\n" not in str(error.value)
    path.write_bytes(good)
    assert read_state(path, WHO)["plan"] == "a | b"


@pytest.mark.parametrize("key", WHO)
def test_a_state_of_something_else_is_refused_by_what_differs(path, key):
    write_state(path, WHO, {}, durable=False)
    with pytest.raises(InputError, match=f"is of another {key}"):
        read_state(path, {**WHO, key: "other"})


def test_a_write_that_fails_leaves_the_old_file(path):
    write_state(path, WHO, {"n": 1}, durable=False)
    with pytest.raises(TypeError):
        write_state(path, WHO, {"n": object()}, durable=False)
    assert read_state(path, WHO) == {"n": 1} and len(list(path.parent.iterdir())) == 1
