"""One writer per run folder: a lock that ends with the process that holds it."""

from __future__ import annotations

import os
import weakref
from pathlib import Path
from typing import Any

from analysis.json_files import RecordError

try:
    import fcntl
except ImportError:  # not on this operating system: no lock
    fcntl = None  # type: ignore[assignment]


class FolderLock:
    """The lock on a run folder, for `owner`: until it is released, or the owner or the process ends."""

    def __init__(self, directory: Path, owner: Any) -> None:
        """Raises RecordError where another process, or another writer of this one, holds the lock."""
        self.release = lambda: None
        if fcntl is None:
            return
        handle = os.open(directory, os.O_RDONLY)
        self.release = weakref.finalize(owner, os.close, handle)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            raise RecordError(f"{directory}: another process is writing there") from None
        except OSError:  # a file system without locks
            self.release()
