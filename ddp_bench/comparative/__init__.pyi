from .entries import ENTRIES, REFERENCE, Entry
from .group import Group
from .judge import bootstrap_interval, disagreement, global_losses
from .settings import ROOM, ComparativeSettings

__all__ = [
    "ENTRIES",
    "REFERENCE",
    "ROOM",
    "ComparativeSettings",
    "Entry",
    "Group",
    "bootstrap_interval",
    "disagreement",
    "global_losses",
]
