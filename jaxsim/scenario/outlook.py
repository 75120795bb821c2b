"""What a scenario may look like: samples of the states of links and load that are to be expected."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax import Array
from jaxtyping import Float, Int, Key

from jaxsim.env import EnvParams, Samples
from jaxsim.scenario.scenario import Draw, drawn_bank, tapes
from jaxsim.scenario.world import World
from jaxsim.step_time import NetworkView
from jaxsim.trees import take

# Samples, by which plans that never change are chosen. A mean over N of them strays by the links' own
# spread over sqrt(N): where they drift, 32 do not tell plans apart that differ by a few per cent.
OUTLOOK = 128


class Others(NamedTuple):
    """Scenarios like those of a bank [S], links at the cluster file's base, with other draws of all
    that moves: each of N gives samples to several."""

    params: EnvParams  # [N, ...]
    keys: Key[Array, " N"]
    which: Int[np.ndarray, "S W"]  # the draw that a sample is of


def other_draws(
    world: World,
    draws: Sequence[Draw],
    split: str,
    network_trace: Float[np.ndarray, "R K K"] | None = None,
    load_trace: Float[np.ndarray, "_ K"] | None = None,
    count: int = OUTLOOK,
) -> Others:
    """For `drawn_bank` of the same arguments, `count` samples a scenario. Each of them is of another
    draw, with how links move drawn anew: a course of one draw keeps to where it began for hours."""

    def other(draw: Draw, sample: int) -> Draw:
        even = dataclasses.replace(draw.settings, base_spread=0.0)
        return dataclasses.replace(draw, settings=even, seed=draw.seed + sample)

    wanted = [[other(draw, sample) for sample in range(count)] for draw in draws]
    found = {draw: i for i, draw in enumerate(dict.fromkeys(d for row in wanted for d in row))}
    which = np.array([[found[draw] for draw in row] for row in wanted])
    traces = network_trace, load_trace
    bank = drawn_bank(world, list(found), f"{split}, outlook", *traces, references=False)
    return Others(*bank, which)


def samples_of(others: Others, courses: NetworkView, params: EnvParams) -> Samples:
    """[S, W, ...] samples for the bank `params`, at its scenarios' bases. Where two scenarios have a
    draw in common, they see other intervals of its course [T, ...] (of `courses` [N, T, ...])."""
    length = courses.gpus_available.shape[1]
    at = 2 * (np.arange(others.which.shape[1]) % (length // 2))
    own, file = (p.problem.cluster.bandwidth_gb_per_s for p in (params, others.params))
    base = np.asarray(own) / np.maximum(np.asarray(file)[0], 1e-30)

    def seen(interval: Int[np.ndarray, " W"]) -> NetworkView:
        views = jax.tree.map(lambda x: np.asarray(x)[others.which, interval], courses)
        return views.replace(bandwidth_gb_per_s=views.bandwidth_gb_per_s * base[:, None])

    return Samples(before=seen(at), now=seen(at + 1))


def outlook_of(others: Others, params: EnvParams, horizon: int) -> Samples:
    """`samples_of` courses of `horizon` intervals, which are played here."""
    count = others.keys.shape[0]
    # Of banks of like sizes the same program; what fills one up is seen by nobody.
    filled = np.arange(1 << (count - 1).bit_length()) % count
    drawn = take((others.params, others.keys), filled)
    return samples_of(others, tapes(*drawn, horizon + 1), params)
