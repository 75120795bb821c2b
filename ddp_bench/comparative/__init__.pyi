from .adapter import Adapter, NotRun, lines_of
from .entries import ENTRIES, REFERENCE, Entry
from .group import Group
from .judge import bootstrap_interval, disagreement, global_losses
from .settings import ROOM, ComparativeSettings
from .task import ADAMW, Task, own_rows

__all__ = [
    "ADAMW",
    "ENTRIES",
    "REFERENCE",
    "ROOM",
    "Adapter",
    "ComparativeSettings",
    "Entry",
    "Group",
    "NotRun",
    "Task",
    "bootstrap_interval",
    "disagreement",
    "global_losses",
    "lines_of",
    "own_rows",
]
