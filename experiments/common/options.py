"""Command lines from typed dataclasses: a YAML file, then overrides, then checks."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import json
import re
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from jsonargparse import (
    ActionConfigFile,
    ArgumentError,
    ArgumentParser,
    DefaultHelpFormatter,
    Namespace,
)

from experiments.common.known import OPTIONS, check_names, did_you_mean
from jaxsim.files import InputError, is_non_negative, read_yaml, shown
from jaxsim.scenario import ScenarioSettings

T = TypeVar("T")
OTHERS = ("config", "help", "print_config")  # options that every command has
GLOBAL_BATCH = 1024  # defaults of all commands
LAYOUT_LIMIT = 4000
BASE_SPREAD = 0.25
MOST_SCENARIOS = 100_000
MOST_LAYOUTS = 10_000_000
MOST_OF_A_WORLD = {"global_batch": 10_000_000, "seq": 100_000_000, "table_size": 100_000}
NULLS = ("null", "Null", "NULL", "~")  # as YAML spells them


def parse(config_class: type[T], argv: list[str], prog: str, example: str = "") -> T:
    """Build a config dataclass from `--config FILE` and `--key value` overrides (nested keys with
    dots, '-' and '_' alike); the command line is stronger than the file.

    Raises InputError with one line that names the key, and the file where the fault lies there;
    unknown keys are refused, abbreviations too. `--help` prints every key with its default and what
    it means, and the `example`, and exits.
    """
    overrides, files = _given(config_class, argv, prog)
    parser = _parser(config_class, prog, example)

    def build(bodies: list[dict]) -> T:
        line = [*_as_arguments(bodies), *overrides]
        config = _built(config_class, prog, lambda: parser.parse_args(line))
        return _with_dependent_defaults(config, lambda: _set_keys(parser, line))

    for file, body in files:
        _check_body(config_class, body, f"{prog}: {file}")
    try:
        return build([body for _, body in files])
    except InputError as error:
        _blame(error, prog, files, build)
        raise


def given_keys(config_class: type, argv: list[str]) -> list[str]:
    """The keys that a command line which `parse` accepts sets, itself or by its --config file."""
    overrides, files = _given(config_class, argv, "")
    line = [*_as_arguments([body for _, body in files]), *overrides]
    return _set_keys(_parser(config_class, ""), line)


def _as_arguments(bodies: list[dict]) -> list[str]:
    """Contents of configuration files, as the parser takes them on a command line."""
    return [f"--config={json.dumps(body, default=str)}" for body in bodies]


def _set_keys(parser: ArgumentParser, line: list[str]) -> list[str]:
    """The keys that a command line sets."""
    keys = parser.parse_args(line, defaults=False).keys()
    return [key for key in keys if key != "config"]


def from_mapping(config_class: type[T], body: dict, source: str) -> T:
    """Build a config dataclass from a nested mapping; `source` is what the error line names."""
    _check_body(config_class, body, source)
    parser = _parser(config_class, source)
    config = _built(config_class, source, lambda: parser.parse_object(body))
    return _with_dependent_defaults(config, lambda: list(_keys(body)))


def refuse_changes(
    command: str, folder: str, changed: Collection[str], allowed: str, keeps: str = "configuration"
) -> None:
    """A run that goes on has the numbers of one configuration: raise InputError that names the first of
    the keys that would be `changed`, and those that are `allowed` beside --resume."""
    for key in changed:
        raise InputError(
            f"{command}: {key}: cannot be changed with --resume, {folder} keeps its own {keeps}; "
            f"allowed beside it: {allowed}"
        )


def smaller(config: T, sizes: Mapping[str, Any], given: Collection[str]) -> T:
    """The config with the `sizes` of its quick run, by key (of nested ones with dots), but for those
    that are `given`."""
    changes: dict[str, Any] = {}
    for key, value in sizes.items():
        parent, _, name = key.rpartition(".")
        if key in given:
            continue
        if parent:
            of = changes.get(parent, getattr(config, parent))
            changes[parent] = dataclasses.replace(of, **{name: value})
        else:
            changes[name] = value
    return dataclasses.replace(config, **changes)


def default_scenario() -> ScenarioSettings:
    """How worlds are drawn unless the command line says otherwise: links differ between scenarios."""
    return ScenarioSettings(base_spread=BASE_SPREAD)


def are_weights(values: tuple[float, ...]) -> bool:
    """w1 to w4 of the reward: four finite numbers >= 0, not all of them 0."""
    return len(values) == 4 and all(map(is_non_negative, values)) and any(values)


def parse_weights(text: str) -> tuple[float, float, float, float]:
    """'w1,w2,w3,w4' -> numbers >= 0; InputError otherwise."""
    try:
        values = tuple(float(x) for x in text.split(","))
    except ValueError:
        values = ()
    if not are_weights(values):
        allowed = "four numbers >= 0, not all 0, as w1,w2,w3,w4"
        raise InputError(f"weights: expected {allowed}, got {text!r}")
    return values


def _with_dependent_defaults(config: T, given: Callable[[], list[str]]) -> T:
    """The config with those defaults that depend on which keys are given.

    A configuration class that has such defaults has a method `with_dependent_defaults`.
    """
    complete = getattr(config, "with_dependent_defaults", None)
    return config if complete is None else complete(given())


def _keys(body: dict, path: str = "") -> Iterator[str]:
    """The keys of a nested mapping, with dots."""
    for name, value in body.items():
        if isinstance(value, dict):
            yield from _keys(value, f"{path}{name}.")
        else:
            yield f"{path}{name}"


def _built(config_class: type[T], source: str, read: Callable[[], Namespace]) -> T:
    try:
        values = read()
        for key, kind in _leaves(config_class):
            name = key.rpartition(".")[2]
            if name in OPTIONS and kind in (str, str | None):
                check_names(key, values[key], OPTIONS[name])
        return _instance(config_class, values)
    except (ArgumentError, ValueError, TypeError, OSError, OverflowError, AttributeError) as error:
        raise InputError(f"{source}: {_plain(' '.join(str(error).split()))}") from None


# How a value that no type takes is refused by the library that reads command lines.
_NO_TYPE = re.compile(
    r"Parser key \"(.*?)\": Does not validate against any of the Union subtypes "
    r"Subtypes: \[(.*?)\].*Given value: (.*)"
)
_WORDS = {"float": "a number", "int": "an integer", "str": "text", "bool": "true or false"}


def _plain(message: str) -> str:
    """The message in this project's words."""
    found = _NO_TYPE.match(message)
    if found is None:
        return message
    key, types, value = found.groups()
    names = [name for name in re.findall(r"<class '(\w+)'>", types) if name != "NoneType"]
    if not names or not set(names) <= set(_WORDS):
        return message
    return f"{key}: expected {' or '.join(_WORDS[name] for name in names)}, got {value!r}"


def _blame(error: InputError, prog: str, files: list[tuple[str, dict]], build: Callable) -> None:
    """Raise the error again with the name of the configuration file that it comes from, if it does:
    without the file there is no fault, or another one."""
    for i, (file, _) in enumerate(files):
        try:
            build([body for _, body in [*files[:i], *files[i + 1 :]]])
        except InputError as other:
            if str(other) == str(error):
                continue
        raise InputError(f"{prog}: {file}: {str(error).removeprefix(f'{prog}: ')}") from None


def _parser(config_class: type, prog: str, example: str = "") -> ArgumentParser:
    about = inspect.cleandoc(config_class.__doc__ or "").partition("Attributes:")[0]
    parser = ArgumentParser(
        prog=f"hippo {prog}",
        description=about.rstrip(),
        epilog=f"example:\n  {example}" if example else None,
        exit_on_error=False,
        allow_abbrev=False,
        formatter_class=_Formatter,
    )
    parser.add_argument("--config", action=ActionConfigFile, help="YAML file with the keys below")
    parser.add_class_arguments(config_class)
    return parser


class _Formatter(DefaultHelpFormatter):
    """Keeps line breaks, lists the names that an option takes, and calls a missing default nothing."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "".join(indent + line for line in text.splitlines(keepends=True))

    def _split_lines(self, text: str, width: int) -> list[str]:
        # Names are to be copied: they are not broken at their hyphens.
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)

    def _expand_help(self, action) -> str:
        text = super()._expand_help(action)
        text = text.replace(" | null", "").replace(", default: null", "")
        names = OPTIONS.get(action.dest.rpartition(".")[2])
        return f"{text}. Known: {', '.join(names.known)}" if names else text


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


def _leaves(kind: type, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every key of a config dataclass with its type, those of nested ones with dots."""
    for name, of in get_type_hints(kind).items():
        if dataclasses.is_dataclass(of):
            yield from _leaves(of, f"{path}{name}.")
        else:
            yield f"{path}{name}", of


def _groups(kind: type, path: str = "") -> Iterator[str]:
    """The keys of nested dataclasses."""
    for name, of in get_type_hints(kind).items():
        if dataclasses.is_dataclass(of):
            yield f"{path}{name}"
            yield from _groups(of, f"{path}{name}.")


def _check_body(kind: type, body: Any, source: str, path: str = "") -> None:
    """Raise InputError for a mapping with unknown keys, or with null where there must be a value."""
    if not isinstance(body, dict):
        where = f"{path.rstrip('.')}: " if path else ""
        raise InputError(
            f"{source}: {where}expected a mapping of keys to values, got {shown(body)}"
        )
    types = get_type_hints(kind)
    for name, value in body.items():
        key = f"{path}{name}"
        if name not in types:
            raise InputError(f"{source}: unknown key {key!r}{did_you_mean(str(name), types)}")
        if dataclasses.is_dataclass(types[name]):
            _check_body(types[name], value, source, f"{key}.")
        elif value is None and type(None) not in get_args(types[name]):
            raise InputError(f"{source}: {key}: null is no value here; leave the key out")


def _given(
    config_class: type, argv: list[str], prog: str
) -> tuple[list[str], list[tuple[str, dict]]]:
    """The command line without its --config, as the parser wants it, and the mapping in each of those
    files. Raises InputError for unknown options and for files that cannot be read."""
    leaves = dict(_leaves(config_class))
    known = [*leaves, *_groups(config_class), *OTHERS]
    rest: list[str] = []
    files: list[tuple[str, dict]] = []
    tokens = itertools.zip_longest(argv, argv[1:])
    for argument, following in tokens:
        key, equals, value = argument.removeprefix("--").partition("=")
        key = key.replace("-", "_")
        if not argument.startswith("--") or not key:
            rest.append(argument)
            continue
        if key not in known:
            close = did_you_mean(key, known).replace("mean ", "mean --")
            raise InputError(f"{prog}: unknown option --{key}{close}")
        alone = following is None or following.startswith("--")
        value = value if equals or alone else following
        if value in NULLS:
            raise InputError(f"{prog}: {key}: null is no value; leave the option out")
        if key == "config" and (equals or not alone):
            files.append((value, _read(value, prog)))
            if not equals:
                next(tokens)
        elif leaves.get(key) is bool and not equals and alone:
            rest += [f"--{key}", "true"]  # a flag
        elif get_origin(leaves.get(key)) is list and (equals or not alone) and value[:1] != "[":
            rest.append(f"--{key}={_listed(value, leaves[key])}")
            if not equals:
                next(tokens)
        else:
            rest.append(f"--{key}{equals}{value}" if equals else f"--{key}")
    return rest, files


def _listed(value: str, kind: Any) -> str:
    """One value, or some with commas between, as a list in YAML. Numbers with commas between are one
    value where texts are wanted (weights)."""
    numbers = re.fullmatch(r"[-+.\deE]+(,[-+.\deE]+)+", value)
    return f"['{value}']" if numbers and get_args(kind) == (str,) else f"[{value}]"


def _read(file: str, prog: str) -> dict:
    """The mapping in a configuration file. Raises InputError that names the file."""
    try:
        body = read_yaml(file, "a configuration")
    except InputError as error:
        raise InputError(f"{prog}: {error}") from None
    return {} if body is None else body
