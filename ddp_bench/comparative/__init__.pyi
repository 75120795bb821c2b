from .entries import ENTRIES, REFERENCE, Entry
from .frameworks import ADAMW, Adapter, NotRun, Task, lines_of, own_rows
from .group import Group
from .judge import bootstrap_interval, disagreement, global_losses
from .settings import ROOM, ComparativeSettings

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
