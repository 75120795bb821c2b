"""What a scheduler did in scenes that were never played."""

import numpy as np

from analysis.statistics.kpi import Played


def played(progress, usd=1.0, gb=1.0, utilisation=None):
    """From progress [S, M, T] and totals per scenario."""
    progress = np.asarray(progress, float)
    shape = progress.shape[:2]
    return Played(
        progress=progress,
        utilisation=np.broadcast_to(0.1 if utilisation is None else utilisation, shape),
        tokens=progress.sum(axis=-1) * 10.0,
        egress_usd=np.broadcast_to(np.asarray(usd, float), shape),
        wan_gb=np.broadcast_to(np.asarray(gb, float), shape),
    )
