"""Command lines with several commands, and the types of arguments that they take."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Mapping
from typing import NoReturn

from experiments.common.known import did_you_mean
from jaxsim.files import InputError

LARGEST_WHOLE = 2**53  # beyond it a float64 skips whole numbers


class Parser(argparse.ArgumentParser):
    """Refuses abbreviations, keeps line breaks in its help, shows an `example`, and reports a fault by
    the exception that every command reports."""

    def __init__(self, example: str = "", **settings) -> None:
        if example:
            settings["epilog"] = f"example:\n  {example}"
        settings.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{self.prog}: {message}{_closest(message)}")


def _closest(message: str) -> str:
    """Which of the allowed choices argparse's message about a wrong one comes closest to."""
    found = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
    if not found:
        return ""
    return did_you_mean(found[1], [name.strip("' ") for name in found[2].split(",")])


def parse_command(
    parser: Parser, commands: Mapping[str, Parser], argv: list[str] | None
) -> argparse.Namespace:
    """The options of the one of `commands` (the parser's subparsers) that `argv` names.

    Raises InputError with that command's usage for an argument that it does not know.
    """
    options, unknown = parser.parse_known_args(argv)
    if unknown:
        command = commands[options.command]
        close = did_you_mean(unknown[0].partition("=")[0], command._option_string_actions)
        usage = " ".join(command.format_usage().split())
        raise InputError(f"{options.command}: unknown argument {unknown[0]!r}{close}; {usage}")
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


def whole(text: str, least: int, most: int) -> int:
    """A whole number from `least` to `most`."""
    wanted = f"a whole number >= {least} and <= {most:,}"
    return int(number(text, lambda x: x == int(x) and least <= x <= most, wanted))


def whole_seconds(text: str) -> int:
    """Whole, so that t_s / interval falls exactly on the interval when a trace is read."""
    return int(
        number(text, lambda x: x == int(x) and 1 <= x <= 1e9, "whole seconds >= 1 and <= 1e9")
    )


def seed(text: str) -> int:
    """Of a random generator."""
    return whole(text, 0, LARGEST_WHOLE)
