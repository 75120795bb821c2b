"""One way for all entry points to end."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import NoReturn

MOST_BYTES = 500  # of a refusal, its end of line included
INTERRUPTED, CLOSED_PIPE = 130, 141  # as a shell counts them: 128 and the number of the signal


class CheckError(RuntimeError):
    """Results that cannot be: one line that says what the simulator must never do, and did."""


def run_command(prepare: Callable[[], Callable[[], object]]) -> int:
    """Run a command and return its exit status.

    `prepare` reads the command line, loads the modules that the work needs and returns the work.
    Until then Ctrl-C ends the process at once: nothing was written yet, and an exception raised
    inside an import can get lost there.

    Returns 0 when the work was done, or the status that the work returns; 2 for bad input, for
    results that fail a check and where the operating system refuses (a full disk); 130 when
    interrupted; 141 when nobody reads the output any more. Each of these is one line on standard
    error.
    """
    try:
        try:
            with _leaving_on_interrupt():
                work = prepare()
            status = work()
        finally:
            sys.stdout.flush()
    except ValueError as error:
        if not _is_refusal(error):
            raise
        return _end(f"error: {error}", 2)
    except CheckError as error:
        return _end(f"error: {error}", 2)
    except KeyboardInterrupt:
        return _end("interrupted", INTERRUPTED)
    except BrokenPipeError:
        _drop_output()
        return _end("stopped: nobody reads the output", CLOSED_PIPE)
    except OSError as error:
        _drop_output()
        where = f"{error.filename}: " if error.filename else ""
        return _end(f"error: {where}{error.strerror or error}", 2)
    return status if isinstance(status, int) else 0


def _is_refusal(error: ValueError) -> bool:
    """Is it about the input, not about the code?"""
    # Loaded only here: until this module is there, Ctrl-C would be a traceback.
    from analysis.records import RecordError
    from jaxsim.files import InputError

    return isinstance(error, InputError | RecordError)


def one_line(text: str, most: int = MOST_BYTES - 1) -> str:
    """`text` as one printable line of at most `most` bytes; what is too long loses its middle."""
    line = " ".join(text.split())
    line = "".join(c if c.isprintable() else "?" for c in line)
    whole = line.encode()
    if len(whole) <= most:
        return line
    tail = most // 4
    head = most - tail - len(" ... ")
    parts = (whole[:head], whole[-tail:])
    return " ... ".join(part.decode(errors="ignore") for part in parts)


def _end(line: str, status: int) -> int:
    with contextlib.suppress(OSError):  # nobody may read that either
        print(one_line(line), file=sys.stderr)
    return status


def _drop_output() -> None:
    """Send what is still to be written to standard output nowhere: Python would try once more at the
    end, and complain."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    with contextlib.suppress(OSError, ValueError):  # ValueError: a stream without a file
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


@contextlib.contextmanager
def _leaving_on_interrupt() -> Iterator[None]:
    """Within this block Ctrl-C ends the process, with one line and the exit status of an interrupt."""
    # Only the main thread may set handlers, and only there does Ctrl-C arrive.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, _leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _leave(*_) -> NoReturn:
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)
