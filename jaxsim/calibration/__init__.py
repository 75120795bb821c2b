"""Efficiencies learned from measured runs, and predictions checked against them.

measured      tables of training runs: step time and memory
profiles      profiles of operators, layers and collectives
shaped_links  synchronisation over shaped links: DDP, local SGD, DiLoCo
files         finds these among the files of a folder
fitting       the fit: maximum a posteriori under a robust loss, with intervals
validation    figures of merit, and refits that leave data out
"""

from jaxsim.calibration.files import Measurements, find_measurements
from jaxsim.calibration.fitting import Fitter, Posterior, fit_machines
from jaxsim.calibration.measured import predict_runs, run_arrays
from jaxsim.calibration.profiles import Profile
from jaxsim.calibration.shaped_links import predict_sync_s
from jaxsim.calibration.validation import Prediction, leave_out_plans, merit, predict

__all__ = [
    "Fitter",
    "Measurements",
    "Posterior",
    "Prediction",
    "Profile",
    "find_measurements",
    "fit_machines",
    "leave_out_plans",
    "merit",
    "predict",
    "predict_runs",
    "predict_sync_s",
    "run_arrays",
]
