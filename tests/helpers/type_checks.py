"""The checker of types that tests run under: beartype, by jaxtyping's import hook."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import beartype
from jaxtyping import install_import_hook

CHECKED = ["jaxsim", "agents"]  # packages
NUMBERS = beartype.BeartypeConf(is_pep484_tower=True)  # an int is a float


def check_calls(function: Callable) -> Callable:
    """Check what the function is called with, and what it returns, against its annotations.

    beartype knows no class around a function that is decorated alone, and refuses `Self` there: it
    counts as anything.
    """
    hints = function.__annotations__.items()
    function.__annotations__ = {name: Any if hint is Self else hint for name, hint in hints}
    return beartype.beartype(function, conf=NUMBERS)


def install() -> None:
    """From now on, modules of the CHECKED packages are imported with checks."""
    install_import_hook(CHECKED, f"{__name__}.check_calls")
