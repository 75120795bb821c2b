"""Fit the link processes of `jaxsim.network` to measured series, one path at a time.

What a single path cannot tell alone is shared: how often a path enters another state rests on few
episodes, so shares of time are drawn towards that of all paths.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np
import scipy

from jaxsim.network.fitted_links import BODY_LIMITS, FittedLink
from jaxsim.network.series import Series

OUTAGE_BELOW = 0.5  # of the median rate: what is lower is an outage
SHORT_LAGS = tuple(range(1, 13))  # intervals; bursts of tests are hardly longer
LONG_LAGS = tuple(range(1, 501))  # intervals; from one burst to the next
MAX_TAU = 500.0  # intervals; a memory much longer than the records looks like a constant
LEAST_SCALE = 1e-4
PRIOR_TRIALS = 1.0  # a path that shows one episode is half itself, half like all paths

Group = dict[str, float]


def quantile_levels(n: int) -> np.ndarray:
    """[n] plotting positions of an ordered sample (Hazen)."""
    return (np.arange(n) + 0.5) / n


def fit_sides(log_factor: np.ndarray, tails: bool = True) -> Group:
    """Fit dip_scale, dip_tail, peak_scale and peak_tail around 0 to logs of factors.

    Each side's ordered values are matched to the quantiles of `heavy_tail`, with a loss that grows
    linearly: the few largest must not decide on the many.
    """
    ordered = np.sort(log_factor)
    z = scipy.special.ndtri(quantile_levels(len(ordered)))
    fit: Group = {}
    for name, side in (("dip", z < 0), ("peak", z > 0)):
        at = z[side]
        values = np.maximum(np.sign(at) * ordered[side], 0.0)
        spread = max(float(np.median(values) / 0.6745), LEAST_SCALE)

        def miss(parameters, at=at, values=values, spread=spread):
            scale, tail = parameters[0], parameters[1] if tails else 0.0
            return (scale * np.abs(at) * np.exp(0.5 * tail * at * at) - values) / spread

        size = 2 if tails else 1
        bounds = ([LEAST_SCALE, 0.0][:size], [2.0, 1.0][:size])
        start = [min(spread, 1.9), 0.1][:size]
        found = scipy.optimize.least_squares(miss, start, bounds=bounds, loss="soft_l1").x
        fit[f"{name}_scale"] = float(found[0])
        fit[f"{name}_tail"] = float(found[1]) if tails else 0.0
    return fit


def normal_scores(values: np.ndarray) -> np.ndarray:
    """[n] standard normal numbers of the same order."""
    return scipy.special.ndtri((scipy.stats.rankdata(values) - 0.5) / len(values))


def autocorrelation(values: np.ndarray, row: np.ndarray, lags: Sequence[int] = SHORT_LAGS):
    """Autocorrelation by lag, over pairs of intervals that are exactly so far apart.

    Returns:
        [len(lags)] correlations, NaN where there is no pair, and [len(lags)] numbers of pairs.
    """
    centred = values - values.mean()
    variance = max(float(np.mean(centred**2)), 1e-12)
    out, count = np.full(len(lags), np.nan), np.zeros(len(lags), int)
    for k, lag in enumerate(lags):
        later = np.minimum(np.searchsorted(row, row + lag), len(row) - 1)
        paired = row[later] == row + lag
        count[k] = paired.sum()
        if count[k]:
            out[k] = np.mean(centred[paired] * centred[later[paired]]) / variance
    return out, count


def fit_memory(values: np.ndarray, row: np.ndarray) -> tuple[float, float]:
    """Share of the variance without memory, and correlation time [intervals] of the rest.

    A path whose correlations at short lags could be chance (below two standard errors) gets none.
    """
    correlation, count = autocorrelation(normal_scores(values), row, LONG_LAGS)
    known = count > 0
    lags = np.array(LONG_LAGS)
    early = known & (lags <= 3)
    if not early.any():
        return 1.0, 1.0
    mean_early = np.average(correlation[early], weights=count[early])
    if mean_early < 2.0 / math.sqrt(count[early].sum()):
        return 1.0, 1.0

    def miss(parameters):
        white, log_tau = parameters
        model = (1.0 - white) * np.exp(-lags[known] / np.exp(log_tau))
        return np.sqrt(count[known]) * (model - correlation[known])

    bounds = ([0.0, math.log(0.2)], [1.0, math.log(MAX_TAU)])
    starts = [(0.3, 0.0), (0.5, 2.0), (0.1, 1.0)]
    fits = [scipy.optimize.least_squares(miss, start, bounds=bounds) for start in starts]
    white, log_tau = min(fits, key=lambda fit: fit.cost).x
    return float(white), float(np.exp(log_tau))


def _body(log_factor: np.ndarray, row: np.ndarray, interval_s: float, tails: bool = True) -> Group:
    """The body group of values whose median is the centre."""
    centre = float(np.median(log_factor))
    white, tau = fit_memory(log_factor, row)
    sides = fit_sides(log_factor - centre, tails)
    return {"centre": math.exp(centre), **sides, "white": white, "tau_s": tau * interval_s}


Fit = tuple[dict[str, Group], np.ndarray | None]  # groups, and [n] bool: in the other state


def fit_uniform(series: Series, interval_s: float) -> Fit:
    """An amplitude that covers as wide a range as the middle 90 % of the factors."""
    low, high = np.quantile(series.factor, [0.05, 0.95])
    return {"uniform": {"amplitude": min(float(high - low) / 1.8, 1.0)}}, None


def fit_ou(series: Series, interval_s: float) -> Fit:
    """Standard deviation and correlation time of the factors themselves."""
    correlation, count = autocorrelation(series.factor, series.row, (1,))
    first = correlation[0] if count[0] else 0.0
    tau = -1.0 / math.log(first) if first > 2.0 / math.sqrt(count[0] + 1) else 0.2
    sigma = min(float(series.factor.std()), 2.0)
    return {"drift": {"sigma": sigma, "tau_s": min(tau, MAX_TAU) * interval_s}}, None


def fit_heavy(series: Series, interval_s: float) -> Fit:
    """The two-sided heavy tail."""
    return {"body": _body(np.log(series.factor), series.row, interval_s)}, None


def fit_outage(series: Series, interval_s: float) -> Fit:
    """Gilbert-Elliott: intervals below half of the median rate are outages, the rest is the body."""
    out = series.factor < OUTAGE_BELOW
    body = _body(np.log(series.factor[~out]), series.row[~out], interval_s)
    return {"body": body, "outage": _state(out, series, interval_s, default_level=0.25)}, out


def fit_regime(series: Series, interval_s: float) -> Fit:
    """Two log-normal states, by maximum likelihood of the hidden chain over the gaps."""
    x = np.log(series.factor)
    posterior = hidden_states(x, np.diff(series.row).astype(float))
    other = posterior > 0.5
    level = float(np.median(x[other]) - np.median(x[~other])) if other.any() else 0.0
    body = _body(x - level * other, series.row, interval_s, tails=False)
    state = _state(other, series, interval_s, default_level=1.0)
    state["level"] = float(np.clip(math.exp(level), BODY_LIMITS[0], BODY_LIMITS[1]))
    return {"body": body, "regime": state}, other


def _state(other: np.ndarray, series: Series, interval_s: float, default_level: float) -> Group:
    """The group of a chain seen as booleans; its share is that of this path alone."""
    share, stay = chain_of(other, series.row)
    level, rtt = default_level, 1.0
    if other.any():
        level = float(np.exp(np.log(series.factor[other]).mean()))
        if series.rtt is not None:
            rtt = float(np.median(series.rtt[other]) / np.median(series.rtt[~other]))
    return {
        "level": float(np.clip(level, *BODY_LIMITS)),
        "rtt": float(np.clip(rtt, 0.1, 20.0)),
        "share": share,
        "stay_s": stay * interval_s,
    }


def chain_of(other: np.ndarray, row: np.ndarray) -> tuple[float, float]:
    """Share of the time in the other state, and mean stay in it [intervals], at least one.

    The stay is Gilbert's estimate from neighbouring intervals: one over the share of those that
    the link leaves.
    """
    near = np.diff(row) == 1
    begun = other[:-1] & near
    left = int((begun & ~other[1:]).sum())
    stay = (int(begun.sum()) + 1.0) / (left + 0.5) if other.any() else 1.0
    return float(np.clip(other.mean(), 0.0, 0.9)), float(np.clip(stay, 1.0, MAX_TAU))


def hidden_states(x: np.ndarray, gaps: np.ndarray) -> np.ndarray:
    """[n] probability that each value belongs to the less common of two states.

    States are Gaussian with one standard deviation; the chain is in continuous time, so that a gap
    of many intervals forgets. Maximum likelihood from several starts, then forward and backward.
    """
    spread = max(float(x.std()), 1e-3)

    def likelihood(parameters):
        return -_filter(x, gaps, parameters, spread)[0]

    starts = [(0.0, shift, -1.0, -2.0, 2.0) for shift in (-3.0, -1.0, 1.0)]
    how = {"method": "Nelder-Mead", "options": {"maxiter": 300, "xatol": 1e-2, "fatol": 1e-2}}
    fits = [scipy.optimize.minimize(likelihood, start, **how) for start in starts]
    best = min(fits, key=lambda fit: fit.fun).x
    _, forward, densities, chain = _filter(x, gaps, best, spread)
    posterior = _smooth(forward, densities, chain, gaps)
    return 1.0 - posterior if posterior.mean() > 0.5 else posterior


def _filter(x, gaps, parameters, spread):
    """Log-likelihood, [n] filtered probability of state 1, [n, 2] densities, (share, tau)."""
    at, shift, log_sd, logit_share, log_tau = parameters
    sd = spread * math.exp(min(max(log_sd, -4.0), 1.0))
    share, tau = (
        scipy.special.expit(logit_share),
        math.exp(min(max(log_tau, -2.0), math.log(MAX_TAU))),
    )
    means = spread * np.array([at, at + shift]) + np.median(x)
    # A floor: one wild value must not make the likelihood zero.
    densities = np.exp(-0.5 * ((x[:, None] - means) / sd) ** 2) / sd + 1e-9
    memory = np.exp(-gaps / tau)
    total, p, forward = 0.0, float(share), np.empty(len(x))
    for i, (normal, other) in enumerate(densities.tolist()):
        if i:
            p = share + (p - share) * memory[i - 1]
        both = (1.0 - p) * normal + p * other
        p = p * other / both
        total += math.log(both)
        forward[i] = p
    return total, forward, densities, (share, tau)


def _smooth(forward, densities, chain, gaps):
    """[n] probability of state 1 given the whole record."""
    share, tau = chain
    ratio, out = 1.0, np.empty(len(forward))  # of the likelihood of what follows, 1 over 0
    for i in range(len(forward) - 1, -1, -1):
        if i < len(forward) - 1:
            memory = math.exp(-gaps[i] / tau)
            other = densities[i + 1, 1] * ratio
            from_other = densities[i + 1, 0] * (1 - share) * (1 - memory)
            from_other += other * (share + (1 - share) * memory)
            from_usual = densities[i + 1, 0] * (1 - share * (1 - memory))
            from_usual += other * share * (1 - memory)
            ratio = min(max(from_other / from_usual, 1e-9), 1e9)
        odds = forward[i] * ratio
        out[i] = odds / (odds + 1.0 - forward[i])
    return out


_FITS: dict[str, Callable[[Series, float], Fit]] = {
    "uniform": fit_uniform,
    "ou": fit_ou,
    "regime": fit_regime,
    "heavy": fit_heavy,
    "outage": fit_outage,
}


@dataclasses.dataclass(frozen=True)
class PathFit:
    """The groups of one kind fitted to one path alone, before paths learn from each other."""

    path: str
    n: int  # intervals
    groups: dict[str, Group]


def fit_path(series: Series, interval_s: float, kind: str) -> PathFit:
    """Fit one kind of process to one path."""
    groups, other = _FITS[kind](series, interval_s)
    if series.rtt is not None:
        rtt = series.rtt if other is None else series.rtt / np.where(other, groups[kind]["rtt"], 1)
        groups["rtt"] = fit_sides(np.log(rtt / np.median(rtt)))
    return PathFit(series.path, len(series), groups)


def combine(fits: Sequence[PathFit], interval_s: float, kind: str) -> tuple[FittedLink, ...]:
    """Links of one kind from the fits of their paths; the round trip stays if all have it."""
    groups = [{name: dict(group) for name, group in fit.groups.items()} for fit in fits]
    if kind in ("regime", "outage"):
        _pool_shares([g[kind] for g in groups], [fit.n for fit in fits], interval_s)
    if not all("rtt" in g for g in groups):
        groups = [{name: x for name, x in g.items() if name != "rtt"} for g in groups]
    return tuple(
        FittedLink(fit.path, float(fit.n), group) for fit, group in zip(fits, groups, strict=True)
    )


def _pool_shares(states: list[Group], intervals: list[int], interval_s: float) -> None:
    """Draw the shares towards that of all paths, in place.

    What is independent is an episode, not an interval: a record of n intervals with a mean stay of
    m counts as n / m trials, and the paths together as PRIOR_TRIALS more.
    """
    share = np.array([state["share"] for state in states])
    everywhere = np.average(share, weights=intervals)
    for state, n in zip(states, intervals, strict=True):
        trials = max(n * interval_s / state["stay_s"], 1.0)
        pooled = (PRIOR_TRIALS * everywhere + trials * state["share"]) / (PRIOR_TRIALS + trials)
        state["share"] = float(np.clip(pooled, 0.0, 0.9))
