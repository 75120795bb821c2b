"""YAML as this project reads and writes it: plain data, no key twice, nothing that grows in reading.

Scalars are those of YAML 1.2, where `1.0e12` and `1e12` are numbers, and `no`, `2021-10-01`, `017`
and `12:30` are text; `1_000` is a number as well.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any, ClassVar

import yaml

from jaxsim.files.errors import InputError
from jaxsim.files.reading import control_character, read_text
from jaxsim.files.shown import shown

MOST_BYTES = 4 * 2**20  # a cluster of 256 domains has 2 MB
MOST_NODES = 500_000  # keys and values, every alias counted as what it stands for
MOST_DEPTH = 32  # mappings and lists within each other
_TAG = "tag:yaml.org,2002:"
_MERGE = _TAG + "merge"
_FLOAT = re.compile(
    r"""[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|[0-9][0-9_]*[eE][-+]?[0-9]+
        |\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?|\.(?:inf|Inf|INF))$|\.(?:nan|NaN|NAN)$""",
    re.VERBOSE,
)
_RESOLVERS = (
    ("bool", re.compile(r"(?:true|True|TRUE|false|False|FALSE)$"), "tTfF"),
    ("int", re.compile(r"[-+]?(?:0|[1-9][0-9_]*)$"), "-+0123456789"),
    ("float", _FLOAT, "-+0123456789."),
    ("null", re.compile(r"(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""]),
    ("merge", re.compile(r"<<$"), "<"),
)
_KINDS = ("null", "bool", "int", "float", "str", "seq", "map")


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
    """Data only: no dates, sets or other objects."""

    yaml_implicit_resolvers: ClassVar[dict] = {}
    yaml_constructors: ClassVar[dict] = {
        **{_TAG + kind: yaml.SafeLoader.yaml_constructors[_TAG + kind] for kind in _KINDS},
        None: yaml.SafeLoader.yaml_constructors[None],
    }


class _Dumper(yaml.SafeDumper):
    """Quotes the text that `_Loader` would take for a number."""


for _kind, _pattern, _first in _RESOLVERS:
    _Loader.add_implicit_resolver(_TAG + _kind, _pattern, list(_first))
_Dumper.add_implicit_resolver(_TAG + "float", _FLOAT, list("-+0123456789."))


def read_yaml(path: str | Path, kind: str) -> Any:
    """The document in a file; `kind` says what was expected, such as "a cluster file".

    Raises InputError that names the file and, where it can, the line.
    """
    return parse_yaml(read_text(path, kind, MOST_BYTES, controls=True), str(path), kind)


def parse_yaml(text: str, source: str, kind: str) -> Any:
    """The document in `text`; `source` is what error lines name.

    Raises InputError for what is not YAML, a key that stands twice in one mapping, and what is too
    deep, too large or part of itself.
    """
    try:
        if not (why := control_character(text)):
            return load_yaml(text)
    except yaml.YAMLError as error:
        why = _why(error)
    raise InputError(f"{source}: cannot be read as {kind}: not valid YAML: {why}")


def dump_yaml(body: Any, **style: Any) -> str:
    """Text that `parse_yaml` reads back to `body`, keys in their order; `style` as PyYAML's dump."""
    return yaml.dump(body, Dumper=_Dumper, sort_keys=False, **style)


def load_yaml(text: str) -> Any:
    """The document in `text`; raises yaml.YAMLError alone."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > MOST_DEPTH:
            raise _fault(f"nested deeper than {MOST_DEPTH} levels", event)
    loader = _Loader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return None
        _size(root, {})
        _merge(root, set())
        return loader.construct_document(root)
    # What constructors raise where a tag is no fit for its value, or a number is too long to read.
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise yaml.YAMLError(str(error)) from None
    finally:
        loader.dispose()


def _size(node: yaml.Node, known: dict[int, int | None]) -> int:
    """Nodes under one, aliases counted as what they stand for; refuses keys that stand twice."""
    if id(node) in known:
        if known[id(node)] is None:
            raise _fault("an alias that holds itself", node)
        return known[id(node)]
    known[id(node)] = None
    total = 1
    if isinstance(node, yaml.MappingNode):
        _refuse_twins(node)
        total += sum(_size(part, known) for pair in node.value for part in pair)
    elif isinstance(node, yaml.SequenceNode):
        total += sum(_size(part, known) for part in node.value)
    if total > MOST_NODES:
        raise _fault(f"more than {MOST_NODES:,} keys and values, aliases counted", node)
    known[id(node)] = total
    return total


def _refuse_twins(node: yaml.MappingNode) -> None:
    seen = set()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode) or not isinstance(key.value, Hashable):
            raise _fault("a key that is no word or number", key)
        if (key.tag, key.value) in seen:
            raise _fault(f"the key {shown(key.value)} stands twice", key)
        seen.add((key.tag, key.value))


def _merge(node: yaml.Node, done: set[int]) -> None:
    """Write the keys of `<<` into the mappings that have it, own keys first, then those of what is
    named first. PyYAML does so while it builds, but its 6.0.4 loses own keys of what merged before."""
    if id(node) in done:
        return
    done.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for part in node.value:
            _merge(part, done)
    if not isinstance(node, yaml.MappingNode):
        return
    for _, value in node.value:
        _merge(value, done)
    own = [pair for pair in node.value if pair[0].tag != _MERGE]
    seen = {(key.tag, key.value) for key, _ in own}
    more = []
    for source in (
        source for key, value in node.value if key.tag == _MERGE for source in _list(value)
    ):
        if not isinstance(source, yaml.MappingNode):
            raise _fault("expected a mapping or a list of mappings for merging", source)
        new = [pair for pair in source.value if (pair[0].tag, pair[0].value) not in seen]
        seen |= {(key.tag, key.value) for key, _ in new}
        more += new
    node.value = more + own


def _list(node: yaml.Node) -> list[yaml.Node]:
    return node.value if isinstance(node, yaml.SequenceNode) else [node]


def _fault(problem: str, at: yaml.Node | yaml.Event) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=at.start_mark)


def _why(error: yaml.YAMLError) -> str:
    """The problem and its line, without the text around it."""
    problem, mark = getattr(error, "problem", None), getattr(error, "problem_mark", None)
    if not problem:
        return str(error)
    if "nesting depth" in problem:  # libyaml's own limit, which it may reach ahead of ours
        problem = f"nested deeper than {MOST_DEPTH} levels"
    return f"line {mark.line + 1}: {problem}" if mark else problem
