"""Does a fitted process match what it was not fitted to? Records of the process, made like the
measured ones (same intervals, same gaps, around their own median), beside the measured ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int, Key

from jaxsim.network.fitted_links import FittedLink, process_of_links
from jaxsim.network.fitting import PathFit, autocorrelation, combine, fit_path, normal_scores
from jaxsim.network.process import NetworkProcess, init_network, step_network
from jaxsim.network.replay import WIDE
from jaxsim.network.series import Series

LEVELS = (0.05, 0.25, 0.75, 0.95)
STATISTICS = ("p5", "p25", "p75", "p95", "outside")
LIMITS = (5.0, 5.0, 5.0, 5.0, 3.0)  # [percentage points] a fit may miss each by
LONGEST_GAP = 60  # intervals simulated of a gap; a longer one is shown as this long
COPIES = 300  # simulated records of each measured one
GROUPS = 5
LATER, CROSSED = "later part", "each group by the others"
OTHERS, REVERSED = "other paths", "other paths, reversed"


@jax.jit
def simulate(
    process: NetworkProcess, key: Key[Array, ""], steps: Int[Array, " T"]
) -> Float[Array, "T K K"]:
    """[T, K, K] bandwidth factors; `steps` is [T] int32."""

    def body(state, t):
        state, factor, _ = step_network(process, state, jax.random.fold_in(key, t), t)
        return state, factor

    return jax.lax.scan(body, init_network(process, key), steps)[1]


def replicate(
    series: Sequence[Series],
    links: tuple[FittedLink, ...],
    interval_s: float,
    rows: Int[np.ndarray, "R N"],
    seed: int,
) -> list[list[Float[np.ndarray, " _"]]]:
    """Simulated factors of every series, `rows` [R, N] giving the link behind each of R copies.

    Returns:
        R lists of N arrays [n], each around its own median, as a measured record is.
    """
    n_copies, n_series = rows.shape
    size = int(np.ceil(np.sqrt(rows.size)))
    grid = np.zeros(size * size, int)
    grid[: rows.size] = rows.ravel()
    process = process_of_links(links, grid.reshape(size, size), interval_s)
    times = [_closed_up(one.row) for one in series]
    # A multiple: records of about the same length share one compiled program.
    length = -(-(max(t[-1] for t in times) + 1) // 512) * 512
    out = simulate(process, jax.random.key(seed), jnp.arange(length, dtype=jnp.int32))
    paths = np.asarray(out).reshape(length, -1)[:, : rows.size].reshape(length, n_copies, n_series)
    picked = [[paths[t, r, n] for n, t in enumerate(times)] for r in range(n_copies)]
    return [[one / np.median(one) for one in copy] for copy in picked]


def _closed_up(row: np.ndarray) -> np.ndarray:
    return np.cumsum(np.minimum(np.diff(row, prepend=row[:1]), LONGEST_GAP))


def own_rows(n_series: int, copies: int = COPIES) -> Int[np.ndarray, "R N"]:
    """[R, N] every series is played by the link fitted to it."""
    return np.tile(np.arange(n_series), (copies, 1))


def drawn_rows(
    links: Sequence[FittedLink], n_series: int, seed: int, copies: int = COPIES
) -> Int[np.ndarray, "R N"]:
    """[R, N] every series is played by links drawn by weight, as a scenario draws.

    The draws of one series are stratified: over its copies every link comes as often as its weight
    says, so that the mean over copies is not at the mercy of a few draws.
    """
    weight = np.cumsum([link.weight for link in links])
    generator = np.random.default_rng(seed)
    columns = []
    for _ in range(n_series):
        at = (np.arange(copies) + generator.random()) / copies
        rows = np.searchsorted(weight / weight[-1], at)
        columns.append(generator.permutation(np.minimum(rows, len(links) - 1)))
    return np.stack(columns, axis=1)


def pooled(factors: Sequence[Float[np.ndarray, " _"]]) -> Float[np.ndarray, "5"]:
    """[5] deviation [%] at the quantiles LEVELS, and share [%] outside +-30 %."""
    everything = np.concatenate(list(factors))
    quantiles = 100.0 * (np.quantile(everything, LEVELS) - 1.0)
    return np.append(quantiles, 100.0 * np.mean(np.abs(everything - 1.0) > WIDE))


def pooled_autocorrelation(
    factors: Sequence[Float[np.ndarray, " _"]], series: Sequence[Series], lags: Sequence[int]
) -> tuple[Float[np.ndarray, " lags"], Int[np.ndarray, " lags"]]:
    """Rank autocorrelation by lag over all pairs of all paths, and the numbers of pairs, [lags]."""
    total, count = np.zeros(len(lags)), np.zeros(len(lags), int)
    for values, one in zip(factors, series, strict=True):
        correlation, pairs = autocorrelation(normal_scores(values), one.row, lags)
        total += np.where(pairs > 0, np.nan_to_num(correlation), 0.0) * pairs
        count += pairs
    return np.where(count > 0, total / np.maximum(count, 1), np.nan), count


@dataclasses.dataclass(frozen=True)
class Check:
    """One prediction of pooled movement beside what was measured; [5] each, by STATISTICS."""

    name: str
    measured: np.ndarray
    predicted: np.ndarray  # mean over the simulated copies
    low: np.ndarray  # 2.5th percentile of the copies
    high: np.ndarray  # 97.5th

    @property
    def error(self) -> Float[np.ndarray, "5"]:
        return self.predicted - self.measured

    @property
    def passed(self) -> bool:
        return bool((np.abs(self.error) <= LIMITS).all())


def compare(name: str, series: Sequence[Series], copies: Sequence[Sequence[np.ndarray]]) -> Check:
    """Compare R simulated copies of `series` with the series."""
    statistics = np.array([pooled(copy) for copy in copies])
    low, high = np.quantile(statistics, [0.025, 0.975], axis=0)
    measured = pooled([one.factor for one in series])
    return Check(name, measured, statistics.mean(axis=0), low, high)


def check_later(
    series: Sequence[Series], interval_s: float, kind: str, share: float, seed: int
) -> Check:
    """Fit the first `share` of every path's record, predict the rest of the same paths."""
    fits = [fit_path(one.first(share), interval_s, kind) for one in series]
    links = combine(fits, interval_s, kind)
    rest = [one.rest(share) for one in series]
    copies = replicate(rest, links, interval_s, own_rows(len(rest)), seed)
    return compare(LATER, rest, copies)


def check_others(
    series: Sequence[Series],
    fits: Sequence[PathFit],
    interval_s: float,
    kind: str,
    chosen: Sequence[int],
    seed: int,
    name: str = OTHERS,
    copies: int = COPIES,
) -> Check:
    """Take the fits of the `chosen` paths, predict the pooled movement of the others."""
    others = [i for i in range(len(series)) if i not in set(chosen)]
    made = _copies_of(others, series, fits, interval_s, kind, chosen, seed, copies)
    return compare(name, [series[i] for i in others], made)


def check_crossed(
    series: Sequence[Series],
    fits: Sequence[PathFit],
    interval_s: float,
    kind: str,
    seed: int,
    copies: int = COPIES,
) -> Check:
    """Deal the paths into groups, predict each from the fits of the others, pool all of them."""
    n_groups = min(GROUPS, len(series))
    parts, order = [], []
    for group in range(n_groups):
        held = list(range(group, len(series), n_groups))
        rest = [i for i in range(len(series)) if i not in held]
        parts.append(_copies_of(held, series, fits, interval_s, kind, rest, seed, copies))
        order += held
    made = [[one for part in parts for one in part[r]] for r in range(copies)]
    return compare(CROSSED, [series[i] for i in order], made)


def _copies_of(held, series, fits, interval_s, kind, chosen, seed, copies):
    """Simulated copies of the `held` series by links fitted to the `chosen` ones."""
    links = combine([fits[i] for i in chosen], interval_s, kind)
    rows = drawn_rows(links, len(held), seed, copies)
    return replicate([series[i] for i in held], links, interval_s, rows, seed)


def random_halves(n_series: int, count: int, seed: int) -> list[list[int]]:
    """Distinct random choices of half of the paths (the larger half)."""
    generator = np.random.default_rng(seed)
    size = (n_series + 1) // 2
    seen: dict[tuple[int, ...], None] = {}
    for _ in range(20 * count):
        if len(seen) == count:
            break
        choice = generator.permutation(n_series)[:size].tolist()
        seen.setdefault(tuple(sorted(choice)))
    return [list(choice) for choice in seen]


def ceiling(series: Sequence[Series], halves: Sequence[Sequence[int]]) -> Float[np.ndarray, "N 5"]:
    """[S, 5] errors of a forecast that knows all: the pooled record itself, against each half.

    How far one half of the paths is from all of them, which no process can foresee.
    """
    known = pooled([one.factor for one in series])
    rest = [[one.factor for i, one in enumerate(series) if i not in set(half)] for half in halves]
    return np.array([known - pooled(factors) for factors in rest])


def best_kind(checks: Mapping[str, Sequence[Check]]) -> str:
    """The kind whose worst error, in units of what is allowed, is smallest on average."""

    def score(kind: str) -> float:
        return float(np.mean([np.max(np.abs(c.error) / LIMITS) for c in checks[kind]]))

    return min(checks, key=score)
