"""From measured grids of throughput, round trip and price between cloud regions to a cluster.

The grids are CSV files as Skyplane (Jain et al., NSDI 2023) publishes them: one row for each test
of a directed pair of regions, by network tier. Of these the premium tier is read, the provider's
own backbone, which is what a pair of virtual machines uses by default.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from jaxsim.cluster.cluster import ClusterSpec
from jaxsim.cluster.gpu import GPU_PRESETS
from jaxsim.cluster.sites import Site
from jaxsim.files import (
    InputError,
    check_names,
    listed,
    numbers,
    read_text_table,
    require_columns,
    shown,
)

TIER = "PREMIUM"
NODE = 8  # GPUs of a node, unless it is said


@dataclasses.dataclass(frozen=True)
class GridFormat:
    """Which columns of a grid file say what."""

    option: str  # on the command line
    value: str
    meaning: str
    source: str = "src_region"
    destination: str = "dst_region"
    tiers: tuple[str, str] = ("src_tier", "dst_tier")
    positive: bool = True  # a price may be 0

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.source, self.tiers[0], self.destination, self.tiers[1], self.value)


THROUGHPUT = GridFormat("--throughput", "recv_gbps", "received throughput")
LATENCY = GridFormat("--latency", "avg_rtt", "mean round trip")
COST = GridFormat(
    "--cost",
    "cost",
    "egress price",
    source="src",
    destination="dest",
    tiers=("src_tier", "dest_tier"),
    positive=False,
)


@dataclasses.dataclass(frozen=True)
class Grid:
    """The premium-tier rows of one grid file."""

    path: Path
    format: GridFormat
    rows: pd.DataFrame  # src, dst and the value's column, all text; index = line in the file

    @property
    def regions(self) -> list[str]:
        return sorted({*self.rows["src"], *self.rows["dst"]})

    def matrix(self, regions: Sequence[str]) -> tuple[np.ndarray, list[str]]:
        """Return [K, K] values (row = source, diagonal 0) and a note for each repeated test.

        A pair that was tested more than once is given as the mean. Raises InputError that names
        the missing pairs, or the line of a value that is no number.
        """
        inside = self.rows["src"].isin(regions) & self.rows["dst"].isin(regions)
        rows = self.rows[inside & (self.rows["src"] != self.rows["dst"])]
        self._refuse_missing(regions, set(zip(rows["src"], rows["dst"], strict=True)))
        above = 0.0 if self.format.positive else None
        values = numbers(rows[self.format.value], self.path, above)
        tests = pd.Series(values).groupby([rows["src"].to_numpy(), rows["dst"].to_numpy()])
        out, notes = np.zeros((len(regions), len(regions))), []
        for (source, destination), test in tests:
            out[regions.index(source), regions.index(destination)] = test.mean()
            if len(test) > 1:
                figures = ", ".join(f"{x:g}" for x in test)
                notes.append(f"{source} -> {destination} is the mean of {figures}")
        return out, notes

    def _refuse_missing(self, regions: Sequence[str], present: set[tuple[str, str]]) -> None:
        pairs = [(a, b) for a in regions for b in regions if a != b and (a, b) not in present]
        if not pairs:
            return
        absent = [name for name in regions if name not in self.regions]
        named = ", ".join(f"{a} -> {b}" for a, b in pairs[:4])
        more = f" and {len(pairs) - 4} more" if len(pairs) > 4 else ""
        why = f"; no row at all names {listed(absent)}" if absent else ""
        raise InputError(
            f"{self.path}: no {self.format.meaning} ({TIER.lower()} tier) for the pair "
            f"{named}{more}{why}"
        )


def read_grid(path: str | Path, grid_format: GridFormat) -> Grid:
    """Read the premium-tier rows of a grid file; raises InputError that names file and column."""
    frame = read_text_table(path)
    require_columns(frame, grid_format.columns, path)
    source_tier, destination_tier = (frame[name].str.upper() for name in grid_format.tiers)
    frame = frame[(source_tier == TIER) & (destination_tier == TIER)]
    if frame.empty:
        tiers = " and ".join(grid_format.tiers)
        raise InputError(f"{path}: {tiers}: no row has {TIER} in both")
    for name in (grid_format.source, grid_format.destination):
        check_names(frame[name], path)
    columns = {grid_format.source: "src", grid_format.destination: "dst"}
    return Grid(Path(path), grid_format, frame.rename(columns=columns))


def check_regions(regions: Sequence[str], grid: Grid) -> None:
    """Raise InputError for a region that stands twice or that `grid` does not know."""
    if len(regions) < 2:
        raise InputError(f"--regions: expected at least two regions, got {listed(regions)}")
    for name in regions:
        if regions.count(name) > 1:
            raise InputError(f"--regions: {shown(name)} stands twice")
        if name not in grid.regions:
            raise InputError(
                f"--regions: {shown(name)} is not in {grid.path}; {_close(name, grid.regions)}"
            )


def _close(name: str, known: Sequence[str]) -> str:
    """Say which known regions resemble `name`, with or without their provider's prefix."""
    bare = {region.partition(":")[2] or region: region for region in known}
    near = [r for r in known if name and (name in r or r in name)]
    near += difflib.get_close_matches(name, known, n=4, cutoff=0.6)
    near += [bare[b] for b in difflib.get_close_matches(name.partition(":")[2] or name, bare, n=4)]
    if near:
        return f"close: {', '.join(list(dict.fromkeys(near))[:4])}"
    return f"none of its {len(known)} regions is close, for example {', '.join(known[:4])}"


def one_for_each(option: str, values: Sequence, regions: Sequence[str]) -> tuple:
    """Spread one value over all regions, or check that there is one for each."""
    if len(values) == 1:
        return tuple(values) * len(regions)
    if len(values) != len(regions):
        raise InputError(
            f"{option}: {len(values)} values for the {len(regions)} regions {listed(regions)}; "
            "give one for all or one for each"
        )
    return tuple(values)


def cluster_from_grids(
    throughput: str | Path,
    latency: str | Path,
    cost: str | Path,
    regions: Sequence[str],
    gpu: str | Sequence[str],
    gpus: Sequence[int],
    name: str,
    usd_per_gpu_hour: Sequence[float] = (2.0,),
    gpus_per_node: Sequence[int] | None = None,
    intra_gbps: float = 400.0,
    intra_rtt_ms: float = 0.05,
) -> tuple[ClusterSpec, list[str]]:
    """Build a cluster of `regions` from three grid files.

    Args:
        throughput: file with recv_gbps [Gbit/s] between one pair of instances.
        latency: file with avg_rtt [ms].
        cost: file with cost [USD/GB].
        gpu, gpus, usd_per_gpu_hour, gpus_per_node: one value for all regions or one for each; nodes
            have NODE GPUs, or all of a smaller region, if none is given.

    Returns:
        The cluster, and lines that say where each of its figures came from.

    Raises:
        InputError: naming the file or option, the pair or line, and what is allowed.
    """
    regions = list(regions)
    types = one_for_each("--gpu", [gpu] if isinstance(gpu, str) else gpu, regions)
    if strange := [one for one in types if one not in GPU_PRESETS]:
        raise InputError(f"--gpu: unknown {shown(strange[0])}; known: {', '.join(GPU_PRESETS)}")
    files = ((throughput, THROUGHPUT), (latency, LATENCY), (cost, COST))
    grids = [read_grid(path, grid_format) for path, grid_format in files]
    check_regions(regions, grids[0])
    keys = ("bandwidth_gbps", "rtt_ms", "egress_usd_per_gb")
    matrices, origin = {}, []
    for key, grid in zip(keys, grids, strict=True):
        matrices[key], notes = grid.matrix(regions)
        file, column = " ".join(grid.path.name.split()), grid.format.value
        origin.append(f"wan.{key}: {grid.format.meaning}, column {column} of {file}")
        origin += [f"  {note}" for note in notes]
    origin.append("gpu, gpus, gpus_per_node, usd_per_gpu_hour, intra_domain: stated, not measured")
    spec = ClusterSpec(
        name=name,
        gpu=types[0],
        sites=tuple(Site(one) for one in types) if len(set(types)) > 1 else (),
        domains=tuple(regions),
        gpus=(counts := one_for_each("--gpus", gpus, regions)),
        gpus_per_node=tuple(min(NODE, count) for count in counts)
        if gpus_per_node is None
        else one_for_each("--gpus-per-node", gpus_per_node, regions),
        usd_per_gpu_hour=one_for_each("--usd-per-gpu-hour", usd_per_gpu_hour, regions),
        intra_bandwidth_gbps=intra_gbps,
        intra_rtt_ms=intra_rtt_ms,
        **matrices,
    )
    return spec, origin


def cluster_file(spec: ClusterSpec, origin: Sequence[str]) -> str:
    """Return the text of a cluster file with the origin of its figures as a comment on top."""
    head = [f"Written by `hippo cluster from-grid`; measured on the {TIER.lower()} tier:", *origin]
    return "".join(f"# {line}\n" for line in head) + spec.to_yaml()
