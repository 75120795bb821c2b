from .collective_model import CollectiveModel, fit_collective, left_out_errors
from .collectives import COLLECTIVES, Point, measure_collectives
from .operators import Operator, measure_operators
from .settings import ROOM, MicrobenchSettings

__all__ = [
    "COLLECTIVES",
    "ROOM",
    "CollectiveModel",
    "MicrobenchSettings",
    "Operator",
    "Point",
    "fit_collective",
    "left_out_errors",
    "measure_collectives",
    "measure_operators",
]
