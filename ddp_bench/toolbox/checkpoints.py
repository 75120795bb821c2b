"""Failures of torch.distributed.checkpoint as errors that can be caught."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class CheckpointFailed(RuntimeError):
    """A checkpoint that could not be written or read. One line: on which rank, and why."""


@contextmanager
def checkpoint_errors() -> Iterator[None]:
    """Turn torch's failure into an ordinary error: its own is no `Exception`, so that whoever reports
    errors does not see it. It is raised on every rank, whichever failed.

    Raises:
        CheckpointFailed: naming the first rank that failed.
    """
    # It takes seconds to import, and ranks that save nothing need none of it.
    from torch.distributed.checkpoint import CheckpointException

    try:
        yield
    except CheckpointException as error:
        rank, (cause, _) = next(iter(error.failures.items()))
        raise CheckpointFailed(f"rank {rank}: {type(cause).__name__}: {cause}") from None
