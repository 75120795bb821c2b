"""What a validation is asked for."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class ValidateConfig:
    """A validation; it never fits, except with leave_one_out. Errors of groups of runs that a fit did
    without come first: as `calibrate` stored them, or computed again.

    Attributes:
        data: file or folder of measured runs and syncs; the published runs that ship if none is given;
            or the JSON of hippo microbench, whose data-parallel steps are predicted
        calibration: calibration file; the fits that ship if none is given
        leave_one_out: refit without each group of these runs, and predict them
        strict: refuse the first bad row instead of leaving it out
        json: file for the figures of merit, - = standard output and nothing else there
        out: run folder; outputs/validate-<time> if none is given
    """

    data: str | None = None
    calibration: str | None = None
    leave_one_out: bool = False
    strict: bool = False
    json: str | None = None
    out: str | None = None
