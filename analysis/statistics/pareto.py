"""Trade-offs: fronts of points whose coordinates are all to be small, and how well they are covered."""

from __future__ import annotations

import moocore
import numpy as np

REFERENCE = 1.1  # of the hypervolume, in units of the front's worst value of each objective


def front(points: np.ndarray) -> np.ndarray:
    """[F, D] the points [N, D] that no other dominates, each once; points that are not finite (what
    cannot be had) are left out."""
    points = np.asarray(points, float)
    points = points[np.isfinite(points).all(axis=1)]
    return points[moocore.is_nondominated(points)] if len(points) else points


def covered(exact: np.ndarray, points: np.ndarray, epsilon: float) -> np.ndarray:
    """[F] bool: does some point [N, D] reach the front's point within a factor 1 + `epsilon` in
    every objective?

    Multiplicative epsilon-dominance (Laumanns et al., Evolutionary Computation 10(3), 2002);
    objectives are positive.
    """
    near = points[None, :, :] <= (1.0 + epsilon) * exact[:, None, :]
    return near.all(axis=2).any(axis=1)


def hypervolume_ratio(exact: np.ndarray, points: np.ndarray) -> float:
    """The volume that the points dominate over that of the exact front, 0 to 1.

    Both are measured from REFERENCE times the front's worst value of each objective, so that units
    do not matter and the front's ends count (Zitzler and Thiele, IEEE TEC 3(4), 1999).
    """
    worst = np.maximum(exact.max(axis=0), 1e-12)
    reference = np.full(exact.shape[1], REFERENCE)
    points = front(points) / worst
    inside = points[(points < reference).all(axis=1)]
    if not len(inside):
        return 0.0
    volume = moocore.hypervolume(inside, ref=reference)
    return float(volume / moocore.hypervolume(exact / worst, ref=reference))


def front_note(rival: str, size: float, n_scored: int, n_family: int, ratio: float) -> str:
    """What figures on a front of plans are of, `size` being its mean number of points."""
    return (
        f"The {rival} is over {n_scored:,} plans, added candidates included (the family has "
        f"{n_family:,}), and has {size:.0f} points on average; hypervolume ratio {ratio:.2f}. It "
        "is of time, WAN bytes and price: all GPUs being free, utilisation is a constant over the time."
    )
