"""Progress bars that say so while a program is compiled."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
from tqdm import tqdm

# JAX tells when a program is lowered, which is when XLA begins with it, and when that is done.
BEGINS = "/jax/core/compile/jaxpr_to_mlir_module_duration"
ENDS = "/jax/core/compile/backend_compile_duration"
_shown: list[tuple[tqdm, str]] = []  # bars with their descriptions, the innermost last


@contextlib.contextmanager
def progress(**settings: Any) -> Iterator[tqdm]:
    """A `tqdm` bar with these settings, `desc` among them, that shows `desc, compiling` where it
    is the innermost of them and this process compiles."""
    with tqdm(**settings) as bar:
        _shown.append((bar, settings["desc"]))
        try:
            yield bar
        finally:
            _shown.pop()


def _listen(event: str, duration_s: float, **_: Any) -> None:
    if _shown and event in (BEGINS, ENDS):
        bar, text = _shown[-1]
        bar.set_description(f"{text}, compiling" if event == BEGINS else text)


jax.monitoring.register_event_duration_secs_listener(_listen)
