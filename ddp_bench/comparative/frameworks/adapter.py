"""What a framework must offer to be compared, and what each adapter brings itself."""

from __future__ import annotations

import ast
import importlib
import inspect
import textwrap
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from torch import Tensor

from ddp_bench.comparative.frameworks.task import Task
from ddp_bench.toolbox import Ranks


class NotRun(RuntimeError):
    """Something that cannot be done here; the text is the reason, in one line."""


class Adapter(ABC):
    """A framework that trains the task on this rank.

    Attributes:
        made_of: functions outside of the class that belong to its configuration.
    """

    made_of: tuple[Any, ...] = ()

    @abstractmethod
    def __init__(self, task: Task, ranks: Ranks, **settings: Any) -> None:
        """Build model and optimizer from the task's first weights. ImportError or NotRun where
        that cannot be."""

    @abstractmethod
    def step(self, tokens: Tensor, targets: Tensor) -> Tensor | None:
        """Train on a global batch, two of [rows, length], of which every rank is given all.

        Returns:
            Mean loss of this rank's share before the step; None where another rank has it. The mean
            over the ranks that return one is the global loss.
        """

    def save(self, folder: Path) -> None:
        """Write weights and optimizer state, all ranks together. NotRun where that cannot be."""
        raise NotRun(f"{type(self).__name__} saves nothing that another layout can read")

    def load(self, folder: Path) -> None:
        """Read what another layout saved. NotRun where that cannot be."""
        raise NotRun(f"{type(self).__name__} reads nothing that another layout saved")


def named(path: str) -> Any:
    """What "module:name" says. ImportError or AttributeError where it is not there."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def lines_of(adapter: type) -> int:
    """Lines of an adapter's own code: its class, those above it in the same module and what they
    are made of; no docstrings, comments and empty lines."""
    of_module = [kind for kind in adapter.__mro__ if kind.__module__ == adapter.__module__]
    parts = {*of_module, *(part for kind in of_module for part in vars(kind).get("made_of", ()))}
    return sum(_code_lines(inspect.getsource(part)) for part in parts)


def _code_lines(source: str) -> int:
    source = textwrap.dedent(source)
    described = set()  # lines of docstrings
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            text = node.body[0]
            described |= set(range(text.lineno, (text.end_lineno or text.lineno) + 1))
    lines = enumerate(source.splitlines(), start=1)
    return sum(
        1 for n, line in lines if n not in described and line.strip() and line.strip()[0] != "#"
    )
