"""Command lines with several commands, and the types of arguments that they take."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping
from typing import NoReturn

from jaxsim.files import InputError


class Parser(argparse.ArgumentParser):
    """Refuses abbreviations, and reports a fault by the exception that every command reports."""

    def __init__(self, **settings) -> None:
        super().__init__(allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{self.prog}: {message}")


def parse_command(
    parser: Parser, commands: Mapping[str, Parser], argv: list[str] | None
) -> argparse.Namespace:
    """The options of the one of `commands` (the parser's subparsers) that `argv` names.

    Raises InputError with that command's usage for an argument that it does not know.
    """
    options, unknown = parser.parse_known_args(argv)
    if unknown:
        usage = " ".join(commands[options.command].format_usage().split())
        raise InputError(f"{options.command}: unknown argument {unknown[0]!r}; {usage}")
    return options


def number(text: str, allowed: Callable[[float], bool], wanted: str) -> float:
    """A finite number that `allowed` accepts; the error says what is `wanted`."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and allowed(value)):
        raise argparse.ArgumentTypeError(f"expected {wanted}, got {text!r}")
    return value


def whole_seconds(text: str) -> int:
    """Whole, so that t_s / interval falls exactly on the interval when a trace is read."""
    return int(number(text, lambda x: x >= 1 and x == int(x), "whole seconds >= 1"))


def seed(text: str) -> int:
    """Of a random generator."""
    return int(number(text, lambda x: x >= 0 and x == int(x), "a whole number >= 0"))
