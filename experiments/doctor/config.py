"""What is asked of this installation."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class DoctorConfig:
    """What is installed here, and what is missing for which command.

    Attributes:
        json: file for the result as JSON; - = standard output
    """

    json: str | None = None
