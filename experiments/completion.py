"""Completion of command lines by the TAB key, through argcomplete.

A shell asks for it once, by `eval "$(register-python-argcomplete hippo)"`, and from then on starts
`hippo` with the unfinished line in its environment.
"""

from __future__ import annotations

import argparse
import importlib
import os
from collections.abc import Mapping
from typing import NoReturn
from unittest import mock

import argcomplete
import jsonargparse

from experiments.common import OPTIONS

ASKED = "_ARGCOMPLETE"  # in the environment: the number of the first word that the parser reads
# Their own processes read these.
REAL_TRAINING = ("ddp", "parallel", "memory", "microbench", "communication", "comparative")


class _Found(BaseException):
    """The parser of a command, before it reads anything."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self.parser = parser


def complete(commands: Mapping[str, tuple[str, str]]) -> None:
    """Tell the shell how its line may go on; ends the process.

    `commands`: name -> (module with main(argv), what it is for).
    """
    line = os.environ["COMP_LINE"], int(os.environ["COMP_POINT"])
    *_, words, _ = argcomplete.split_line(*line)
    if len(words) < 2:
        parser = argparse.ArgumentParser()
        parser.add_argument("command", choices=list(commands))
    elif words[1] in commands and words[1] not in REAL_TRAINING:
        os.environ[ASKED] = "2"
        parser = _parser_of(commands[words[1]][0])
        _know_names(parser)
    else:
        return
    if isinstance(parser, jsonargparse.ArgumentParser):
        parser.parse_args([])  # sees that it is asked by argcomplete, and answers
    argcomplete.autocomplete(parser, always_complete_options="long")


def _parser_of(module: str) -> argparse.ArgumentParser:
    """Commands read their line before they do anything else."""

    def stop(parser: argparse.ArgumentParser, *_, **__) -> NoReturn:
        raise _Found(parser)

    main = importlib.import_module(module).main
    with (
        mock.patch.object(argparse.ArgumentParser, "parse_known_args", stop),
        mock.patch.object(jsonargparse.ArgumentParser, "parse_args", stop),
    ):
        try:
            main([])
        except _Found as found:
            return found.parser
    raise AssertionError(f"{module} reads no command line")


def _know_names(parser: argparse.ArgumentParser) -> None:
    """Options that take names are completed to them."""
    for action in parser._actions:
        names = OPTIONS.get(action.dest.rpartition(".")[2])
        if names is None:
            continue

        def known(prefix: str, names=names, **_) -> list[str]:
            before = f"{prefix.rpartition(',')[0]}," if names.many and "," in prefix else ""
            return [before + name for name in names.known]

        action.completer = known  # pyright: ignore[reportAttributeAccessIssue]
