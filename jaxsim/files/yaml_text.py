"""YAML as this project reads it: the safe subset, and no key twice."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml

MERGE = "tag:yaml.org,2002:merge"


class _UniqueKeys(yaml.SafeLoader):
    """PyYAML keeps the last of two equal keys and says nothing."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key_node.tag == MERGE or not isinstance(key, Hashable):
                continue  # PyYAML's to merge, or to refuse
            if key in seen:
                problem = f"the key {key!r} stands twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def load_yaml(text: str) -> Any:
    """The document in `text`; raises yaml.YAMLError, also for a key that stands twice in one mapping
    or a number too long to read."""
    try:
        return yaml.load(text, Loader=_UniqueKeys)  # a SafeLoader
    except ValueError as error:  # of an integer of thousands of digits, or a date that is none
        raise yaml.YAMLError(str(error)) from None
