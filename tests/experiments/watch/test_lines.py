"""Measurements from text."""

import json
import random

import pytest

from experiments.watch.lines import LONGEST, LineReader, Unreadable


def read(*chunks):
    reader = LineReader()
    found = [x for chunk in chunks for x in reader.feed(chunk)]
    return found + reader.feed(b"", ended=True)


MIXED = b"""{"src": "a", "dst": "b", "rtt_ms": 3}

t_s,src,dst,bandwidth_gbps,rtt_ms\r
0,a,b,2.5,\r
60,b,a,,31
domain, gpus_available
a, 4
{"domain": "a", "gpus_available": 5}"""
SAID = [
    {"src": "a", "dst": "b", "rtt_ms": 3},
    {"time": "0", "src": "a", "dst": "b", "bandwidth_gbps": 2.5},
    {"time": "60", "src": "b", "dst": "a", "rtt_ms": 31.0},
    {"domain": "a", "gpus_available": 4.0},
    {"domain": "a", "gpus_available": 5},
]


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_json_and_csv_mix_wherever_the_stream_is_cut(size):
    chunks = [MIXED[i : i + size] for i in range(0, len(MIXED), size)]
    assert read(*chunks) == SAID


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"{nonsense\n", "not JSON"),
        (b"1,2,3\n", "under a header"),
        (b"src,dst,rtt_ms\na,b\n", "2 cells under 3 columns"),
        (b"src,dst,rtt_ms\na,b,fast\n", "rtt_ms: expected a number"),
        (b"src,dst,speed\na,b,3\n", "under a header"),
        (b"\xff\xfe\x00\n", "under a header"),
        (b"[" * 50_000 + b"\n", "not JSON"),
        (b"1,2\r3,4\n", "not CSV"),
        (b"src,dst,rtt_ms\na,b\r,3\n", "not CSV"),
    ],
)
def test_a_line_that_cannot_be_read_says_why_and_the_next_one_is_read(text, why):
    *bad, good = read(text + b'{"rtt_ms": 1}\n')
    assert all(isinstance(x, Unreadable) and "\n" not in str(x) for x in bad)
    assert why in str(bad[0]) and good == {"rtt_ms": 1}


def test_random_bytes_give_measurements_or_faults_and_never_an_end():
    rng = random.Random(7)
    pieces = [
        b"\n",
        b"\r",
        b",",
        b'"',
        b"{",
        b"}",
        b"\x00",
        b"\xff",
        b"src,dst,rtt_ms\n",
        b"a,b,3\n",
    ]
    for _ in range(2000):
        count = rng.randint(1, 30)
        data = b"".join(rng.choice([*pieces, rng.randbytes(3)]) for _ in range(count))
        *found, last = read(data, b'\n{"rtt_ms": 1}')
        assert last == {"rtt_ms": 1}
        for one in found:
            assert "\n" not in str(one) if isinstance(one, Unreadable) else one is not None


def test_a_line_without_end_takes_no_memory_and_is_one_fault():
    reader, found = LineReader(), []
    for _ in range(40):
        found += reader.feed(b"x" * LONGEST)
        assert len(reader._rest) <= LONGEST
    found += reader.feed(b"\n" + json.dumps(SAID[0]).encode() + b"\n")
    bad, good = found
    assert isinstance(bad, Unreadable) and "longer than" in str(bad) and good == SAID[0]
