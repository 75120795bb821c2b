from .allocators import POLICIES
from .chooser import Choice, NoRoom, choose, costs_of, exhaustive, fitted
from .measure import Measurement, measure
from .predict import Prediction, predict
from .replay import Replayed, replay
from .settings import ROOM, MemorySettings
from .step import LlamaJob, Step, applied, options_of, units_of
from .trace import Event, Trace

__all__ = [
    "POLICIES",
    "ROOM",
    "Choice",
    "Event",
    "LlamaJob",
    "Measurement",
    "MemorySettings",
    "NoRoom",
    "Prediction",
    "Replayed",
    "Step",
    "Trace",
    "applied",
    "choose",
    "costs_of",
    "exhaustive",
    "fitted",
    "measure",
    "options_of",
    "predict",
    "replay",
    "units_of",
]
