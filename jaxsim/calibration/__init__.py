"""Learning efficiency parameters from measured runs, and checking predictions against them.

files         Finding measured runs, profiles and syncs among files: what validate and calibrate
fitting       Fitting a calibration: maximum a posteriori under a robust loss, with intervals
measured      Measured training runs: the table that published step times and memory are
profiles      Profiles of operators, layers and collectives: what fixes parameters before any
shaped_links  Measured synchronisation over shaped links: DDP, local SGD and DiLoCo between four
validation    How well predictions agree with measured runs: the figures of merit, and refits
"""

from jaxsim.calibration.files import Measurements, find_measurements
from jaxsim.calibration.fitting import Fit, fit_in_stages, prior_belief
from jaxsim.calibration.measured import predict_runs, run_arrays
from jaxsim.calibration.profiles import Profile
from jaxsim.calibration.shaped_links import predict_sync_s
from jaxsim.calibration.validation import Prediction, leave_out_plans, merit, predict

__all__ = [
    "Fit",
    "Measurements",
    "Prediction",
    "Profile",
    "find_measurements",
    "fit_in_stages",
    "leave_out_plans",
    "merit",
    "predict",
    "predict_runs",
    "predict_sync_s",
    "prior_belief",
    "run_arrays",
]
