"""The deliberate errors of `make mutants`: what they are, that they stay the same, who judges them."""

import ast
import itertools
import os
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest
from mutants import __main__ as command
from mutants import nursery
from mutants.operators import all_changes, mutants_in, mutants_of
from mutants.rooms import ROOMS, all_tests, files_of, near_tests
from mutants.sample import draw

ROOT = Path(__file__).parents[1]
DOUBLE = "def double(a):\n    {}\n"


@pytest.mark.parametrize(
    ("code", "errors"),
    [
        ("y = a + b", {"y = a - b", "y = a"}),
        ("y = a * b", {"y = a / b", "y = a"}),
        ("y = (a + b) * c", {"y = (a - b) * c", "y = (a) * c", "y = (a + b) / c", "y = (a + b)"}),
        ("y = a < b", {"y = a <= b"}),
        ("y = a <= b < c", {"y = a < b < c", "y = a <= b <= c"}),
        ("y = a and b or c", {"y = a or b or c", "y = a and b and c"}),
        ("y = -a", {"y = (a)"}),
        ("y = x[1:]", {"y = x[2:]"}),
        ("y = 50.0", {"y = 51.0"}),
        ("y = 0.0", {"y = 1.0"}),
        ("y = True", {"y = False"}),
        ("y = max(a, b)", {"y = min(a, b)"}),
        ("y = np.sum(a)", {"y = np.mean(a)"}),
        ("y = np.where(c, a, b)", {"y = np.where(c, b, a)"}),
        ("y = np.clip(a, lo, hi)", {"y = (a)"}),
        ("y = a if c else b", {"y = b if c else a"}),
        ("if a:\n    b()", {"if not (a):\n    b()"}),
        ("y += a", {"y -= a", "pass"}),
        ("y = f(y)", {"pass"}),
        # Neither words, annotations, imports nor the text of errors compute anything.
        ('"""One and 1."""\nimport a\nx: int | None', set()),
        ('def f(a: "1 + 1") -> 2:\n    raise ValueError(f"{a + 1}")', set()),
        ('y = "a" + b', set()),
        ("y = 1e-9", set()),
    ],
)
def test_the_errors_that_can_be_made(code, errors):
    found = set(all_changes(code))
    assert found == errors
    for changed in found:
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(code))


def test_an_edit_elsewhere_changes_no_error_s_name():
    code = "def f(a):\n    b = a * 2\n    return b + 1\n"
    edited = "import os\n\n\ndef g(a):\n    return a + 7\n\n\n" + code.replace("a * 2", "a * 3")
    names = {m.id: (m.before, m.after) for m in mutants_of("room", "f.py", code.encode())}
    again = {m.id: (m.before, m.after) for m in mutants_of("room", "g.py", edited.encode())}
    kept = [names[i] for i in names if i in again and names[i] == again[i]]
    assert sorted(kept) == [("+", "-"), ("1", "2"), ("b + 1", "b")]
    assert len(names) == len(set(names)) and ("2", "3") not in [again.get(i) for i in names]


def test_the_sample_is_fixed_and_large_enough():
    sample = draw(ROOT)
    assert len(sample) >= 120
    assert len({m.id for m in sample}) == len(sample) == len({(m.file, m.line) for m in sample})
    assert {m.room for m in sample} == set(ROOMS)
    assert draw(ROOT, only=["gradients"]) == [m for m in sample if m.room == "gradients"]
    assert draw(ROOT, seed=1, only=["load"]) != [m for m in sample if m.room == "load"]
    for mutant in sample:
        assert mutant.line == int(command.line_of(mutant).split(":")[1])


def test_every_room_has_files_and_tests():
    for name, files in files_of(ROOT).items():
        assert files, name
        for file in files:
            assert near_tests(name, file)
    missing = [test for test in all_tests() if not (ROOT / test.partition("::")[0]).exists()]
    assert not missing, missing


def test_reasons_are_given_for_errors_that_exist():
    rooms = files_of(ROOT).items()
    every = {m.id for name, files in rooms for m in mutants_in(ROOT, name, files)}
    unknown = set(command.read_reasons()) - every
    assert not unknown, f"no such errors any more: {sorted(unknown)}"
    assert all(len(reason.split()) > 3 for reason in command.read_reasons().values())


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory):
    """A folder with a module and its test, and the process that judges it."""
    tmp_path = tmp_path_factory.mktemp("sandbox")
    test = "from thing import double\n\n\ndef test_it():\n    assert double(4) == 8\n"
    (tmp_path / "test_thing.py").write_text(test)
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    code = "import nursery; nursery.LIBRARIES = ('pytest', 'hypothesis'); nursery.main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(nursery.__file__).parent,
    )
    clock = itertools.count(int(time.time()), 2)

    def write(name: str, text: str) -> None:
        # As a worker does: compiled modules are told apart by the second they were written in.
        (tmp_path / name).write_text(text)
        os.utime(tmp_path / name, (seconds := next(clock), seconds))

    yield tmp_path, process, write
    process.stdin.close()
    process.wait(30)


@pytest.mark.parametrize(
    ("body", "outcome", "test"),
    [
        ("return 2 * a", "survived", ""),
        ("return 3 * a", "killed", "test_thing.py::test_it"),
        ("return 2 *", "killed", "test_thing.py"),
        ("import time; time.sleep(60)", "timeout", ""),
        (f"import os; os.kill(os.getpid(), {signal.SIGSEGV:d})", "killed", ""),
    ],
)
def test_an_error_is_killed_by_a_failure_a_crash_or_no_end(sandbox, body, outcome, test):
    folder, process, write = sandbox
    write("thing.py", DOUBLE.format(body))
    worker = types.SimpleNamespace(tree=folder, log=folder / "log", nursery=process)
    limit_s = 5.0 if outcome == "timeout" else 120.0
    answer = command._Worker.ask(worker, ("test_thing.py",), command.DAY, limit_s)
    assert (answer["outcome"], answer["test"]) == (outcome, test)


@pytest.mark.parametrize(
    ("marks", "result", "outcome"),
    [(command.DAY, 5, "untested"), (command.NIGHT, 4, "survived"), (command.NIGHT, 5, "killed")],
)
def test_tests_for_the_night_are_run_apart(sandbox, marks, result, outcome):
    folder, process, write = sandbox
    write("thing.py", DOUBLE.format("return 2 * a"))
    lines = ["import pytest", "from thing import double", "pytestmark = pytest.mark.nightly"]
    lines += ["def test_it():", f"    assert double(2) == {result}"]
    write("test_night.py", "\n".join(lines))
    worker = types.SimpleNamespace(tree=folder, log=folder / "log", nursery=process)
    answer = command._Worker.ask(worker, ("test_night.py",), marks, 120.0)
    assert answer["outcome"] == outcome, (folder / "log").read_text()


def test_a_worker_s_copy_is_itself_again_after_an_error(tmp_path):
    source = "y = 1 + 2\n"
    (tmp_path / "m.py").write_text(source)
    [mutant, *_] = mutants_of("", "m.py", source.encode())
    worker = types.SimpleNamespace(clock=1_000_000, tree=tmp_path)
    worker.write = types.MethodType(command._Worker.write, worker)
    before = (tmp_path / "m.py").stat().st_mtime
    with command._Worker.with_error(worker, mutant):
        assert (tmp_path / "m.py").read_text() != source
        during = (tmp_path / "m.py").stat().st_mtime
    assert (tmp_path / "m.py").read_text() == source
    # Python would take an old compiled module for a file of the same second and length.
    assert len({before, during, (tmp_path / "m.py").stat().st_mtime}) == 3
