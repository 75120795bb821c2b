"""The form in which plans are compared over the event-exact one, on random pipelines.

Random pipelines under both, over growing latency and over links
that change inside the step.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from analysis.figures import closed_against_event, save
from analysis.records import RunWriter
from experiments.fidelity.config import FidelityConfig
from jaxsim.plan import INTERLEAVED_CHUNKS, Schedule, empty_plan
from jaxsim.step_time import (
    BandwidthProfile,
    EventBounds,
    PipelineInputs,
    event_pipeline_time,
    fast_pipeline_time,
    topology,
)

_LABELS = {Schedule.INTERLEAVED: f"interleaved, {INTERLEAVED_CHUNKS} chunks"}
SCHEDULES = {_LABELS.get(schedule, schedule.label): schedule for schedule in Schedule}
DOMAINS, STAGES_EACH = 4, 2
LATENCIES = tuple(float(x) for x in 10.0 ** np.arange(-2.5, 2.01, 0.25))
JITTERS = tuple(float(x) for x in np.arange(0.0, 0.91, 0.1))
SEGMENTS = 32  # of a step, each with its own rate of every link


@functools.partial(jax.jit, static_argnames="micro_batches")
def _ratio(schedule, stage_s, send_s, latency_s, factors, micro_batches):
    """[] closed form / event-exact, of one pipeline over all domains; `factors` [C, K, K] multiply
    the links' bandwidth in C equal parts of the closed form's time."""
    plan = empty_plan(DOMAINS).replace(
        group=np.zeros(DOMAINS, np.int32),
        position=np.arange(DOMAINS, dtype=np.int32),
        pp=np.full(DOMAINS, STAGES_EACH, np.int32),
    )
    topo = topology(jax.tree.map(jnp.asarray, plan))
    none = jnp.zeros((DOMAINS,), jnp.float32)
    inputs = PipelineInputs(
        topo=topo,
        pp=plan.pp,
        schedule=jnp.full((DOMAINS,), schedule),
        micro_batches=jnp.full((DOMAINS,), float(micro_batches)),
        stage_s=stage_s,
        head_s=none,
        hop_s=none,
        send_s=send_s,
        latency_s=latency_s,
    )
    closed = fast_pipeline_time(inputs)
    parts = factors.shape[0]
    change = closed.total_s[0] / parts * jnp.arange(1, parts, dtype=jnp.float32)
    profile = BandwidthProfile(change, 1.0 / factors)
    bounds = EventBounds(DOMAINS * STAGES_EACH, micro_batches, groups=1)
    event = event_pipeline_time(inputs, bounds=bounds, profile=profile)
    return closed.total_s[0] / event.total_s[0]


def _points(
    config: FidelityConfig, latencies: np.ndarray, jitters: np.ndarray, segments: int
) -> pd.DataFrame:
    """One row per random step, schedule and (latency, jitter) pair; `latencies` in stage times."""
    rng = np.random.default_rng(config.seed)
    shape = (config.samples, len(latencies))
    ratio = jax.vmap(
        jax.vmap(
            jax.vmap(
                functools.partial(_ratio, micro_batches=config.micro_batches), (0, *[None] * 4)
            ),
            (None, 0, 0, 0, 0),
        ),
        (None, 0, 0, 0, 0),
    )
    stage = 1.0 + config.spread * rng.uniform(-1, 1, (*shape, DOMAINS))
    send = config.send * rng.uniform(0.7, 1.3, (*shape, DOMAINS, DOMAINS))
    latency = latencies[None, :, None, None] * rng.uniform(0.7, 1.3, send.shape)
    swing = rng.uniform(-1, 1, (*shape, segments, DOMAINS, DOMAINS))
    factors = 1.0 + jitters[None, :, None, None, None] * swing
    arrays = (jnp.asarray(x, jnp.float32) for x in (stage, send, latency, factors))
    kinds = jnp.asarray(list(SCHEDULES.values()), jnp.int32)
    values = np.asarray(jax.jit(ratio)(kinds, *arrays))  # [samples, points, schedules]
    sample, point, kind = np.indices(values.shape)
    return pd.DataFrame(
        {
            "schedule": np.array(list(SCHEDULES))[kind.ravel()],
            "sample": sample.ravel(),
            "latency": latencies[point.ravel()],
            "jitter": jitters[point.ravel()],
            "ratio": values.ravel(),
        }
    )


def ratios(config: FidelityConfig) -> pd.DataFrame:
    """Both sweeps: columns of `FIDELITY_COLUMNS`, and the sample's number."""
    still = np.zeros(len(LATENCIES))
    latency = _points(config, np.array(LATENCIES), still, 1)
    jitter = _points(config, np.full(len(JITTERS), 0.3), np.array(JITTERS), SEGMENTS)
    latency = latency.assign(sweep="latency", x=latency["latency"])
    jitter = jitter.assign(sweep="jitter", x=jitter["jitter"])
    return pd.concat([latency, jitter], ignore_index=True)


def compare(config: FidelityConfig) -> None:
    """Simulate, draw, keep the records."""
    with RunWriter.create(
        "fidelity", dataclasses.asdict(config), config.seed, config.out
    ) as writer:
        table = ratios(config)
        writer.write_table("ratios", table)
        setting = (
            f"{DOMAINS} domains of {STAGES_EACH} stages, {config.micro_batches} micro-batches, "
            f"transfer {config.send:g} of a stage's time, stages ± {100 * config.spread:g} %"
        )
        path = save(closed_against_event(table, setting), writer.figures / "fidelity.png")
        worst = table.groupby(["sweep", "schedule"])["ratio"].agg(["min", "max"])
        writer.finish({"worst": {" / ".join(k): row.to_dict() for k, row in worst.iterrows()}})
    print(worst.round(3).to_string())
    print(f"figure: {path}")
