"""What a calibration is asked for."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class CalibrateConfig:
    """A calibration.

    Attributes:
        data: file or folder of measured runs, syncs over shaped links and profiles; or the JSON of
            hippo microbench, to which the ranks of that machine are fitted
        out: calibration file to write
        gpu: fit only these GPU types, separated by commas; all that the data hold if none is given
        adapt: adapt this software stack to the data, which are runs of it; of the hardware's
            parameters only the share of peak of matrix products moves
        base: calibration file to adapt; the fits that ship if none is given
        leave_out: leave out every group of runs in turn, for the bands and the table in the file
        strict: refuse the first bad row instead of leaving it out
        json: file for the in-sample figures of merit, - = standard output and nothing else there
        run: run folder; outputs/calibrate-<time> if none is given
    """

    data: str
    out: str
    gpu: str | None = None
    adapt: str | None = None
    base: str | None = None
    leave_out: bool = True
    strict: bool = False
    json: str | None = None
    run: str | None = None
