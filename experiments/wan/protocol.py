"""The protocol of a study: model, plans and conditions, fixed before anything is measured."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from experiments.wan.training import MODEL
from jaxsim.cluster import ClusterSpec, parse_cluster
from jaxsim.files import InputError, read_yaml, shown, values

SHIPPED = Path(__file__).parents[1] / "configs" / "wan" / "protocol.yaml"
KEYS = ("global_batch", "seq", "steps", "seed", "domains", "plans", "families", "conditions")
PERIODS = 3
WARM_UP = 2  # steps of every plan that connect and allocate: they are left out
TRACE_ROWS, ROW_S = 120, 0.5  # of the trace of a condition whose links move: rows, and [s] of each
RANKS_PER_DOMAIN = 1
# A domain's one GPU: so fast that the calibrated time of a layer is all that computing takes.
GPU = {"peak_tflops": 1e3, "memory_gb": 1e3, "memory_gb_per_s": 1e5, "nvlink_gb_per_s": 1e3}


@dataclasses.dataclass(frozen=True)
class Outage:
    """One link, again and again with hardly any rate."""

    src: str
    dst: str
    factor: float  # of the link's rate meanwhile
    every_s: float  # from one outage to the next
    lasts_s: float

    def holds(self, row: int) -> bool:
        """Whether it lasts in a row of the trace."""
        every, lasts = round(self.every_s / ROW_S), round(self.lasts_s / ROW_S)
        return row % every >= every - lasts


@dataclasses.dataclass(frozen=True)
class Condition:
    """One state of the network: every link alike, but for what is said otherwise."""

    name: str
    rate_mbps: float
    rtt_ms: float
    jitter: float = 0.0  # rates move by up to this share of themselves
    slow: tuple[str, str, float] | None = None  # source, destination, factor of one link's rate
    outage: Outage | None = None
    steps: int | None = None  # of every plan here; None = as many as elsewhere
    deeper: int = 1  # the model has so many times the layers here, and so has every stage
    calibrate: bool = False

    @property
    def moves(self) -> bool:
        """Whether its links move."""
        return self.jitter > 0.0 or self.outage is not None

    def cluster(self, domains: tuple[str, ...]) -> ClusterSpec:
        """The condition as a cluster file states it."""
        size = len(domains)
        between = 1.0 - np.eye(size)
        rate = self.rate_mbps / 1e3 * between
        if self.slow:
            source, target, factor = self.slow
            rate[domains.index(source), domains.index(target)] *= factor

        def rows(matrix: Float[np.ndarray, "K K"]) -> list[list[float]]:
            return [[round(float(x), 9) for x in row] for row in matrix]

        lines = [f"name: {self.name}", f"gpu: {GPU}".replace("'", ""), "domains:"]
        one = "gpus: 1, gpus_per_node: 1, usd_per_gpu_hour: 0.1"
        lines += [f"  - {{name: {name}, {one}}}" for name in domains]
        lines += ["intra_domain: {bandwidth_gbps: 100, rtt_ms: 0.05}", "wan:"]
        lines += [f"  bandwidth_gbps: {rows(rate)}", f"  rtt_ms: {rows(self.rtt_ms * between)}"]
        lines += [f"  egress_usd_per_gb: {rows(0.02 * between)}"]
        return parse_cluster("\n".join(lines) + "\n", self.name)

    def trace(self, domains: tuple[str, ...], seed: int) -> str | None:
        """The text of its trace: rates drawn uniformly, link by link, and outages; None for a steady
        network."""
        if not self.moves:
            return None
        rng, lines = np.random.default_rng([seed, 7]), ["t_s,src,dst,factor"]
        for row in range(TRACE_ROWS):
            for source in domains:
                for target in domains:
                    factor = 1.0 + self.jitter * rng.uniform(-1.0, 1.0)
                    out = self.outage
                    if out and (source, target) == (out.src, out.dst) and out.holds(row):
                        factor *= out.factor
                    if source != target:
                        lines.append(f"{row},{source},{target},{factor:.4f}")
        return "\n".join(lines) + "\n"


@dataclasses.dataclass(frozen=True)
class Protocol:
    """A whole study."""

    global_batch: int  # [sequences]
    seq: int  # [tokens]
    steps: int  # of every plan under every condition
    periods: int  # of a plan that synchronises every H steps: its step time is their mean
    seed: int
    domains: tuple[str, ...]
    plans: Mapping[str, Any]  # name -> description
    families: Mapping[str, str]  # plan -> family
    conditions: tuple[Condition, ...]
    pace_ms: float = 0.0  # of a layer for a sequence, beside its real computation
    model: str = str(MODEL)

    def plans_of(self, deeper: int) -> dict[str, Any]:
        """The plans' descriptions for a model of so many times the layers."""
        return {
            name: {**body, "layers": {d: n * deeper for d, n in body["layers"].items()}}
            if "layers" in body
            else dict(body)
            for name, body in self.plans.items()
        }

    def counted(self, condition: Condition, sync_period: int) -> int:
        """Steps of a plan that are measured: whole periods where it synchronises every H steps."""
        steps = (condition.steps or self.steps) - WARM_UP
        if sync_period == 1:
            return steps
        return sync_period * max(self.periods, -(-steps // sync_period))


def read_protocol(path: str | Path) -> Protocol:
    """Read a protocol. Raises InputError, one line: file, key, allowed values."""
    body = values.mapping(
        read_yaml(path, "a protocol"), f"{path}: the file", KEYS, ("model", "periods", "pace_ms")
    )
    counts = {
        key: values.count(body[key], f"{path}: {key}", 0 if key == "seed" else 1)
        for key in ("global_batch", "seq", "steps", "seed")
    }
    counts["periods"] = values.count(body.get("periods", PERIODS), f"{path}: periods")
    if counts["steps"] <= WARM_UP:
        raise InputError(f"{path}: steps: expected more than {WARM_UP}, got {counts['steps']}")
    domains = tuple(
        values.name(name, f"{path}: domains")
        for name in values.entries(body["domains"], f"{path}: domains", "domain")
    )
    plans = body["plans"]
    if not isinstance(plans, Mapping) or not plans:
        raise InputError(f"{path}: plans: expected a mapping of names to plans, got {shown(plans)}")
    rows = values.entries(body["conditions"], f"{path}: conditions", "condition")
    conditions = tuple(
        _condition(row, f"{path}: conditions[{i}]", domains) for i, row in enumerate(rows)
    )
    if not 0 < sum(c.calibrate for c in conditions) < len(conditions):
        raise InputError(
            f"{path}: conditions: expected some with calibrate: true, and some without"
        )
    if any(c.calibrate and c.deeper > 1 for c in conditions):
        raise InputError(f"{path}: conditions: expected deeper: 1 where calibrate is true")
    names = [c.name for c in conditions]
    if len(set(names)) < len(names):
        raise InputError(f"{path}: conditions: a name stands there twice")
    families = _families(body["families"], plans, f"{path}: families")
    model = str(body.get("model", MODEL))
    return Protocol(
        **counts,
        domains=domains,
        plans=plans,
        families=families,
        pace_ms=values.number(body.get("pace_ms", 0.0), f"{path}: pace_ms", 0.0),
        model=model,
        conditions=conditions,
    )


def _families(body: Any, plans: Mapping[str, Any], where: str) -> dict[str, str]:
    """plan -> family, each plan once."""
    if not isinstance(body, Mapping) or not all(isinstance(x, list) for x in body.values()):
        raise InputError(f"{where}: expected a mapping of families to lists of plans")
    found = [(plan, family) for family, members in body.items() for plan in members]
    if sorted(str(plan) for plan, _ in found) != sorted(plans):
        raise InputError(f"{where}: expected every plan once: {', '.join(plans)}")
    return dict(found)


def _condition(body: Any, where: str, domains: tuple[str, ...]) -> Condition:
    keys = ("name", "rate_mbps", "rtt_ms")
    further = ("jitter", "slow", "outage", "steps", "deeper", "calibrate")
    body = values.mapping(body, where, keys, further)
    name = values.name(body["name"], f"{where}.name")
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,23}", name):
        raise InputError(f"{where}.name: expected 1 to 24 of a-z, 0-9 and '-', got {shown(name)}")
    steps = body.get("steps")
    return Condition(
        name,
        values.number(body["rate_mbps"], f"{where}.rate_mbps", 0.1),
        values.number(body["rtt_ms"], f"{where}.rtt_ms", 0.0),
        jitter=values.number(body.get("jitter", 0.0), f"{where}.jitter", 0.0),
        slow=_slow(body.get("slow"), f"{where}.slow", domains),
        outage=_outage(body.get("outage"), f"{where}.outage", domains),
        steps=None if steps is None else values.count(steps, f"{where}.steps", WARM_UP + 1),
        deeper=values.count(body.get("deeper", 1), f"{where}.deeper"),
        calibrate=bool(body.get("calibrate", False)),
    )


def _ends(body: Mapping[str, Any], where: str, domains: tuple[str, ...]) -> list[str]:
    ends = [values.choice(body[key], f"{where}.{key}", domains) for key in ("src", "dst")]
    if ends[0] == ends[1]:
        raise InputError(f"{where}.dst: expected another domain than src, got {shown(ends[1])}")
    return ends


def _slow(body: Any, where: str, domains: tuple[str, ...]) -> tuple[str, str, float] | None:
    if body is None:
        return None
    body = values.mapping(body, where, ("src", "dst", "factor"))
    src, dst = _ends(body, where, domains)
    return src, dst, values.number(body["factor"], f"{where}.factor", 1e-3)


def _outage(body: Any, where: str, domains: tuple[str, ...]) -> Outage | None:
    if body is None:
        return None
    body = values.mapping(body, where, ("src", "dst", "factor", "every_s", "lasts_s"))
    numbers = {
        key: values.number(body[key], f"{where}.{key}", 1e-3) for key in ("factor", "every_s")
    }
    numbers["lasts_s"] = values.number(body["lasts_s"], f"{where}.lasts_s", ROW_S)
    if numbers["lasts_s"] + ROW_S > numbers["every_s"]:
        raise InputError(
            f"{where}.every_s: expected {ROW_S} s more than lasts_s, got {numbers['every_s']}"
        )
    return Outage(*_ends(body, where, domains), **numbers)
