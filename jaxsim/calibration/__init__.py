"""Efficiencies learned from measured runs, and predictions checked against them.

measured      tables of training runs: step time and memory
profiles      profiles of operators, layers and collectives
shaped_links  synchronisation over shaped links: DDP, local SGD, DiLoCo
files         finds these among the files of a folder
hierarchy     machines, and the deviations that GPU types and stacks share
documented    what is published of architectures, kernels and stacks before any fit
fitting       one fit of all machines: maximum a posteriori under a robust loss, with intervals
choosing      which parameters a stack gets of its own, within every fit
left_out      groups of runs left out of the fit and predicted by it
bands         bands of model error from these, and whether they hold
merits        the table of left-out errors
entries       what a calibration file holds of a fit
adapting      a stack adapted to a few runs of it
validation    figures of merit
"""

from jaxsim.calibration.adapting import adapt
from jaxsim.calibration.bands import coverage, stack_bands, unseen_band
from jaxsim.calibration.choosing import Choice, fit_machines
from jaxsim.calibration.documented import documented_belief
from jaxsim.calibration.entries import (
    adapted_entries,
    file_entries,
    fit_name,
    own_parameters,
    shown_groups,
    told_by,
)
from jaxsim.calibration.files import Measurements, find_measurements
from jaxsim.calibration.fitting import Fitter, Posterior
from jaxsim.calibration.hierarchy import Machine
from jaxsim.calibration.left_out import LeftOutRow, features, leave_out, left_out_groups
from jaxsim.calibration.measured import predict_runs, run_arrays
from jaxsim.calibration.merits import by_distance, by_size, left_out_table
from jaxsim.calibration.profiles import Profile
from jaxsim.calibration.shaped_links import predict_sync_s
from jaxsim.calibration.validation import Prediction, merit, predict

__all__ = [
    "Choice",
    "Fitter",
    "LeftOutRow",
    "Machine",
    "Measurements",
    "Posterior",
    "Prediction",
    "Profile",
    "adapt",
    "adapted_entries",
    "by_distance",
    "by_size",
    "coverage",
    "documented_belief",
    "features",
    "file_entries",
    "find_measurements",
    "fit_machines",
    "fit_name",
    "leave_out",
    "left_out_groups",
    "left_out_table",
    "merit",
    "own_parameters",
    "predict",
    "predict_runs",
    "predict_sync_s",
    "run_arrays",
    "shown_groups",
    "stack_bands",
    "told_by",
    "unseen_band",
]
