"""What bounds an environment's steps: arithmetic, random draws, bytes of observations.

Each is a count per step over a peak that is measured here, in the same run, on one device: how many
steps per second all devices could make if nothing else cost time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.bench.episodes import EnvCase, env_episodes, learner_reads
from experiments.bench.plans import best_s, stream_bytes_per_s
from jaxsim.network import domain_uniforms, link_uniforms
from jaxsim.trees import take

LANES, ROUNDS = (
    4096,
    256,
)  # of the arithmetic: numbers in the first cache, products and sums of each
DRAWN = 64  # environments that draw at once


def roofline(case: EnvCase, n_envs: int, repeats: int) -> dict[str, Any]:
    """Counts per step, and steps per second of all devices that each of them allows; FLOPs are the
    compiler's count, which counts the body of a loop once (four fifths of Threefry's rounds are
    missing, and the general way for rows that lack replicas)."""
    n_domains = case.params.problem.cluster.mask.shape[0]
    flops = flops_per_step(case, n_envs)
    draws = 3 * n_domains**2 + n_domains
    seen = jax.eval_shape(learner_reads, take(case.first[1], 0))
    read_bytes = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(seen))
    devices = len(jax.devices())
    peak = {
        "flops": _flops_per_s(repeats),
        "draws": _draws_per_s(n_domains, repeats),
        "bytes": stream_bytes_per_s(repeats),
    }
    counts = {"flops": flops, "draws": draws, "bytes": read_bytes}
    bounds = {
        name: None if counts[name] is None else devices * peak[name] / counts[name]
        for name in counts
    }
    return {
        "flops_per_step": flops,
        "draws_per_step": draws,
        "observation_bytes": read_bytes,
        "peak_gflops": devices * peak["flops"] / 1e9,
        "peak_draws_per_s": devices * peak["draws"],
        "peak_gb_per_s": devices * peak["bytes"] / 1e9,
        **{f"{name}_bound_per_s": bound for name, bound in bounds.items()},
    }


def flops_per_step(
    case: EnvCase, n_envs: int, episodes: Callable[..., jax.Array] = env_episodes
) -> float | None:
    """The compiler's count for one step of the short way; None where it gives none."""
    rows = case.params.rows
    if rows is not None:
        case = case.replace(params=case.params.replace(rows=rows.replace(block=0)))
    numbers = jnp.arange(min(n_envs, DRAWN), dtype=jnp.int32)
    cost = jax.jit(episodes).lower(case, numbers).compile().cost_analysis() or {}
    flops = cost.get("flops")
    return None if flops is None else flops / numbers.shape[0]


def _flops_per_s(repeats: int) -> float:
    """Of one device: a product and a sum of numbers that stay in registers."""

    def chains(x):
        ways = [x + float(i) for i in range(8)]  # as many as hide the latency of one
        for _ in range(ROUNDS // 8):
            ways = [w * 0.999 + 0.001 for w in ways]
        return sum(ways)

    x = jnp.zeros((LANES,), jnp.float32)

    def run(x):
        return jax.lax.fori_loop(0, 1000, lambda _, x: chains(x), x)

    seconds = best_s(jax.jit(run).lower(x).compile(), (x,), repeats)
    return 2.0 * ROUNDS * LANES * 1000 / seconds


def _draws_per_s(n_domains: int, repeats: int) -> float:
    """Of one device: the uniforms that a world draws in an interval, and nothing made of them."""
    keys = jax.random.split(jax.random.key(0), DRAWN)

    def draw(key, t):
        key = jax.random.fold_in(key, t)
        links = link_uniforms(key, n_domains)
        return sum(x.sum() for x in links) + domain_uniforms(key, n_domains).sum()

    steps = jnp.arange(64)

    def run(keys):
        return jax.lax.map(lambda t: jax.vmap(draw, (0, None))(keys, t), steps)

    seconds = best_s(jax.jit(run).lower(keys).compile(), (keys,), repeats)
    return float(np.prod((DRAWN, steps.size, 3 * n_domains**2 + n_domains))) / seconds
