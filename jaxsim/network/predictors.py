"""Predict the bandwidth of a link from its last measurements: B_hat(t + dt) from a sliding window.

A window is the last W intervals, oldest first, of which some may not have been measured. A
predictor sees the window alone, so it works on a link it has never met: all of them are
equivariant, twice the bandwidth gives twice the prediction. Each is a pytree of what was fitted,
called on windows of any leading shape, such as [K, K, W]:

    predictor = fit_ar(train, order=4)
    predicted = predictor(values, valid)  # [..., W] twice -> [..., H]

Horizons, in intervals, are those of the data a predictor was fitted to.
"""

from __future__ import annotations

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct
from jax import Array

from jaxsim.pytree import Pytree

HIDDEN = 16
N_FEATURES = 5
_EWMA_GRID = np.append(np.geomspace(0.02, 0.9, 24), 1.0)


class Windows(Pytree):
    """What a predictor is fitted to and tried on."""

    values: Array  # [N, W] bandwidth, any unit; anything > 0 where not measured
    valid: Array  # [N, W] bool, measured; the last interval of a window always is
    targets: Array  # [N, H] bandwidth at the horizons
    known: Array  # [N, H] bool, the target was measured
    scale: Array  # [N] median bandwidth of the link: errors are relative to it


class Persistence(Pytree):
    """The last measurement stays."""

    n_horizons: int = struct.field(pytree_node=False)

    def __call__(self, values: Array, valid: Array) -> Array:
        return _spread(values[..., -1], self.n_horizons)


class RunningMedian(Pytree):
    """The median of the window stays."""

    n_horizons: int = struct.field(pytree_node=False)

    def __call__(self, values: Array, valid: Array) -> Array:
        return _spread(window_median(values, valid), self.n_horizons)


class Ewma(Pytree):
    """Exponentially weighted mean of the window, with a weight for each horizon."""

    alpha: Array  # [H] weight of the last interval, 0 to 1 (1 = persistence)

    def __call__(self, values: Array, valid: Array) -> Array:
        alpha = jnp.broadcast_to(self.alpha, (*values.shape[:-1], *self.alpha.shape))
        return _weighted(values, valid, alpha)


class Autoregression(Pytree):
    """The median of the window plus a linear function of the last p deviations from it.

    One set of coefficients for each horizon (a direct forecast: nothing is iterated).
    """

    coefficients: Array  # [H, p] of the last intervals, oldest first

    def __call__(self, values: Array, valid: Array) -> Array:
        centre = window_median(values, valid)
        order = self.coefficients.shape[-1]
        deviation = _deviations(values, valid, centre)[..., -order:]
        change = jnp.einsum("...p,hp->...h", deviation, self.coefficients)
        # A linear function of a wild window may go below nothing.
        return centre[..., None] * jnp.maximum(1.0 + change, 0.01)


class _Gate(nn.Module):
    """From what a window looks like: how far, and after which memory, to leave its median."""

    n_horizons: int

    @nn.compact
    def __call__(self, features: Array) -> tuple[Array, Array]:
        hidden = nn.tanh(nn.Dense(HIDDEN)(features))
        start = nn.initializers.normal(0.01)
        # It starts close to the median and learns where a link has a memory worth following.
        gate = nn.Dense(self.n_horizons, kernel_init=start, bias_init=nn.initializers.constant(-2))
        return jax.nn.sigmoid(gate(hidden)), jax.nn.sigmoid(
            nn.Dense(self.n_horizons, kernel_init=start)(hidden)
        )


class Learned(Pytree):
    """Between the window's median and an exponentially weighted mean, as a small network decides.

    It stays within what was measured, so it cannot run away on a link unlike those it has seen.
    """

    parameters: dict
    n_horizons: int = struct.field(pytree_node=False)

    def __call__(self, values: Array, valid: Array) -> Array:
        centre = window_median(values, valid)[..., None]
        features = _features(_deviations(values, valid, centre[..., 0]), valid)
        gate, alpha = _Gate(self.n_horizons).apply(self.parameters, features)
        recent = _weighted(values, valid, alpha)
        return centre + gate * (recent - centre)


def _features(deviation: Array, valid: Array) -> Array:
    """[..., N_FEATURES] of a window: spread, last deviations over it, memory, share measured."""
    count = jnp.sum(valid.astype(jnp.float32), axis=-1)
    spread = jnp.sum(jnp.abs(deviation), axis=-1) / count + 1e-3
    pairs = jnp.sum((valid[..., 1:] & valid[..., :-1]).astype(jnp.float32), axis=-1)
    memory = jnp.sum(deviation[..., 1:] * deviation[..., :-1], axis=-1) / jnp.maximum(pairs, 1.0)
    late = jnp.sum(deviation[..., -4:], axis=-1) / jnp.maximum(
        jnp.sum(valid[..., -4:].astype(jnp.float32), axis=-1), 1.0
    )
    features = (
        0.5 * jnp.log(spread) + 1.5,
        jnp.clip(deviation[..., -1] / spread, -4.0, 4.0),
        jnp.clip(late / spread, -4.0, 4.0),
        jnp.clip(memory / spread**2, -4.0, 4.0),
        count / valid.shape[-1],
    )
    return jnp.stack(features, axis=-1)


Predictor = Persistence | RunningMedian | Ewma | Autoregression | Learned


def window_median(values: Array, valid: Array) -> Array:
    """[...] median over the valid entries of [..., W], at least one each."""
    ordered = jnp.sort(jnp.where(valid, values, jnp.inf), axis=-1)
    count = jnp.sum(valid.astype(jnp.int32), axis=-1, keepdims=True)
    low = jnp.take_along_axis(ordered, jnp.maximum(count - 1, 0) // 2, axis=-1)
    high = jnp.take_along_axis(ordered, count // 2, axis=-1)
    return 0.5 * (low + high)[..., 0]


def _deviations(values: Array, valid: Array, centre: Array) -> Array:
    """[..., W] relative to the centre, 0 where not measured."""
    relative = values / jnp.maximum(centre, 1e-9)[..., None] - 1.0
    return jnp.where(valid, relative, 0.0)


def _spread(value: Array, n_horizons: int) -> Array:
    return jnp.broadcast_to(value[..., None], (*value.shape, n_horizons))


def _weighted(values: Array, valid: Array, alpha: Array) -> Array:
    """[..., H] exponentially weighted means of [..., W], one for each `alpha` [..., H]."""
    age = jnp.arange(values.shape[-1] - 1, -1, -1, dtype=jnp.float32)
    age = age.reshape((1,) * alpha.ndim + age.shape)
    decay = jnp.maximum(1.0 - alpha, 1e-30)[..., None]  # the last interval counts whatever alpha
    weight = jnp.where(valid[..., None, :], jnp.exp(age * jnp.log(decay)), 0.0)
    return jnp.sum(weight * values[..., None, :], axis=-1) / jnp.sum(weight, axis=-1)


def absolute_errors(predictor: Callable[[Array, Array], Array], data: Windows) -> Array:
    """[N, H] absolute errors relative to the link's bandwidth `scale`; NaN where nothing is known."""
    error = jnp.abs(predictor(data.values, data.valid) - data.targets) / data.scale[:, None]
    return jnp.where(data.known, error, jnp.nan)


def fit_ewma(data: Windows) -> Ewma:
    """The weight of least mean absolute error, for each horizon."""
    n_horizons = data.targets.shape[1]
    errors = jax.jit(jax.vmap(lambda alpha: absolute_errors(Ewma(alpha), data)))
    grid = jnp.asarray(_EWMA_GRID, jnp.float32)
    found = np.nanmean(np.asarray(errors(jnp.tile(grid[:, None], (1, n_horizons)))), axis=1)
    return Ewma(grid[np.argmin(found, axis=0)])


def fit_ar(data: Windows, order: int = 4, ridge: float = 1.0, rounds: int = 20) -> Autoregression:
    """Least absolute deviations by iterated weighted least squares, with a ridge against few data.

    Raises ValueError for an order outside 1 to W.
    """
    width = data.values.shape[1]
    if not 1 <= order <= width:
        raise ValueError(f"order: expected an integer from 1 to {width}, got {order}")
    centre = window_median(data.values, data.valid)
    x = np.asarray(_deviations(data.values, data.valid, centre), float)[:, -order:]
    y = np.asarray(data.targets / centre[:, None] - 1.0, float)
    known = np.asarray(data.known)
    scale = np.asarray(centre / data.scale, float)  # errors count relative to the link's bandwidth
    rows = []
    for h in range(y.shape[1]):
        a, b, size = x[known[:, h]], y[known[:, h], h], scale[known[:, h]]
        coefficients = np.zeros(order)
        for _ in range(rounds):
            weight = size / np.maximum(np.abs(b - a @ coefficients), 1e-3)
            weighted = a * weight[:, None]
            coefficients = np.linalg.solve(weighted.T @ a + ridge * np.eye(order), weighted.T @ b)
        rows.append(coefficients)
    return Autoregression(jnp.asarray(np.stack(rows), jnp.float32))


def fit_learned(
    key: Array, data: Windows, steps: int = 400, learning_rate: float = 5e-3, decay: float = 1e-2
) -> Learned:
    """Train on all windows at once by AdamW on the mean absolute error."""
    n_horizons = data.targets.shape[1]
    parameters = _Gate(n_horizons).init(key, jnp.zeros((1, N_FEATURES), jnp.float32))
    start = Learned(parameters, n_horizons)
    optimiser = optax.adamw(optax.cosine_decay_schedule(learning_rate, steps), weight_decay=decay)
    known = data.known.astype(jnp.float32)

    def loss(predictor: Learned) -> Array:
        error = jnp.abs(predictor(data.values, data.valid) - data.targets) / data.scale[:, None]
        return jnp.sum(error * known) / jnp.maximum(jnp.sum(known), 1.0)

    def step(carry, _):
        predictor, state = carry
        gradient = jax.grad(loss)(predictor)
        # optax raises a float to an int power, which strict promotion refuses.
        with jax.numpy_dtype_promotion("standard"):
            updates, state = optimiser.update(gradient, state, predictor)
        return (optax.apply_updates(predictor, updates), state), None

    @jax.jit
    def train(predictor):
        carry = (predictor, optimiser.init(predictor))
        return jax.lax.scan(step, carry, None, length=steps)[0][0]

    return train(start)
