"""State moves from one plan to another.

Every domain has a folder. Ranks put the units that somebody will hold there with
torch.distributed.checkpoint; units that a domain will hold and does not have are fetched over the WAN
from a domain that has them; then every rank reads its units from its own domain's folder, however the
new plan cuts the model.
"""

from __future__ import annotations

import io
import os
import shutil
import tarfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor

from ddp_bench.parallel.plan import TrainPlan, holders
from ddp_bench.parallel.sync import unit_of


@dataclass(frozen=True)
class Fetch:
    """One unit that travels between two domains, each through one rank."""

    unit: int
    source: int  # rank
    target: int


def holders_by_domain(
    plan: TrainPlan, ranks: Sequence[str], layers: int
) -> list[dict[str, list[int]]]:
    """[unit] -> domain -> its ranks that hold the unit, in order."""
    out = []
    for of_unit in holders(plan, ranks, layers):
        found: dict[str, list[int]] = defaultdict(list)
        for rank in sorted(r for replicas in of_unit for r in replicas):
            found[ranks[rank]].append(rank)
        out.append(dict(found))
    return out


def fetches(old: TrainPlan, new: TrainPlan, ranks: Sequence[str], layers: int) -> list[Fetch]:
    """What must cross the WAN: each unit once for every domain that lacks it, from the domain that
    has had least to send so far."""
    before = holders_by_domain(old, ranks, layers)
    after = holders_by_domain(new, ranks, layers)
    sent: dict[str, int] = defaultdict(int)
    out = []
    for unit, (have, want) in enumerate(zip(before, after, strict=True)):
        for domain in sorted(set(want) - set(have)):
            source = min(sorted(have), key=lambda name: sent[name])
            sent[source] += 1
            out.append(Fetch(unit, have[source][0], want[domain][0]))
    return out


def saved_by(old: TrainPlan, ranks: Sequence[str], layers: int, rank: int) -> list[int]:
    """Units that a rank writes into its domain's folder: it is the first there that holds them."""
    by_domain = holders_by_domain(old, ranks, layers)
    return [u for u, have in enumerate(by_domain) if have.get(ranks[rank], [-1])[0] == rank]


def of_unit(state: dict[str, Tensor], unit: int) -> dict[str, Tensor]:
    """The part of a state that belongs to a unit."""
    return {name: value for name, value in state.items() if unit_of(name.partition("/")[2]) == unit}


def save(state: dict[str, Tensor], units: Sequence[int], folder: Path) -> None:
    """Write units of a state, each into a folder of its own."""
    for unit in units:
        dcp.save(of_unit(state, unit), checkpoint_id=_place(folder, unit), no_dist=True)


def fetch(wanted: Sequence[Fetch], rank: int, folder: Path) -> int:
    """Send and receive this rank's part of `wanted`, all at once; the bytes that it sent."""
    outgoing = {f: _packed(_place(folder, f.unit)) for f in wanted if f.source == rank}
    incoming = {f: torch.zeros(1, dtype=torch.int64) for f in wanted if f.target == rank}
    works = [
        dist.isend(torch.tensor([len(x)]), f.target, tag=2 * f.unit) for f, x in outgoing.items()
    ]
    works += [dist.irecv(size, f.source, tag=2 * f.unit) for f, size in incoming.items()]
    _wait(works)
    buffers = {f: torch.empty(int(size), dtype=torch.uint8) for f, size in incoming.items()}
    works = [dist.isend(x, f.target, tag=2 * f.unit + 1) for f, x in outgoing.items()]
    works += [dist.irecv(x, f.source, tag=2 * f.unit + 1) for f, x in buffers.items()]
    _wait(works)
    for f, content in buffers.items():
        _unpack(content, _place(folder, f.unit))
    return sum(len(x) for x in outgoing.values())


def _wait(works: Sequence[dist.Work | None]) -> None:
    for work in works:
        if work is not None:
            work.wait()


def read(state: dict[str, Tensor], units: Sequence[int], folder: Path) -> dict[str, Tensor]:
    """The state, its tensors filled with what the domain's folder holds of these units."""
    state = {name: torch.empty_like(value) for name, value in state.items()}
    for unit in units:
        dcp.load(of_unit(state, unit), checkpoint_id=_place(folder, unit), no_dist=True)
    return state


def clear(folder: Path) -> None:
    """Remove a domain's folder."""
    shutil.rmtree(folder, ignore_errors=True)


def _place(folder: Path, unit: int) -> Path:
    return folder / f"unit{unit:03}"


def _packed(folder: Path) -> Tensor:
    """A folder as bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(folder, arcname=".")
    return torch.from_numpy(np.frombuffer(buffer.getvalue(), np.uint8).copy())


def _unpack(content: Tensor, folder: Path) -> None:
    os.makedirs(folder, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(content.numpy().tobytes())) as archive:
        archive.extractall(folder, filter="data")
