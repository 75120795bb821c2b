"""The checker of types that tests run under: beartype, by jaxtyping's import hook."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, get_args

import beartype
from jaxtyping import AbstractArray, install_import_hook

CHECKED = ["jaxsim", "agents"]  # packages
NUMBERS = beartype.BeartypeConf(is_pep484_tower=True)  # an int is a float


def install() -> None:
    """From now on, modules of the CHECKED packages are imported with checks."""
    install_import_hook(CHECKED, f"{__name__}.check_calls")


def check_calls(function: Callable) -> Callable:
    """Check the arrays that the function is called with, and those it returns, against its annotations.

    Classes are left to the static checker: a test may hand over a stand-in with the few fields that
    the function reads.
    """
    hints = function.__annotations__
    arrays = {name: hint if mentions_arrays(hint) else Any for name, hint in hints.items()}
    if set(arrays.values()) <= {Any}:
        return function
    function.__annotations__ = arrays
    return beartype.beartype(function, conf=NUMBERS)


def mentions_arrays(hint: Any) -> bool:
    """Is the hint, or a part of it, an array with a shape and a kind of number?"""
    if inspect.isclass(hint) and issubclass(hint, AbstractArray):
        return True
    parts = hint if isinstance(hint, list) else get_args(hint)  # of a Callable: a list
    return any(mentions_arrays(part) for part in parts)
