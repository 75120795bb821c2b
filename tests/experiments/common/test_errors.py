"""How a command ends: a status, and at most one line on standard error."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from analysis.records import RecordError
from experiments.common.errors import CheckError, one_line, run_command
from jaxsim.files.errors import InputError

ROOT = Path(__file__).parents[3]


def ending(error):
    def work():
        raise error

    return run_command(lambda: work)


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (InputError("seeds: no"), 2, "error: seeds: no"),
        (RecordError("run: no"), 2, "error: run: no"),
        (CheckError("time runs backwards"), 2, "error: time runs backwards"),
        (OSError(errno.ENOSPC, "No space left on device"), 2, "error: No space left on device"),
        (OSError(errno.EACCES, "Permission denied", "a.csv"), 2, "error: a.csv: Permission denied"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_a_fault_is_one_line_and_a_status(capsys, error, status, said):
    assert ending(error) == status
    assert capsys.readouterr() == ("", said + "\n")


def test_a_mistake_of_the_code_is_not_taken_for_bad_input():
    with pytest.raises(ValueError, match="shapes"):
        ending(ValueError("shapes do not match"))


def test_the_status_of_the_work_is_the_command_s():
    assert run_command(lambda: lambda: 5) == 5
    assert run_command(lambda: lambda: Path("a run folder")) == 0


def test_a_refusal_is_printable_and_short_and_keeps_both_ends(capsys):
    text = "model: \x1b[31m\u202eunknown " + "é" * 100_000 + "\nknown: llama-7b"
    assert ending(InputError(text)) == 2
    err = capsys.readouterr().err
    assert len(err.encode()) <= 500 and err.count("\n") == 1
    assert err.startswith("error: model: \\x1b[31m\\u202eunknown éé") and err.endswith(
        "é known: llama-7b\n"
    )
    assert one_line("a\tb\r\n c") == "a b c"
    assert one_line("x" * 499) == "x" * 499 and len(one_line("x" * 500)) <= 499


IMPORTING = """
print("importing", flush=True)
import time
try:
    time.sleep(60)
except BaseException:  # as libraries do
    pass
"""


def test_ctrl_c_while_the_modules_load_ends_with_one_line_even_where_an_import_swallows_it(
    tmp_path,
):
    (tmp_path / "jax.py").write_text(IMPORTING)
    command = [sys.executable, "-m", "experiments", "evaluate", "--schedulers", "random"]
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert process.stdout.readline() == "importing\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, "", "interrupted\n")
    assert [p.name for p in tmp_path.iterdir() if p.name != "__pycache__"] == ["jax.py"]


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--help"], 141, "stopped: nobody reads the output\n"),
        (["evaluate", "--help"], 0, ""),  # argparse itself lets it pass
    ],
)
def test_a_reader_that_goes_away_leaves_no_traceback(arguments, status, said):
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "experiments", *arguments]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    os.close(write)
    assert (done.returncode, done.stderr) == (status, said)
