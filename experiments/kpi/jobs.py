"""The key figure that one job cannot show: how well many jobs use a cluster that they share."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from agents.registry import jobs_names, names
from experiments.common import made_once
from experiments.evaluate import EvaluateConfig, JobsEvaluation, requested_for_jobs

JOBS_FILE = Path(__file__).parents[1] / "configs" / "suites" / "jobs-8.csv"
STEPS = 360  # intervals: two and a half times as long as jobs arrive in JOBS_FILE


class SharedCluster:
    """One cluster and the jobs that arrive on it."""

    def __init__(self, config: EvaluateConfig, n_domains: int | None = None):
        """With masked domains up to `n_domains`. Raises InputError for a file that says nothing of
        use."""
        self._evaluation = JobsEvaluation(config, n_domains)
        self._utilisation = made_once(self._play)

    @property
    def n_jobs(self) -> int:
        """How many arrive within the episode."""
        return self._evaluation.n_counted

    def alone(self) -> np.ndarray:
        """[S, 1] of the jobs if each had the cluster to itself: no scheduler's is higher."""
        return self._evaluation.utilisation_alone()[:, None]

    def utilisation(self, name: str) -> np.ndarray | None:
        """[S, M] useful FLOPs over peak FLOPs of the available GPUs while somebody is there, for a
        name or a checkpoint, played once; None for a scheduler that plans for one job alone."""
        return self._utilisation(name)

    def _play(self, name: str) -> np.ndarray | None:
        if name in names() and name not in jobs_names():
            return None
        played = [
            [metrics.utilisation for metrics in self._evaluation.play(one)]
            for one in requested_for_jobs(name, None)
        ]
        return np.array(played, float).T


def shared_cluster(
    cluster: str | None, jobs: str | None, rivals: tuple[str, ...], n_domains: int, **keys
) -> SharedCluster:
    """`cluster`, masked domains up to `n_domains`, with a jobs file (JOBS_FILE if none) against rivals;
    `keys` are others of EvaluateConfig."""
    file = str(JOBS_FILE) if jobs is None else jobs
    names = ",".join(rivals)
    return SharedCluster(
        EvaluateConfig(cluster=cluster, jobs=file, schedulers=names, steps=STEPS, **keys), n_domains
    )
