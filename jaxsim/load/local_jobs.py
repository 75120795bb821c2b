"""Background load: local jobs that occupy GPUs of a domain before any geo-job may use them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int, Key, Num

from jaxsim.files import InputError, known_names, read_text_table, values
from jaxsim.network import check_span, domain_uniforms
from jaxsim.pytree import Pytree
from jaxsim.trees import as_leaf

WARM_UP_STAYS = 4.0  # mean stays drawn ahead of a trace: e^-4 of the empty start is left
LASTING = "a number > 0 (at least 0.001)"
SHORTEST_S, LATEST_S = 1e-3, 1e15  # [s] of a local job; a job that ends later is named by its end
LOAD_COLUMNS = ("arrival_s", "domain", "gpus", "duration_s")


class LoadProcess(Pytree):
    """Local jobs hold share * (1 + swing * u) of a domain's GPUs, plus what the trace holds; for jobs
    that come in bursts that is what they hold beyond the share, or less."""

    share: Float[Array, "*batch"]  # mean share of the GPUs held by local jobs
    swing: Float[Array, "*batch"]  # relative uniform movement, 0.2 = +-20 % of the share
    # GPUs held by replayed jobs, or beyond the share, cyclic; zeros = none
    trace: Float[Array, "*batch R K"]
    trace_offset: Int[Array, "*batch"]


def load_process(
    n_domains: int,
    share: float = 0.0,
    swing: float = 0.0,
    trace: Float[Array | np.ndarray, "R K"] | None = None,
    offset=0,
) -> LoadProcess:
    """Build settings from plain numbers; the default leaves all GPUs to geo-jobs."""
    return LoadProcess(
        share=as_leaf(share),
        swing=as_leaf(swing),
        trace=as_leaf(np.zeros((1, n_domains)) if trace is None else trace),
        trace_offset=as_leaf(offset, np.int32),
    )


def gpus_available(
    process: LoadProcess,
    gpus: Int[Array, " K"],
    key: Key[Array, ""],
    t: Int[Array, ""],
    uniform: Float[Array, " K"] | None = None,
) -> Int[Array, " K"]:
    """[K] int32 GPUs left to geo-jobs; `key` is the interval's own key, `t` the row of the trace.

    `uniform` [K] is the key's `domain_uniforms` where it is drawn already.
    """
    uniform = domain_uniforms(key, gpus.shape[-1]) if uniform is None else uniform
    total = gpus.astype(jnp.float32)
    row = jax.lax.rem(t + process.trace_offset, jnp.int32(process.trace.shape[0]))
    replay = jax.lax.dynamic_index_in_dim(process.trace, row, keepdims=False)
    held = process.share * (1.0 + process.swing * (2.0 * uniform - 1.0)) * total + replay
    return jnp.clip(gpus - jnp.round(held).astype(jnp.int32), 0, gpus)


class Bursts(NamedTuple):
    """How local jobs come and go."""

    share: float  # of a domain's GPUs that they would hold on average if all of them fitted
    job_share: float  # mean GPUs of one job, as a share of the domain's
    stay: float  # [intervals] mean time for which one runs


def bursty_load(
    gpus: Num[np.ndarray, " K"], bursts: Bursts, intervals: int, rng: np.random.Generator
) -> Float[np.ndarray, "R K"]:
    """Draw a trace [R, K] of GPUs held by local jobs, which swings further the larger they are.

    Jobs arrive at random (Poisson) and hold a geometric number of GPUs for an exponential time. One
    that does not fit goes elsewhere (Erlang's loss system), so that they hold less than the share.
    """
    share, job_share, stay = bursts
    held = np.zeros((intervals, len(gpus)), np.float32)
    for k, total in enumerate(np.asarray(gpus, int)):
        size = max(1.0, job_share * total)
        arrivals = rng.poisson(share * total / (size * stay), intervals)
        for t in np.flatnonzero(arrivals):
            for _ in range(arrivals[t]):
                need = int(rng.geometric(1.0 / size))
                stop = min(intervals, t + 1 + int(rng.exponential(stay)))
                # All jobs so far run at t or have ended: later intervals are no fuller than t.
                if held[t, k] + need <= total:
                    held[t:stop, k] += need
    return held


def burst_trace(
    gpus: Num[np.ndarray, " K"], bursts: Bursts, intervals: int, rng: np.random.Generator
) -> Float[np.ndarray, "R K"]:
    """Draw the trace [R, K] of a `LoadProcess` with `bursts.share`: GPUs held beyond that share, often
    below 0. The load has been under way for long when the trace begins."""
    before = math.ceil(WARM_UP_STAYS * bursts.stay)
    held = bursty_load(gpus, bursts, before + intervals, rng)[before:]
    return held - np.float32(bursts.share) * np.asarray(gpus, np.float32)


def read_load_trace(
    path: str | Path,
    names: tuple[str, ...],
    gpus: Sequence[int] | Num[np.ndarray, " K"],
    interval_s: float,
) -> Float[np.ndarray, "R K"]:
    """Replay a load CSV (arrival_s,domain,gpus,duration_s) first come, first served.

    Returns [R, K] mean GPUs held in each interval. A job with an empty domain goes to the domain
    where it can start first. Raises InputError for a bad row, a job larger than its domain, or one
    that ends too late.
    """
    rows = _read_load_rows(Path(path), names, gpus)
    free_at = [np.zeros(int(g)) for g in gpus]
    spans: list[tuple[int, float, float, int]] = []
    for arrival, domain, need, duration, line in rows:
        options = [domain] if domain is not None else [k for k, g in enumerate(gpus) if g >= need]
        starts = {k: max(arrival, np.partition(free_at[k], need - 1)[need - 1]) for k in options}
        chosen = min(starts, key=starts.__getitem__)
        slots = np.argsort(free_at[chosen], kind="stable")[:need]
        free_at[chosen][slots] = starts[chosen] + duration
        stop = starts[chosen] + duration
        where = f"{path}: line {line}: arrival_s, wait and duration_s together"
        check_span(stop, interval_s, where)
        spans.append((chosen, starts[chosen], stop, need))  # pyright: ignore[reportArgumentType]
    end = max((stop for _, _, stop, _ in spans), default=interval_s)
    held = np.zeros((max(1, math.ceil(end / interval_s)), len(names)), np.float32)
    edges = np.arange(held.shape[0]) * interval_s
    for k, start, stop, need in spans:
        overlap = np.minimum(stop, edges + interval_s) - np.maximum(start, edges)
        held[:, k] += need * np.clip(overlap, 0.0, None) / interval_s
    return held


def _read_load_rows(
    path: Path, names: Sequence[str], gpus: Sequence[int] | np.ndarray
) -> list[tuple]:
    frame = read_text_table(path, "a load CSV", None, [LOAD_COLUMNS])
    known_names(frame["domain"][frame["domain"] != ""], path, names)  # pyright: ignore[reportArgumentType]
    rows = []
    for line, row in zip(frame.index.tolist(), frame.to_dict("records"), strict=True):
        where, domain = f"{path}: line {line}", row["domain"]
        k = names.index(domain) if domain else None
        largest = int(max(gpus)) if k is None else int(gpus[k])
        arrival = values.cell_number(row["arrival_s"], f"{where}: arrival_s", high=LATEST_S)
        duration = values.cell_number(
            row["duration_s"], f"{where}: duration_s", SHORTEST_S, LATEST_S, LASTING
        )
        need = values.cell_count(row["gpus"], f"{where}: gpus")
        if need > largest:
            raise InputError(f"{where}: gpus: 1 to {largest} allowed, got {need}")
        rows.append((arrival, k, need, duration, line))
    return sorted(rows, key=lambda r: r[0])
