"""What links and free GPUs may do next, fitted to what was measured so far, and to nothing else.

Each quantity is taken to be a drift that returns to its centre plus noise of every measurement: an
autoregression of order one, seen through white noise. How fast it returns, how far it strays and how
noisy it is are unknown, so a Kalman filter runs under every hypothesis of a grid, on every quantity.
A hypothesis counts by how well it predicted the quantity's own measurements, times how common it is
among all of them (empirical Bayes): links that move alike teach each other, and one that moves
differently is soon known by its own record.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Key

from jaxsim.pytree import Pytree

MEMORY = 0.98  # share of a hypothesis's record that is left after an interval
SURPRISE = (
    16.0  # squared deviations: a wild measurement says no more against a hypothesis than this
)
ROUNDS = 4  # of the shares of hypotheses among all quantities


class Hypotheses(NamedTuple):
    """[N] each, static: correlation time [intervals], standard deviations of drift and noise."""

    tau: Any
    drift: Any
    noise: Any


def grid(tau: tuple[float, ...], drift: tuple[float, ...], noise: tuple[float, ...]) -> Hypotheses:
    """Every combination."""
    return Hypotheses(*np.array(list(itertools.product(tau, drift, noise)), np.float32).T)


# The logarithm of a link's bandwidth over its base; the share of a domain's GPUs that are free, less
# the mean share. The smallest steps stand for what does not move at all.
LINKS = grid((2.0, 6.0, 20.0, 60.0, 240.0), (0.05, 0.15, 0.3, 0.5), (0.02, 0.08, 0.2))
GPUS = grid((2.0, 8.0, 25.0, 100.0), (0.002, 0.05, 0.15, 0.3), (0.002, 0.05, 0.12))


class Filter(Pytree):
    """What is known of E quantities under N hypotheses."""

    mean: Float[Array, "*batch N E"]  # of the drift now
    variance: Float[Array, "*batch N E"]
    record: Float[Array, "*batch N E"]  # discounted log likelihood of what was measured

    @staticmethod
    def of(size: int, hypotheses: Hypotheses) -> Filter:
        """Before anything was measured."""
        zeros = jnp.zeros((len(hypotheses.tau), size), jnp.float32)
        return Filter(zeros, zeros + jnp.asarray(hypotheses.drift)[:, None] ** 2, zeros)

    def measured(self, seen: Float[Array, " E"], hypotheses: Hypotheses) -> Filter:
        """Take in one interval's measurement: the drift moves on, then the measurement corrects it."""
        kept, fresh = _steps(hypotheses)
        mean, variance = kept * self.mean, kept**2 * self.variance + fresh**2
        spread = variance + jnp.asarray(hypotheses.noise)[:, None] ** 2
        off = seen[None] - mean
        gain = variance / spread
        fit = -0.5 * (jnp.log(spread) + jnp.minimum(off**2 / spread, SURPRISE))
        record = MEMORY * self.record + fit
        return Filter(mean + gain * off, (1.0 - gain) * variance, record)

    def weights(self, real: Bool[Array, " E"]) -> Float[Array, "N E"]:
        """[N, E] probability of each hypothesis, learned from the quantities that are `real`."""
        fit = jnp.exp(self.record - self.record.max(axis=0, keepdims=True))
        counted = real.astype(jnp.float32)[None]
        common = jnp.full((fit.shape[0], 1), 1.0 / fit.shape[0], jnp.float32)
        weights = fit
        for _ in range(ROUNDS):
            weights = fit * common
            weights = weights / weights.sum(axis=0, keepdims=True)
            common = jnp.sum(weights * counted, axis=1, keepdims=True) + 1e-3
            common = common / common.sum()
        return weights

    def expected(
        self, real: Bool[Array, " E"], hypotheses: Hypotheses, after: tuple[float, ...] = (1.0,)
    ) -> Float[Array, "A E"]:
        """[A, E] the means `after` so many intervals; 1 is the coming one."""
        weighted = self.weights(real) * self.mean
        left = jnp.exp(
            -jnp.asarray(after, jnp.float32)[:, None] / jnp.asarray(hypotheses.tau)[None]
        )
        return left @ weighted


class Prospect(NamedTuple):
    """What futures are drawn from: a filter, its hypotheses, which quantities are real [E] bool."""

    known: Filter
    hypotheses: Hypotheses
    real: Array


def sample_paths(
    key: Key[Array, ""], prospect: Prospect, futures: int, length: int
) -> Float[Array, "W H E"]:
    """[W, H, E] of the next H intervals in W futures: a hypothesis and where the drift is now are
    drawn for every quantity, then its path. Every second future mirrors the one before it."""
    known, hypotheses, real = prospect
    half, size = (futures + 1) // 2, real.shape[0]
    which_key, start_key, path_key = jax.random.split(key, 3)
    weights = jnp.log(jnp.maximum(known.weights(real), 1e-30))
    which = jax.random.categorical(which_key, weights, axis=0, shape=(half, size))

    def pick(values):
        return jnp.take_along_axis(values[None], which[:, None], axis=1)[:, 0]  # [half, E]

    def mirrored(draws):
        return jnp.stack([draws, -draws], axis=1).reshape(-1, *draws.shape[1:])[:futures]

    def each(column):
        """[W, E] a column of the hypotheses, as drawn."""
        return jnp.repeat(jnp.asarray(column)[which], 2, axis=0)[:futures]

    start = mirrored(jax.random.normal(start_key, (half, size)))
    steps = mirrored(jax.random.normal(path_key, (half, length, 2, size)))
    mean, variance = (
        jnp.repeat(pick(x), 2, axis=0)[:futures] for x in (known.mean, known.variance)
    )
    kept = jnp.exp(-1.0 / each(hypotheses.tau))
    fresh = each(hypotheses.drift) * jnp.sqrt(1.0 - kept**2)
    noise = each(hypotheses.noise)

    def onward(drift, step):
        drift = kept * drift + fresh * step[:, 0]
        return drift, drift + noise * step[:, 1]

    begin = mean + jnp.sqrt(variance) * start
    _, paths = jax.lax.scan(onward, begin, jnp.moveaxis(steps, 1, 0))
    return jnp.moveaxis(paths, 0, 1)


def _steps(hypotheses: Hypotheses) -> tuple[Array, Array]:
    """[N, 1] each: what is left of a drift after an interval, and what comes anew."""
    kept = jnp.exp(-1.0 / jnp.asarray(hypotheses.tau))[:, None]
    return kept, jnp.asarray(hypotheses.drift)[:, None] * jnp.sqrt(1.0 - kept**2)
