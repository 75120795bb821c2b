"""What a calibration is asked for."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class CalibrateConfig:
    """A calibration.

    Attributes:
        data: file or folder of measured runs, syncs over shaped links and profiles
        out: calibration file to write
        gpu: fit only these GPU types, separated by commas; all that the data hold if none is given
        strict: refuse the first bad row instead of leaving it out
        json: file for the in-sample figures of merit, - = standard output and nothing else there
        run: run folder; outputs/calibrate-<time> if none is given
    """

    data: str
    out: str
    gpu: str | None = None
    strict: bool = False
    json: str | None = None
    run: str | None = None
