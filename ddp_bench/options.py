"""Settings as dataclasses: their fields become options, and what no option may be is refused."""

from __future__ import annotations

import argparse
import dataclasses
import typing
from collections.abc import Collection, Mapping
from typing import Any

from ddp_bench.errors import ConfigError


def option(default: Any, text: str, within: str = "", choices: tuple[str, ...] = ()) -> Any:
    """A setting; `within` is the interval that a number must lie in, such as "(0, 1]"."""
    metadata = {"help": text, "within": within, "choices": choices}
    return dataclasses.field(default=default, metadata=metadata)


def inside(value: float, within: str) -> bool:
    """Whether `value` lies in the interval; NaN lies in none."""
    low, high = (float(end) for end in within[1:-1].split(","))
    above = low <= value if within[0] == "[" else low < value
    return above and (value <= high if within[-1] == "]" else value < high)


def check_options(settings: Any) -> None:
    """ConfigError for a value outside of what its option allows."""
    for field in dataclasses.fields(settings):
        value, allowed = getattr(settings, field.name), field.metadata["choices"]
        if allowed and value not in allowed:
            raise ConfigError(f"{field.name} is {value!r}: allowed {', '.join(allowed)}")
    for field in dataclasses.fields(settings):
        value, within = getattr(settings, field.name), field.metadata["within"]
        if within and not inside(value, within):
            kind = "integers" if isinstance(value, int) else "numbers"
            raise ConfigError(f"{field.name} is {value}: allowed are {kind} in {within}")


def flag(text: str) -> bool:
    """A yes or no of the command line."""
    if text.lower() in ("1", "true", "yes"):
        return True
    if text.lower() in ("0", "false", "no"):
        return False
    raise argparse.ArgumentTypeError(f"{text!r}: allowed true, false")


class Parser(argparse.ArgumentParser):
    """Refuses abbreviations, and reports a fault as a ConfigError."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)

    def error(self, message: str) -> typing.NoReturn:
        raise ConfigError(f"command line: {message}")


def add_options(
    parser: argparse.ArgumentParser,
    kind: type,
    aliases: Mapping[str, str] | None = None,
    without: Collection[str] = (),
) -> None:
    """One option for every field of the dataclass `kind`, None where it is not given.

    Args:
        aliases: other names of options -> the field's.
        without: fields that get no option.
    """
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        if field.name in without:
            continue
        wanted = hints[field.name]
        text = f"{field.metadata['help']} (default: {field.default!r})"
        extra: dict[str, Any] = {}
        if choices := field.metadata["choices"]:
            extra = {"choices": choices}
        if wanted is bool:
            extra = {"nargs": "?", "const": True, "metavar": "true|false"}
        others = [f"--{alias}" for alias, name in (aliases or {}).items() if name == field.name]
        parser.add_argument(
            f"--{field.name}",
            *others,
            type=flag if wanted is bool else wanted,
            default=None,
            help=text.replace("%", "%%"),
            **extra,
        )
