from .config import RespondConfig
from .measurements import Measured, stamped
from .responder import Proposal, Responder, make_responder

__all__ = ["Measured", "Proposal", "RespondConfig", "Responder", "make_responder", "stamped"]
