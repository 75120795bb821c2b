from .adapter import Adapter, NotRun, lines_of, named
from .task import ADAMW, RANKS, Task, own_rows

__all__ = ["ADAMW", "RANKS", "Adapter", "NotRun", "Task", "lines_of", "named", "own_rows"]
