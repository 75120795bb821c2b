"""A room as a command: options, run folder, result, and one line for what goes wrong."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.records import RecordError, RunWriter, to_jsonable, write_json
from ddp_bench.errors import ConfigError, RankLost
from ddp_bench.options import Parser, add_options

LONGEST_LINE = 480  # characters of a refusal


@dataclass(frozen=True)
class Room:
    """One measuring command.

    Attributes:
        name: of the room, and the kind of its run folder.
        text: what it is for, of --help.
        settings: dataclass of its options; the fields of `quick` are those of a short run.
        quick: field -> value that --quick gives it.
        work: "module:function" that does the work. It takes the settings, the run's writer and a
            function that says a line to the user, and returns the result. Its module is loaded
            once the command line has been understood.
    """

    name: str
    text: str
    settings: type
    quick: dict[str, Any]
    work: str


def room_parser(room: Room) -> Parser:
    """The options of a room."""
    parser = Parser(prog=f"python -m ddp_bench.{room.name}", description=room.text)
    short = ", ".join(f"{name} {value}" for name, value in room.quick.items())
    parser.add_argument("--quick", action="store_true", help=f"a run of at most 2 minutes: {short}")
    parser.add_argument("--json", metavar="FILE", help="write the result as JSON; - is stdout")
    parser.add_argument(
        "--out", metavar="DIR", help="run folder (default: outputs/<room>-<date>-<time>-<hex>)"
    )
    add_options(parser, room.settings)
    return parser


def run_room(room: Room, argv: list[str] | None = None) -> int:
    """Read the command line, do the work, write the result; the exit status.

    Returns 0 when the work was done, 1 when a rank failed, 2 for bad input and where the
    operating system refuses (a full disk), 130 when interrupted; one line on standard error each.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # ranks share the machine's cores
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # its profiler would report every start
    try:
        settings, json_file, folder = _read(room, argv)
        work = _load(room.work)
        _work(room, work, settings, json_file, folder)
    except (ConfigError, RecordError) as error:
        return _end(str(error), 2)
    except RankLost as error:
        return _end(str(error), 1)
    except KeyboardInterrupt:
        return _end("interrupted", 130)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _end(f"{where}{error.strerror or error}", 2)
    return 0


def _read(room: Room, argv: list[str] | None) -> tuple[Any, str | None, str | None]:
    """(settings, file of --json, folder of --out); ConfigError or RecordError for bad input."""
    given = vars(room_parser(room).parse_args(argv))
    quick, json_file, folder = given.pop("quick"), given.pop("json"), given.pop("out")
    values = dict(room.quick) if quick else {}
    values |= {name: value for name, value in given.items() if value is not None}
    settings = room.settings(**values)
    if json_file not in (None, "-"):
        _check_output(Path(json_file))
    RunWriter.check(room.name, folder)
    return settings, json_file, folder


def _check_output(path: Path) -> None:
    """ConfigError where no file can be written at `path`."""
    parent = path.absolute().parent
    if path.is_dir() or not parent.is_dir() or not os.access(parent, os.W_OK):
        raise ConfigError(f"json is '{path}': allowed is a file in a folder that can be written to")


def _load(work: str) -> Callable[..., dict]:
    module, _, name = work.partition(":")
    return getattr(importlib.import_module(module), name)


def _work(
    room: Room, work: Callable[..., dict], settings: Any, json_file: str | None, folder: str | None
) -> None:
    """The work between opening and closing the run folder, then the result as JSON."""
    own = sys.stderr if json_file == "-" else sys.stdout  # --json - has standard output to itself

    def say(line: str) -> None:
        print(line, file=own, flush=True)

    config = dataclasses.asdict(settings)
    with RunWriter.create(room.name, config, config.get("seed", 0), folder) as writer:
        result = work(settings, writer, say)
        writer.finish(result)
    if json_file == "-":
        print(json.dumps(to_jsonable(result), indent=2, allow_nan=False))
    elif json_file:
        write_json(json_file, result)
    say(f"run folder: {writer.dir}")


def _end(text: str, status: int) -> int:
    plain = "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))
    print(f"ddp_bench: {plain[:LONGEST_LINE]}", file=sys.stderr, flush=True)
    return status
