"""The eight KPIs as pure functions of what was played: nothing here simulates anything.

Arrays lead with [S] scenarios and [M] policy seeds (one for what is not learned); T counts decision
intervals. Everything is paired: row s is the same world for everybody. NaN marks a scenario in which
a figure is not defined, such as a saving against a rival that never ran.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from analysis.statistics.bootstrap import Statistic, bootstrap_interval

PASS, FAIL, OUT_OF_REACH = "pass", "fail", "out_of_reach"
STABLE_SHARE = 0.9  # of the oracle's progress, for an interval to count as stable
STALLED_PCT = -100.0  # what a subject that trains nothing saves where its rival trains


@dataclasses.dataclass(frozen=True)
class Goal:
    """What is promised of a KPI.

    Attributes:
        name: the KPI's; several goals may share it, and it passes if all of them do
        target: in `unit`
        unit: of value, interval, target and headroom
        at_least: larger is better; otherwise the value must stay at or below the target
        strict: the target itself is not good enough
        part: which of a KPI's goals this is, where it has several
    """

    name: str
    target: float
    unit: str
    at_least: bool
    strict: bool = False
    part: str | None = None

    def met_by(self, value: float) -> bool:
        """Is the value as good as promised?"""
        if self.strict:
            return value > self.target if self.at_least else value < self.target
        return value >= self.target if self.at_least else value <= self.target


TIME = Goal("training time", 25.0, "%", True)
UTILISATION = Goal("utilisation", 35.0, "%", True)
UTILISATION_JOBS = Goal("utilisation", 35.0, "%", True, part="many jobs")
WAN_USD = Goal("WAN cost", 30.0, "%", True, part="USD of egress")
WAN_GB = Goal("WAN cost", 30.0, "%", True, part="GB")
COVERAGE = Goal("Pareto coverage", 85.0, "%", True)
UPPER = Goal("decision latency", 1000.0, "ms", False, part="upper")
LOWER = Goal("decision latency", 100.0, "ms", False, part="lower")
JITTER_MEAN = Goal("jitter robustness", 10.0, "%", False, strict=True, part="mean")
JITTER_P95 = Goal("jitter robustness", 10.0, "%", False, strict=True, part="95th percentile")
RESPONSE = Goal("hierarchical response", 2.0, "s", False)
STABILITY = Goal("load stability", 99.0, "%", True)
GOALS = (
    TIME,
    UTILISATION,
    UTILISATION_JOBS,
    WAN_USD,
    WAN_GB,
    COVERAGE,
    UPPER,
    LOWER,
    JITTER_MEAN,
    JITTER_P95,
    RESPONSE,
    STABILITY,
)


@dataclasses.dataclass(frozen=True)
class Played:
    """What one scheduler did in one scene.

    Attributes:
        progress: [S, M, T] [training steps] in each interval, statistical efficiency included
        utilisation: [S, M] useful FLOPs over peak FLOPs of the available GPUs
        tokens: [S, M] trained
        egress_usd: [S, M] [USD] training and reconfiguration
        wan_gb: [S, M] [GB] likewise
    """

    progress: np.ndarray
    utilisation: np.ndarray
    tokens: np.ndarray
    egress_usd: np.ndarray
    wan_gb: np.ndarray

    @property
    def total(self) -> np.ndarray:
        """[S, M] [training steps]"""
        return self.progress.sum(axis=-1)


def time_to(progress: np.ndarray, budget: float) -> float:
    """Intervals until `budget` training steps are done, progress [T] being even within each."""
    done = np.concatenate([[0.0], np.cumsum(progress)])
    after = int(np.searchsorted(done, budget, side="left"))  # the first end at which it is done
    if after == len(done):
        return np.inf
    if after == 0:
        return 0.0
    return after - (done[after] - budget) / (done[after] - done[after - 1])


def time_saved_pct(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """[S, M] 100 (1 - our time / theirs) to process the same tokens: as many as the slower of the
    two has processed at the end of the episode. ours [S, M, T], theirs [S, 1 or M, T]; STALLED_PCT
    where we processed nothing and they did, NaN where they processed nothing."""
    ours, theirs = np.broadcast_arrays(np.asarray(ours, float), np.asarray(theirs, float))
    out = np.full(ours.shape[:2], np.nan)
    for cell in np.ndindex(*out.shape):
        own, other = np.cumsum(ours[cell])[-1], np.cumsum(theirs[cell])[-1]
        budget = min(own, other)
        if budget > 0:
            out[cell] = 100.0 * (1.0 - time_to(ours[cell], budget) / time_to(theirs[cell], budget))
        elif other > 0:
            out[cell] = STALLED_PCT
    return out


def rise_pct(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """100 (ours / theirs - 1); NaN where theirs is nothing."""
    return 100.0 * (_ratio(ours, theirs) - 1.0)


def saved_pct(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """100 (1 - ours / theirs); NaN where theirs is nothing: there is nothing to save."""
    return 100.0 * (1.0 - _ratio(ours, theirs))


def per_token(total: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """total / tokens; NaN where no token was trained."""
    return _ratio(total, tokens)


def stable_pct(ours: np.ndarray, oracle: np.ndarray) -> np.ndarray:
    """[S, M] share of the intervals with progress, and at least STABLE_SHARE of the oracle's in the
    same interval; both [S, M, T]. A failed or stalled step is no progress."""
    return 100.0 * ((ours > 0) & (ours >= STABLE_SHARE * oracle)).mean(axis=-1)


def percentile(q: float) -> Statistic:
    """The q-th percentile as a statistic for `bootstrap_interval`."""
    return lambda values, axis=-1: np.percentile(values, q, axis=axis)


def entry(
    goal: Goal,
    rival: str | None,
    values: np.ndarray | None,
    headroom: np.ndarray | None = None,
    statistic: Statistic = np.mean,
    **further: Any,
) -> dict[str, Any]:
    """One row of the scoreboard.

    Args:
        goal: what is promised.
        rival: whom the value is measured against; None where it stands alone.
        values: [N] or [S, M] of which `statistic` is the value; None where nothing was measured.
        headroom: the same of the best that is possible, or is known; None where nothing is.
        statistic: takes an array and `axis`.
        further: keys added as they are.

    Scenarios in which anything is undefined are left out for all. The status is of the value, not
    of its interval: out_of_reach where it misses the target and the best possible does, too.
    """
    row = {"name": goal.name, "part": goal.part, "rival": rival, "value": None}
    row |= {"ci95": [None, None], "target": goal.target, "unit": goal.unit, "headroom": None}
    row |= {"status": FAIL, "n": 0, **further}
    if values is None:
        return row
    cells = np.asarray(values, float)
    cells = cells.reshape(len(cells), -1)
    known = np.isfinite(cells).all(axis=1)
    best = None if headroom is None else np.asarray(headroom, float).reshape(len(cells), -1)
    if best is not None:
        known &= np.isfinite(best).all(axis=1)
    if not known.any():
        return row
    interval = bootstrap_interval(cells[known], statistic)
    row |= {"value": interval["estimate"], "ci95": [interval["lo"], interval["hi"]]}
    row |= {"n": int(known.sum()), "status": PASS if goal.met_by(interval["estimate"]) else FAIL}
    if best is not None:
        row["headroom"] = float(statistic(best[known].reshape(1, -1), axis=-1)[0])
        if row["status"] == FAIL and not goal.met_by(row["headroom"]):
            row["status"] = OUT_OF_REACH
    return row


def against(ours: Played, rival: str, theirs: Played, best: Played) -> list[dict]:
    """The rows on training time and utilisation against one rival."""
    return [
        entry(
            TIME,
            rival,
            time_saved_pct(ours.progress, theirs.progress),
            time_saved_pct(best.progress, theirs.progress),
        ),
        entry(
            UTILISATION,
            rival,
            rise_pct(ours.utilisation, theirs.utilisation),
            rise_pct(best.utilisation, theirs.utilisation),
        ),
    ]


def shared_use(
    ours: np.ndarray | None,
    rival: str,
    theirs: np.ndarray | None,
    n_jobs: int,
    most: np.ndarray | None = None,
) -> dict:
    """The row on the utilisation of a cluster that many jobs share; utilisations [S, 1 or M], None =
    not measured. `most` [S, 1] is what every job alone on the idle cluster would come to."""
    known = ours is not None and theirs is not None
    rise = rise_pct(ours, theirs) if known else None
    best = rise_pct(most, theirs) if known and most is not None else None
    return entry(UTILISATION_JOBS, rival, rise, best, n_jobs=n_jobs)


def traffic(ours: Played, rival: str, theirs: Played, bests: list[Played]) -> list[dict]:
    """The rows on WAN cost against one rival.

    `bests` are what the headroom is taken from, in each scenario the one that saves most:
    clairvoyant maximises progress, so that it bounds no saving, and a plan that stays in one domain
    sends nothing.
    """
    rows = []
    for goal, field in ((WAN_USD, "egress_usd"), (WAN_GB, "wan_gb")):

        def saving(one, field=field):
            cost = per_token(getattr(theirs, field), theirs.tokens)
            saved = saved_pct(per_token(getattr(one, field), one.tokens), cost)
            return np.where((cost > 0) & (one.tokens <= 0), STALLED_PCT, saved)

        rows.append(entry(goal, rival, saving(ours), np.max([saving(b) for b in bests], axis=0)))
    return rows


def robustness(moving: Played, steady: Played, best: tuple[Played, Played]) -> list[dict]:
    """The rows on jitter: what it costs in throughput. The headroom is what it costs `best`,
    clairvoyant, moving and steady."""
    loss, least = (saved_pct(m.total, s.total) for m, s in ((moving, steady), best))
    return [
        entry(goal, None, loss, least, statistic)
        for goal, statistic in ((JITTER_MEAN, np.mean), (JITTER_P95, percentile(95.0)))
    ]


def stability(ours: Played, oracle: Played, best: Played) -> dict:
    """The row on load; the headroom is the share of `best`, clairvoyant."""
    shares = (stable_pct(one.progress, oracle.progress) for one in (ours, best))
    return entry(STABILITY, "replan_oracle", *shares)


def latency(taken_ms: np.ndarray) -> list[dict]:
    """The rows on decision time, 99th percentile. One call decides on both levels, so that its time
    bounds each of them."""
    return [entry(goal, None, taken_ms, statistic=percentile(99.0)) for goal in (UPPER, LOWER)]


def _ratio(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    a, b = np.asarray(a, float), np.asarray(b, float)
    return np.divide(a, b, out=np.full(np.broadcast(a, b).shape, np.nan), where=b > 0)
