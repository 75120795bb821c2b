"""Documentation: every command is one that there is, and its options are read by its own parser."""

import argparse
import dataclasses
import importlib
import re
import typing

import pytest
from helpers.docs_pages import ROOM_OF, ROOMS, ROOT, commands

from ddp_bench.config import parse_settings
from ddp_bench.errors import ConfigError
from ddp_bench.toolbox import room_parser
from experiments import ddp
from experiments.cli import COMMANDS
from experiments.common import parse
from jaxsim.files import InputError

ALL = commands()
# Programs whose options are their own affair.
PROGRAMS = ("source", "pip", "diff", ".venv/bin/pytest")
BY_ARGPARSE = ("cluster", "network", "report", "wan", "probe")
SUBCOMMANDS = {
    "cluster": ("from-grid", "trace"),
    "network": ("fit", "predict"),
    "probe": ("serve", "run", "iperf3"),
    "wan": (
        *("up", "run", "study", "link", "counters", "down", "check"),
        *("efficiency", "end-to-end"),
    ),
}


class ReadError(Exception):
    """The parser does not know what the page says."""


class Parsed(BaseException):
    """The outermost parser is done: what follows would do the work."""


def config_class(name):
    """The dataclass that holds the options of `hippo NAME`."""
    for place in ("config", "__main__", ""):
        try:
            module = importlib.import_module(f"experiments.{name}.{place}".rstrip("."))
            return getattr(module, f"{name.capitalize()}Config")
        except (ImportError, AttributeError):
            continue
    raise LookupError(f"{name}: no {name.capitalize()}Config")


def keys(kind, path=""):
    """The options of a dataclass, those of nested ones with dots."""
    types = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        if dataclasses.is_dataclass(types[field.name]):
            yield from keys(types[field.name], f"{path}{field.name}.")
        else:
            yield f"{path}{field.name}"


def stop_once_read(main, words):
    """Call `main` until argparse has read the command line to its end; ReadError if it cannot."""
    depth, read = 0, argparse.ArgumentParser.parse_known_args

    def outermost(self, *args, **kwargs):
        nonlocal depth
        depth += 1
        try:
            found, unknown = read(self, *args, **kwargs)
        finally:
            depth -= 1
        if depth or unknown:
            return found, unknown
        raise Parsed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_known_args", outermost)
        try:
            status = main(list(words))
        except Parsed:
            return
    raise ReadError(f"exit status {status}")


def room(name):
    """What `ddp_bench` says of its room."""
    return importlib.import_module(f"ddp_bench.{ROOM_OF.get(name, name)}").ROOM


def check_hippo(name, words):
    """Read the options of `hippo NAME`; an exception if they cannot be."""
    assert name in COMMANDS, f"no subcommand {name!r}"
    if name == "ddp":
        parse_settings(ddp._parser().parse_known_args(words)[1])
    elif name in ROOMS:
        room_parser(room(name)).parse_args(words)
    elif name in BY_ARGPARSE:
        stop_once_read(importlib.import_module(COMMANDS[name][0]).main, words)
    else:
        # Policies that the reader trained before: any file stands for them.
        words = [re.sub(r"outputs/[\w-]+(?=,|$)", "LICENSE", word) for word in words]
        parse(config_class(name), words, name)


def check_module(name, words):
    if name == "ddp_bench.train_ddp":
        parse_settings(list(words))
    elif name.startswith("ddp_bench."):
        names = {room: command for command, room in ROOM_OF.items()}
        check_hippo(
            names.get(name.removeprefix("ddp_bench."), name.removeprefix("ddp_bench.")), words
        )
    elif name.startswith("experiments."):
        check_hippo(name.removeprefix("experiments."), words)
    elif name == "analysis.report":
        check_hippo("report", words)
    else:
        assert name == "analysis.analyze_metrics", f"no entry point {name!r}"
        stop_once_read(importlib.import_module(name).main, words)


def check_make(words):
    makefile = (ROOT / "Makefile").read_text()
    for word in words:
        variable, equals, _ = word.partition("=")
        if equals:
            assert re.search(rf"\$[({{]{variable}[)}}]", makefile), f"make reads no {variable}"
        else:
            assert re.search(rf"^{word}:", makefile, re.MULTILINE), f"make knows no {word!r}"
    arguments = next((w.partition("=")[2] for w in words if w.startswith("ARGS=")), "")
    if "ddp" in words:
        check_hippo("ddp", arguments.split())


@pytest.mark.parametrize("command", ALL, ids=lambda c: c.name)
def test_a_command_of_a_page_is_understood(command, monkeypatch):
    monkeypatch.chdir(ROOT)  # --config is read by the parser
    program, *words = command.words
    ours = [w for w in words if w.split("/")[0] in ("experiments", "jaxsim", "tests", "docs")]
    assert all((ROOT / word).exists() for word in ours), ours
    if program == "hippo":
        check_hippo(words[0], words[1:])
    elif program == "make":
        check_make(words)
    elif program == "python" and words[0] == "-m":
        check_module(words[1], words[2:])
    elif program == "torchrun":
        at = words.index("-m")
        check_module(words[at + 1], words[at + 2 :])
    elif program == "python" or program.endswith(".sh"):
        assert (ROOT / (words[0] if program == "python" else program)).is_file()
    else:
        assert program in PROGRAMS, f"{command.where}: what is {program!r}?"


def test_an_option_that_is_not_there_is_noticed():
    for name, words in (
        ("evaluate", ["--schedulerz", "all"]),
        ("train", ["--train.upper.lr", "1"]),
        ("cluster", ["trace", "--clusters", "a.yaml"]),
        ("report", ["--page", "outputs/a"]),
        ("ddp", ["--modes", "static"]),
        ("memory", ["--capacities", "1"]),
    ):
        with pytest.raises((ReadError, InputError, ConfigError, SystemExit)):
            check_hippo(name, words)


# --- the page of all commands ---------------------------------------------------------------------

PAGE = (ROOT / "docs" / "commands.md").read_text()


def section(name):
    """The part of the page about a subcommand, with what commands share."""
    shared, *rest = re.split(r"^## (?=hippo )", PAGE, flags=re.MULTILINE)
    return shared + "".join(part for part in rest if f"hippo {name}" in part.splitlines()[0])


def options_of(name):
    """The options of a subcommand as its parser has them, with underscores."""
    if name != "ddp" and name not in ROOMS:
        return set(keys(config_class(name)))
    parser = room_parser(room(name)) if name in ROOMS else ddp._parser()
    strings = [option for action in parser._actions for option in action.option_strings]
    return {option[2:] for option in strings if option.startswith("--")} - {"help"}


@pytest.mark.parametrize("name", [n for n in COMMANDS if n not in BY_ARGPARSE])
def test_every_option_of_a_command_is_on_its_page(name):
    said = section(name)
    written = {o.replace("-", "_") for o in re.findall(r"--([a-z][\w.-]*)", said)}
    written |= {
        f"{group}.{leaf}"
        for group in re.findall(r"`--([\w.]+)\.\*`", said)
        for leaf in re.findall(r"`(\w+)`", said)
    }
    missing = sorted(options_of(name) - written)
    assert not missing, missing


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_every_option_of_a_command_with_commands_is_on_its_page(name, capsys):
    written = {o.replace("-", "_") for o in re.findall(r"--([a-z][\w.-]*)", section(name))}
    for sub in SUBCOMMANDS[name]:
        with pytest.raises(SystemExit):
            importlib.import_module(COMMANDS[name][0]).main([sub, "--help"])
        told = capsys.readouterr().out
        there = {o.replace("-", "_") for o in re.findall(r"--([a-z][\w-]*)", told)} - {"help"}
        assert there and not there - written, there - written


def test_every_command_has_its_place_on_the_page():
    for name in COMMANDS:
        assert f"hippo {name}" in re.findall(rf"^## .*(hippo {name})\b", PAGE, re.MULTILINE), name
