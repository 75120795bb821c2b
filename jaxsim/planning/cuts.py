"""How the layers of a pipeline are cut: evenly, so that stages take equally long, or exactly."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxsim.plan import Problem, Recompute, split_layers
from jaxsim.step_time import layer_time

Pace = tuple[float, ...]


def layer_pace(problem: Problem) -> Pace | None:
    """[K] how long a layer of one job takes in each domain, over the fastest; None where all GPUs are
    of one type. Of one sequence on one GPU, nothing recomputed."""
    cluster = problem.cluster
    if cluster.gpu.peak_tflops.ndim == 0:
        return None
    ones = jnp.ones_like(cluster.gpus)
    nothing = jnp.full_like(ones, Recompute.NONE)
    shape = (ones, nothing, ones, ones, jnp.zeros(ones.shape, jnp.float32))
    layer = jax.jit(layer_time)(problem.work, cluster.gpu, problem.calibration, *shape)
    each_s = np.asarray(layer.forward_s + layer.backward_s, np.float64)
    # Rounded, so that no figure's last digit cuts a plan otherwise.
    return tuple(np.round(each_s / each_s.min(), 3).tolist())


def pace_of(pace: Pace | None, members: Sequence[int]) -> Pace:
    """The pace of the domains of a pipeline, in order; ones where all GPUs are of one type."""
    return (1.0,) * len(members) if pace is None else tuple(pace[k] for k in members)


@functools.lru_cache(maxsize=1 << 16)
def even_layers(n_layers: int, stages: tuple[int, ...], pace: Pace) -> tuple[list[int], list[int]]:
    """Layers and stages of each domain of a pipeline with stages that take as equally long as can be:
    where domains have one pace by `split_layers`, else by `cut_layers`. Not to be changed in place."""
    if len(set(pace)) == 1:
        return split_layers(n_layers, list(stages))
    return cut_layers(n_layers, list(stages), pace, [0.0] * len(stages))


def cut_layers(
    n_layers: int, stages: list[int], layer_s: Sequence[float], extra_s: list[float]
) -> tuple[list[int], list[int]]:
    """The contiguous cut of layers over domains of `stages` equal stages each that makes the
    slowest stage as fast as can be; exact dynamic programme, O(domains x layers^2).

    A stage of domain k takes ceil(layers / stages) x layer_s[k] + extra_s[k]. Of the cuts that are as
    fast, the evenest (least sum of squared layers over stages). Stages beyond the layers are dropped
    as in `split_layers`. Returns layers and stages by domain; ValueError for more domains than layers.
    """
    if len(stages) > n_layers:
        raise ValueError(f"{len(stages)} domains for {n_layers} layers")
    _, stages = split_layers(n_layers, stages)
    size = n_layers + 1
    held = np.arange(size)
    rows = zip(stages, layer_s, extra_s, strict=True)
    each = np.array([np.ceil(held / s) * own_s + e for s, own_s, e in rows])
    each[held[None, :] < np.array(stages)[:, None]] = np.inf  # no stage without a layer

    def programme(costs: np.ndarray, combine) -> tuple[float, list[int]]:
        best, choice = np.where(held == 0, 0.0, np.inf), []
        for cost in costs:
            # Row: layers of the domains up to here; column: those of this one.
            before = np.where(held[None, :] <= held[:, None], best[held[:, None] - held], np.inf)
            options = combine(before, cost[None, :])
            choice.append(options.argmin(axis=1))
            best = options.min(axis=1)
        layers, left = [], n_layers
        for picks in reversed(choice):
            layers.insert(0, int(picks[left]))
            left -= layers[0]
        return float(best[n_layers]), layers

    fastest, _ = programme(each, np.maximum)
    uneven = held[None, :] ** 2 / np.array(stages)[:, None]
    _, layers = programme(np.where(each <= fastest * (1 + 1e-9), uneven, np.inf), np.add)
    return layers, stages
