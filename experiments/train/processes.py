"""Several processes that train one policy by `jax.distributed`: who they are, and what they share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from agents.hi_ppo.exact import PARTS
from experiments.train.config import Processes
from jaxsim.files import InputError

PATIENCE_S = 120  # for all processes to come


def join(processes: Processes) -> Mesh | None:
    """Wait for all processes; the mesh of their devices, None for a process alone.

    Raises InputError where they do not come together.
    """
    if processes.count == 1:
        return None
    try:
        jax.distributed.initialize(
            *(processes.coordinator, processes.count, processes.index),
            initialization_timeout=PATIENCE_S,
        )
    except RuntimeError as error:
        what = str(error).splitlines()[0]
        raise InputError(f"train: processes.coordinator: {processes.coordinator}: {what}") from None
    mesh = Mesh(np.array(jax.devices()), (PARTS,))
    # The first message connects them, and may take 30 s: now, while all are here.
    agreed(False, mesh)
    return mesh


def shared(tree: Any, mesh: Mesh | None) -> Any:
    """Arrays that all processes hold alike, as arrays of the mesh; a process alone keeps its own."""
    if mesh is None:
        return tree
    return jax.device_put(own(tree), NamedSharding(mesh, PartitionSpec()))


def own(tree: Any) -> Any:
    """The same as NumPy arrays of this process."""
    return jax.tree.map(np.asarray, tree)


def agreed(flag: bool, mesh: Mesh | None) -> bool:
    """Whether any process says so."""
    if mesh is None:
        return flag
    return bool(np.any(multihost_utils.process_allgather(np.asarray(flag))))


class Unrecorded:
    """Stands for the run folder's writer in processes that keep no records."""

    def __init__(self, folder: str | None) -> None:
        self.dir = Path(folder or ".")

    def append(self, *_: Any) -> None:
        """Nothing."""

    def truncate(self, *_: Any) -> None:
        """Nothing."""
