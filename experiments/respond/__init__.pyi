from .config import RespondConfig
from .handed import hand_over
from .measurements import Measured, drawn, stamped
from .responder import Proposal, Responder, make_responder

__all__ = [
    "Measured",
    "Proposal",
    "RespondConfig",
    "Responder",
    "drawn",
    "hand_over",
    "make_responder",
    "stamped",
]
