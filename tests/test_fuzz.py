"""Every reader of files, fed with damaged ones: it refuses in one line, or what it read is sound.

Seeded, so that a failure comes back; FUZZ_INPUTS asks for more than the usual number of inputs and
FUZZ_SEED for others.
"""

import os
import random
import signal
import time
import traceback
import zlib
from collections import Counter

import pytest
from helpers.mutations import mutated
from helpers.readers import all_readers, check_finite

from experiments.watch.lines import LineReader, Unreadable

INPUTS = int(os.environ.get("FUZZ_INPUTS", "2200"))
SEED = int(os.environ.get("FUZZ_SEED", "0"))
LONGEST_S = 5.0  # for one input
LONGEST_LINE = 500  # bytes
NAMES = (
    "cluster", "model", "calibration", "fitted links", "suites", "train config", "evaluate config",
    "ddp config", "trace", "load", "jobs", "cluster jobs", "cluster jobs, packed", "measured runs",
    "syncs", "throughput grid", "latency grid", "cost grid", "measurements", "measurements, packed",
    "layer profile", "operator profile", "all-reduce profile", "nccl profile", "checkpoint", "run",
    "run's table",
)  # fmt: skip


STREAM = b"""{"src": "a", "dst": "b", "rtt_ms": 3}
t_s,src,dst,bandwidth_gbps,rtt_ms\r
0,a,b,2.5,
60,b,a,,31
{"domain": "a", "gpus_available": 5}
"""


class Hangs(BaseException):
    """No Exception: a reader must not catch it."""


def alarm(*_):
    raise Hangs


@pytest.fixture(scope="module")
def readers(tmp_path_factory):
    found = all_readers(tmp_path_factory.mktemp("good"))
    assert tuple(found) == NAMES
    return found


def outcome(reader, path):
    """ "accepted", "refused", or what is wrong."""
    signal.setitimer(signal.ITIMER_REAL, LONGEST_S)
    try:
        check_finite(reader.read(path))
    except reader.refuses as error:
        line = str(error)
        if "\n" in line or not line.isprintable():
            return f"control characters: {line[:80]!r}"
        if len(line.encode(errors="replace")) > LONGEST_LINE:
            return f"line of {len(line)}: {line[:80]!r}"
        if path.name not in line and path.parent.name not in line:
            return f"does not name the file: {line[:80]!r}"
        return "refused"
    except AssertionError as error:
        return f"nonsense accepted: {error!s:.150}"
    except Hangs:
        return "hang"
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"traceback: {type(error).__name__} {error!s:.80} ({where.filename}:{where.lineno})"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return "accepted"


@pytest.mark.parametrize("name", NAMES)
def test_damaged_input_is_refused_in_one_line_or_sound(tmp_path, monkeypatch, readers, name):
    monkeypatch.chdir(tmp_path)
    reader = readers[name]
    shares = {n: r.share for n, r in readers.items()}
    count = round(INPUTS * reader.share / sum(shares.values()))
    path = tmp_path / reader.file
    path.write_bytes(reader.good)
    signal.signal(signal.SIGALRM, alarm)
    assert outcome(reader, path) == "accepted", "the good file"
    rng = random.Random(zlib.crc32(name.encode()) + SEED)
    seen, wrong, slowest = Counter(), {}, 0.0
    for i in range(count):
        content = mutated(reader.good, rng)
        path.write_bytes(content)
        start = time.perf_counter()
        what = outcome(reader, path)
        slowest = max(slowest, time.perf_counter() - start)
        seen[what.partition(":")[0]] += 1
        if what not in ("accepted", "refused"):
            wrong.setdefault(what, (i, content[:300]))
    print(f"{name}: {dict(seen)}, slowest {slowest:.2f} s")
    assert not wrong, "\n".join(f"{what}\n    input {i}: {c!r}" for what, (i, c) in wrong.items())
    assert seen["refused"] > count / 4, seen


def test_a_damaged_stream_of_measurements_gives_faults_and_the_next_line_is_read():
    rng = random.Random(SEED)
    for i in range(500):
        reader, content = LineReader(), mutated(STREAM, rng)
        *found, last = reader.feed(content + b'\n{"rtt_ms": 1}\n')
        assert last == {"rtt_ms": 1}, (i, content[:300])
        for one in found:
            line = str(one) if isinstance(one, Unreadable) else ""
            assert "\n" not in line and line.isprintable(), (i, content[:300])
            assert len(line.encode(errors="replace")) <= LONGEST_LINE, (i, content[:300])
