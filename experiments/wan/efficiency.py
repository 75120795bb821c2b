"""What a token is worth at this scale: losses at equal tokens, beside the published fit.

Arms train the same model on the same batches as replicas that talk every H steps, or in few bits. The
reference is synchronous training in 32 bits; it trains twice as long. An arm's token efficiency is the
share of its tokens with which the reference reaches the arm's last loss. It may exceed 1: outer
momentum helps a short training.
"""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy.stats import t as student
from tqdm import tqdm

from analysis.records import RunWriter, load
from experiments.wan import start
from experiments.wan.runs import RunFailed, carried_out
from experiments.wan.training import FP32_BITS, TrainingOptions, job_spec
from jaxsim.files import InputError, read_yaml, values
from jaxsim.learning import Communication, published_efficiency
from jaxsim.workload import JobSpec, build_workload

SHIPPED = Path(__file__).parents[1] / "configs" / "wan" / "efficiency.yaml"
COUNTS = ("global_batch", "seq", "steps", "evaluate_every", "held_out", "seeds")
LONGER = 2  # how many times as long the reference trains
BITS = (8, 16, 32)
LEARNING_RATE = 1e-3


@dataclasses.dataclass(frozen=True)
class Arm:
    """How the replicas of one arm talk."""

    replicas: int  # M
    sync_period: int  # H; 1 = every step
    wire_bits: int

    @property
    def name(self) -> str:
        """Short, for tables."""
        return f"M {self.replicas}, H {self.sync_period}, {self.wire_bits} bits"

    def plan(self, batch: int) -> dict[str, Any]:
        """As the trainer reads it: every replica a rank that holds the whole model."""
        share = batch // self.replicas
        pipelines = [
            {
                "domains": [{"domain": f"r{m}", "layers": 0}],
                "micro_batches": 1,
                "micro_batch": share,
            }
            for m in range(self.replicas)
        ]
        return {
            "pipelines": pipelines,
            "sync_period": self.sync_period,
            "wire_bits": self.wire_bits,
        }


@dataclasses.dataclass(frozen=True)
class EfficiencyProtocol:
    """What is trained, and in which arms."""

    global_batch: int  # [sequences]
    seq: int  # [tokens]
    steps: int
    evaluate_every: int  # steps
    held_out: int  # [sequences]
    seeds: int
    arms: tuple[Arm, ...]


REFERENCE = Arm(1, 1, FP32_BITS)


def read_efficiency_protocol(path: str | Path) -> EfficiencyProtocol:
    """Read a protocol. Raises InputError, one line: file, key, allowed values."""
    body = values.mapping(read_yaml(path, "a protocol"), f"{path}: the file", (*COUNTS, "arms"))
    counts = {key: values.count(body[key], f"{path}: {key}") for key in COUNTS}
    rows = values.entries(body["arms"], f"{path}: arms", "arm")
    arms = tuple(_arm(row, f"{path}: arms[{i}]", counts) for i, row in enumerate(rows))
    if counts["steps"] % counts["evaluate_every"]:
        raise InputError(f"{path}: steps: expected a multiple of evaluate_every")
    return EfficiencyProtocol(**counts, arms=arms)


def _arm(body: Any, where: str, counts: dict[str, int]) -> Arm:
    body = values.mapping(body, where, ("replicas", "sync_period", "wire_bits"))
    arm = Arm(**{key: values.count(body[key], f"{where}.{key}") for key in body})
    if arm.wire_bits not in BITS:
        raise InputError(f"{where}.wire_bits: expected one of {', '.join(map(str, BITS))}")
    if counts["global_batch"] % arm.replicas:
        raise InputError(f"{where}.replicas: expected a divisor of global_batch")
    if counts["evaluate_every"] % arm.sync_period:
        raise InputError(f"{where}.sync_period: expected a divisor of evaluate_every")
    return arm


class EfficiencyStudy:
    """Trains the arms one after the other."""

    def __init__(self, protocol: EfficiencyProtocol, writer: RunWriter) -> None:
        self.protocol, self._writer = protocol, writer
        options = TrainingOptions(global_batch=protocol.global_batch, seq=protocol.seq)
        self._job = job_spec(options)

    def run(self) -> dict[str, Any]:
        """Train, compare; the summary. Raises RunFailed."""
        arms, seeds = (REFERENCE, *self.protocol.arms), range(self.protocol.seeds)
        cases = list(itertools.product(seeds, arms))
        found = [self._trained(arm, seed) for seed, arm in tqdm(cases, desc="arms", disable=None)]
        losses = pd.concat(found, ignore_index=True)
        self._writer.write_table("losses", losses)
        last = pd.DataFrame(self._last(losses, arm, seed) for seed in seeds for arm in arms[1:])
        self._writer.write_table("arms", last)
        told = pd.DataFrame([self._row(arm, last[last["arm"] == arm.name]) for arm in arms[1:]])
        self._writer.write_table("efficiency", told)
        return {"arms": told.to_dict("records")}

    def _trained(self, arm: Arm, seed: int) -> pd.DataFrame:
        """Losses of held-out sequences by tokens."""
        protocol, shape = self.protocol, self._job.model
        plan = arm.plan(protocol.global_batch)
        for pipeline in plan["pipelines"]:
            pipeline["domains"][0]["layers"] = shape.layers
        keys = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab")
        ranks = [f"r{m}" for m in range(arm.replicas)]
        job = {
            "model": {key: getattr(shape, key) for key in keys},
            "plan": plan,
            "ranks": ranks,
            "domains": ranks,
            "seq": protocol.seq,
            "global_batch": protocol.global_batch,
            "steps": protocol.steps * (LONGER if arm == REFERENCE else 1),
            "seed": seed,
            "learning_rate": LEARNING_RATE,
            "held_out": protocol.held_out,
            "evaluate_every": protocol.evaluate_every,
        }
        out = self._writer.dir / "runs" / f"{arm.name.replace(', ', '-').replace(' ', '')}-{seed}"
        if start.train_here(job, str(out)):
            raise RunFailed(f"{arm.name}, seed {seed}: training failed; see {out}")
        table = load(out).table("evaluations").drop_duplicates("step")
        tokens = table["step"] * protocol.global_batch * protocol.seq
        return pd.DataFrame(
            {"arm": arm.name, "seed": seed, "tokens": tokens, "loss": table["loss"]}
        )

    def _last(self, losses: pd.DataFrame, arm: Arm, seed: int) -> dict[str, Any]:
        """An arm at its end, and what its tokens were worth."""
        own = losses[losses["seed"] == seed]
        reference = own[own["arm"] == REFERENCE.name]
        end = own[own["arm"] == arm.name].iloc[-1]
        needed = tokens_to_reach(
            end["loss"], reference["tokens"].to_numpy(), reference["loss"].to_numpy()
        )
        same = float(np.interp(end["tokens"], reference["tokens"], reference["loss"]))
        return {
            "arm": arm.name,
            "seed": seed,
            "loss": end["loss"],
            "reference_loss": same,
            "efficiency": needed / end["tokens"],
        }

    def _row(self, arm: Arm, last: pd.DataFrame) -> dict[str, Any]:
        """Mean over seeds with its 95 % interval, beside what is published."""
        values_ = last["efficiency"].to_numpy(float)
        half = half_width(values_)
        band = published_band(arm, self._job, self.protocol.global_batch * self.protocol.seq)
        return {
            "arm": arm.name,
            **dataclasses.asdict(arm),
            "loss": last["loss"].mean(),
            "reference_loss": last["reference_loss"].mean(),
            "efficiency": values_.mean(),
            "efficiency_half": half,
            **band,
        }


def tokens_to_reach(
    loss: float, tokens: Float[np.ndarray, " N"], losses: Float[np.ndarray, " N"]
) -> float:
    """Tokens at which a falling curve of losses comes to `loss` for the first time, read between points
    on the logarithm of tokens; its ends where it never does."""
    best = np.minimum.accumulate(losses)
    if loss >= best[0]:
        return float(tokens[0])
    if loss <= best[-1]:
        return float(tokens[-1])
    at = int(np.argmax(best <= loss))
    share = (best[at - 1] - loss) / (best[at - 1] - best[at])
    return float(np.exp(np.interp(share, [0.0, 1.0], np.log(tokens[at - 1 : at + 1]))))


def half_width(found: Float[np.ndarray, " N"]) -> float:
    """Half of the 95 % interval of a mean, by Student's t; infinite for one value."""
    if len(found) < 2:
        return float("inf")
    spread = found.std(ddof=1) / np.sqrt(len(found))
    return float(student.ppf(0.975, len(found) - 1) * spread)


def published_band(arm: Arm, job: JobSpec, batch_tokens: int) -> dict[str, Any]:
    """What the published fit says of such an arm, and whether it is asked beyond its data."""
    how = Communication(
        gparams=build_workload([job]).job(0).gparams,
        replicas=jnp.float32(arm.replicas),
        period=jnp.float32(arm.sync_period),
        sync_bits=jnp.float32(min(arm.wire_bits, 16)),  # it knows no loss from 16 bits up
        activation_bits=jnp.float32(16),
        overlap=jnp.float32(0),
        batch_tokens=jnp.float32(batch_tokens),
    )
    band = published_efficiency().band(how)
    return {
        "published": float(band.centre),
        "published_low": float(band.low),
        "published_high": float(band.high),
        "extrapolated": bool(band.extrapolated),
    }


def efficiency(config: str, out: str | None) -> int:
    """Carry out a protocol; the exit status."""
    protocol = read_efficiency_protocol(config)
    body = {**dataclasses.asdict(protocol), "config": config}
    return carried_out(
        "wan_efficiency", body, 0, out, lambda writer: EfficiencyStudy(protocol, writer).run()
    )
