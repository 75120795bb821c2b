"""What is asked of run folders."""

from __future__ import annotations

import dataclasses

from jaxsim.files import InputError


@dataclasses.dataclass(frozen=True)
class RunsConfig:
    """Run folders: a list of them, or how two of them differ.

    Attributes:
        root: folder whose run folders are listed, at any depth
        kind: of runs to list, such as evaluate, plan or train; all if none is given
        compare: two run folders as A,B: settings and results in which they differ
        json: file for the result as JSON; - = standard output
    """

    root: str = "outputs"
    kind: str | None = None
    compare: str | None = None
    json: str | None = None

    def __post_init__(self):
        if self.compare is not None and len(self.folders) != 2:
            raise InputError(f"compare: expected two run folders as A,B, got {self.compare!r}")

    @property
    def folders(self) -> list[str]:
        """The two that are compared."""
        return [part.strip() for part in (self.compare or "").split(",") if part.strip()]
