"""Command lines from typed dataclasses: a YAML file, then overrides, then checks."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping
from typing import TypeVar, get_type_hints

from jsonargparse import ActionConfigFile, ArgumentError, ArgumentParser, Namespace

from jaxsim.files import InputError, is_non_negative, read_yaml, shown

T = TypeVar("T")


def parse(config_class: type[T], argv: list[str], prog: str) -> T:
    """Build a config dataclass from `--config FILE` and `--key value` overrides (nested keys with
    dots, '-' and '_' alike).

    Raises InputError with one line that names the key; unknown keys are refused, abbreviations too.
    `--help` prints every key with its default and exits.
    """
    arguments = _arguments(config_class, argv)
    files = [after for name, after in itertools.pairwise(arguments) if name == "--config"]
    files += [name.partition("=")[2] for name in arguments if name.startswith("--config=")]
    for file in files:  # what it is, before its keys are looked at
        try:
            body = read_yaml(file, "a configuration")
        except InputError as error:
            raise InputError(f"{prog}: {error}") from None
        if not isinstance(body, Mapping):
            raise InputError(f"{file}: expected a mapping of keys to values, got {shown(body)}")
    source = ": ".join([prog, *files])
    return _build(config_class, source, lambda p: p.parse_args(arguments))


def given_keys(config_class: type, argv: list[str]) -> list[str]:
    """The keys that a command line which `parse` accepts sets, itself or by its --config file."""
    arguments = _arguments(config_class, argv)
    keys = _parser(config_class, "").parse_args(arguments, defaults=False).keys()
    return [key for key in keys if key != "config"]


def from_mapping(config_class: type[T], body: dict, source: str) -> T:
    """Build a config dataclass from a nested mapping; `source` is what the error line names."""
    return _build(config_class, source, lambda p: p.parse_object(body))


def are_weights(values: tuple[float, ...]) -> bool:
    """w1 to w4 of the reward: four finite numbers >= 0."""
    return len(values) == 4 and all(map(is_non_negative, values))


def parse_weights(text: str) -> tuple[float, float, float, float]:
    """'w1,w2,w3,w4' -> numbers >= 0; InputError otherwise."""
    try:
        values = tuple(float(x) for x in text.split(","))
    except ValueError:
        values = ()
    if not are_weights(values):
        raise InputError(f"weights: expected four numbers >= 0 as w1,w2,w3,w4, got {text!r}")
    return values


def _build(config_class: type[T], source: str, read: Callable[[ArgumentParser], Namespace]) -> T:
    parser = _parser(config_class, source)
    try:
        return _instance(config_class, read(parser))
    except (ArgumentError, ValueError, TypeError, OSError, OverflowError, AttributeError) as error:
        raise InputError(f"{source}: {' '.join(str(error).split())}") from None


def _parser(config_class: type, prog: str) -> ArgumentParser:
    parser = ArgumentParser(
        prog=prog, description=config_class.__doc__, exit_on_error=False, allow_abbrev=False
    )
    parser.add_argument("--config", action=ActionConfigFile, help="YAML file with the keys below")
    parser.add_class_arguments(config_class)
    return parser


def _instance(kind: type[T], values: Namespace, path: str = "") -> T:
    """The dataclass with its nested ones; a check that fails names the whole key."""
    types = get_type_hints(kind)
    fields = {}
    for name in (field.name for field in dataclasses.fields(kind)):
        fields[name] = values[name]
        if dataclasses.is_dataclass(types[name]):
            fields[name] = _instance(types[name], values[name], f"{path}{name}.")
    try:
        return kind(**fields)
    except ValueError as error:
        raise ValueError(f"{path}{error}") from None


def _arguments(config_class: type, argv: list[str]) -> list[str]:
    """The command line as the parser wants it; a flag without a value means true."""
    types = get_type_hints(config_class)
    flags = {f"--{f.name}" for f in dataclasses.fields(config_class) if types[f.name] is bool}
    out = []
    for argument, following in zip(argv, [*argv[1:], "--"], strict=False):  # none of none
        name = _underscored(argument)
        out += [name, "true"] if name in flags and following.startswith("--") else [name]
    return out


def _underscored(argument: str) -> str:
    if not argument.startswith("--"):
        return argument
    name, equals, value = argument.partition("=")
    return "--" + name[2:].replace("-", "_") + equals + value
