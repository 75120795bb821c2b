"""Who stands beside the policy: the schedulers that are not learned."""

from __future__ import annotations

from agents.registry import find, names
from jaxsim.files import InputError


def candidates(text: str) -> list[str]:
    """The names to choose the best rival from. Raises InputError that lists the known ones."""
    known = [name for name in _not_learned() if name != "random"]
    asked = known if text == "all" else [n.strip() for n in text.split(",") if n.strip()]
    unknown = [name for name in asked if name not in known]
    if unknown or not asked:
        got = repr(unknown[0]) if unknown else "nothing"
        raise InputError(f"candidates: expected some of {', '.join(known)}, got {got}")
    return asked


def weighing() -> list[str]:
    """Those that take weights."""
    return [name for name in _not_learned() if find(name).weighs]


def _not_learned() -> tuple[str, ...]:
    return names(oracle=False, learned=False, low_communication=False)
