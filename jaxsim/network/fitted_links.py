"""Link-process files: settings of `jaxsim.network` fitted to measured paths, one row per path.

Measured paths differ more from each other than a path does from itself, so a file keeps the paths
apart and every link of a scenario is given one of them, drawn by weight. What a path's rate was does
not carry over to another network; how it moved around its median rate does.

    interval_s: 60              # [s] what was fitted: means over intervals of this length
    source: where the measurements are from
    kind: heavy                 # what the name of the file alone stands for
    processes:
      heavy:                    # links of one kind have the same groups
        - {path: a>b, weight: 89, body: {...}, rtt: {...}}
      outage:
        - {path: a>b, weight: 89, body: {...}, outage: {...}}
"""

from __future__ import annotations

import dataclasses
import importlib.resources
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from jaxsim.files import InputError, dump_yaml, listed, parse_yaml, read_yaml, shown, values
from jaxsim.network.process import HeavyTail, NetworkProcess, TwoState, network_process

KINDS = ("uniform", "ou", "regime", "heavy", "outage")
FITTED_KINDS = ("regime", "heavy", "outage")  # those that ship with fitted settings
SHIPPED = "measured-links"
KIND = "a file of link processes"
LONGEST_SOURCE = 2000  # characters
BODY_LIMITS = (0.01, 4.0)  # a link that stalls would never finish a transfer

# Group -> key -> (smallest, largest): what a file may hold.
_LIMITS = {
    "uniform": {"amplitude": (0.0, 1.0)},
    "drift": {"sigma": (0.0, 2.0), "tau_s": (0.0, 1e9)},
    "body": {
        "centre": (0.1, 10.0),
        "dip_scale": (0.0, 2.0),
        "dip_tail": (0.0, 1.0),
        "peak_scale": (0.0, 2.0),
        "peak_tail": (0.0, 1.0),
        "white": (0.0, 1.0),
        "tau_s": (0.0, 1e9),
    },
    "rtt": {
        "dip_scale": (0.0, 2.0),
        "dip_tail": (0.0, 1.0),
        "peak_scale": (0.0, 2.0),
        "peak_tail": (0.0, 1.0),
    },
    "regime": {
        "level": (BODY_LIMITS[0], 4.0),
        "rtt": (0.1, 20.0),
        "share": (0.0, 0.95),
        "stay_s": (1e-3, 1e9),
    },
}
_LIMITS["outage"] = _LIMITS["regime"]
_GROUPS = {  # kind -> groups that its links must have, and may have
    "uniform": (("uniform",), ("rtt",)),
    "ou": (("drift",), ("rtt",)),
    "regime": (("body", "regime"), ("rtt",)),
    "heavy": (("body",), ("rtt",)),
    "outage": (("body", "outage"), ("rtt",)),
}


@dataclasses.dataclass(frozen=True)
class FittedLink:
    """How one measured path moves; times in seconds, everything else without a unit."""

    path: str
    weight: float  # > 0, intervals measured
    groups: Mapping[str, Mapping[str, float]]  # group -> key -> value


@dataclasses.dataclass(frozen=True)
class LinkProcesses:
    """A file of fitted processes."""

    interval_s: float
    source: str
    kind: str
    processes: Mapping[str, tuple[FittedLink, ...]]

    def to_yaml(self) -> str:
        """Return the text of the file."""
        head = {"interval_s": self.interval_s, "source": self.source, "kind": self.kind}
        rows = {
            kind: [
                {
                    "path": link.path,
                    "weight": _short(link.weight),
                    **{g: {k: _short(v) for k, v in x.items()} for g, x in link.groups.items()},
                }
                for link in links
            ]
            for kind, links in self.processes.items()
        }
        flow = {"default_flow_style": None, "width": 100}
        return dump_yaml(head) + dump_yaml({"processes": rows}, **flow)


def _short(value: float) -> float | int:
    rounded = round(float(f"{value:.4g}"), 6)
    return int(rounded) if rounded == int(rounded) and abs(rounded) < 1e9 else rounded


def load_link_processes(path: str | Path | None = None) -> LinkProcesses:
    """Load and check a file; None loads the fits that ship.

    Those are fits of `hippo network fit` to 11 directed paths between GCP, IBM and AWS regions:
    2,149 iperf3 tests of 10 s with a single TCP stream, July to October 2021, published with the
    CloudPilot project (github.com/kfirtoledo/CloudPilot_Project). Raises InputError that names the
    file, the key and the allowed values.
    """
    if path is None:
        preset = importlib.resources.files("jaxsim.presets") / f"{SHIPPED}.yaml"
        return parse_link_processes(preset.read_text(), SHIPPED)
    return _processes(read_yaml(path, KIND), str(path))


def parse_link_processes(text: str, source: str) -> LinkProcesses:
    """Parse and check the text of a file; `source` is what error lines name."""
    return _processes(parse_yaml(text, source, KIND), source)


def _processes(body: Any, source: str) -> LinkProcesses:
    body = values.mapping(
        body, f"{source}: the file", ("interval_s", "source", "kind", "processes")
    )
    processes = body["processes"]
    if not isinstance(processes, Mapping) or not processes or set(processes) - set(KINDS):
        got = listed(processes) if isinstance(processes, Mapping) else shown(processes)
        raise InputError(
            f"{source}: processes: expected one or more of {', '.join(KINDS)}, got {got}"
        )
    return LinkProcesses(
        interval_s=_number(body["interval_s"], f"{source}: interval_s", (1e-3, 1e9)),
        source=values.name(body["source"], f"{source}: source", LONGEST_SOURCE),
        kind=values.choice(body["kind"], f"{source}: kind", processes),
        processes={
            kind: _links(rows, kind, f"{source}: processes.{kind}")
            for kind, rows in processes.items()
        },
    )


def _links(rows: Any, kind: str, where: str) -> tuple[FittedLink, ...]:
    must, may = _GROUPS[kind]
    links = []
    for i, row in enumerate(values.entries(rows, where, "link")):
        row = values.mapping(row, f"{where}[{i}]", ("path", "weight", *must), may)
        path = values.name(row["path"], f"{where}[{i}].path")
        weight = _number(row["weight"], f"{where}[{i}].weight", (1e-9, 1e12))
        groups = {g: _group(row[g], g, f"{where}[{i}].{g}") for g in (*must, *may) if g in row}
        links.append(FittedLink(path, weight, groups))
    if len({tuple(link.groups) for link in links}) > 1:
        raise InputError(f"{where}: rtt: all links have it or none")
    return tuple(links)


def _group(value: Any, group: str, where: str) -> dict[str, float]:
    limits = _LIMITS[group]
    value = values.mapping(value, where, limits)
    return {key: _number(value[key], f"{where}.{key}", limits[key]) for key in limits}


def _number(value: Any, where: str, limits: tuple[float, float]) -> float:
    low, high = limits
    return values.number(value, where, low, high, f"a number from {low:g} to {high:g}")


def file_and_kind(name: str) -> tuple[str, str | None]:
    """FILE.yaml or FILE.yaml:KIND -> the file, and the kind if there is one."""
    path, colon, kind = name.rpartition(":")
    return (path, kind) if colon and kind in KINDS else (name, None)


def is_file_name(name: str) -> bool:
    """Whether a name means a file of link processes."""
    return Path(file_and_kind(name)[0]).suffix in (".yaml", ".yml")


def fitted_links(name: str) -> tuple[FittedLink, ...]:
    """The links that a name stands for: a kind that ships, FILE.yaml, or FILE.yaml:KIND.

    Raises InputError that names the file, the kind and the allowed ones.
    """
    if name in FITTED_KINDS:
        return load_link_processes().processes[name]
    path, kind = file_and_kind(name)
    file = load_link_processes(path)
    kind = file.kind if kind is None else kind
    if kind not in file.processes:
        known = ", ".join(file.processes)
        raise InputError(f"{path}: processes: {kind} is not among those fitted: {known}")
    return file.processes[kind]


def draw_links(
    links: tuple[FittedLink, ...], n_domains: int, rng: np.random.Generator
) -> Int[np.ndarray, "K K"]:
    """[K, K] row of `links` for each directed link, drawn by weight."""
    weight = np.array([link.weight for link in links])
    return rng.choice(len(links), size=(n_domains, n_domains), p=weight / weight.sum())


def process_of_links(
    links: tuple[FittedLink, ...],
    rows: Int[np.ndarray, "K K"],
    interval_s: float,
    latency: float = 0.0,
    **rest,
) -> NetworkProcess:
    """The process in which the link from k to k' moves as `links[rows[k, k']]` does.

    Args:
        links: of one kind
        rows: [K, K] int
        interval_s: [s] of the process; the settings themselves are not rescaled to it
        latency: uniform jitter of the round trip where the links were fitted without one
        rest: passed on to `network_process`
    """

    def of(group: str, key: str) -> Any:  # a leaf of a host pytree
        return np.array([link.groups[group][key] for link in links], np.float32)[rows]

    def intervals(seconds: np.ndarray) -> Any:  # a leaf of a host pytree
        return np.maximum(seconds / np.float32(interval_s), 1e-3)

    groups = links[0].groups
    one: Any = 1.0
    settings: dict[str, Any] = {"latency": latency, **rest}
    if "uniform" in groups:
        settings["white"] = of("uniform", "amplitude")
    if "drift" in groups:
        settings["ou_sigma"] = of("drift", "sigma")
        settings["ou_tau"] = intervals(of("drift", "tau_s"))
    if "body" in groups:
        keys = [field.name for field in dataclasses.fields(HeavyTail)]
        settings["tail"] = HeavyTail(**{key: of("body", key) for key in keys})
        settings["ou_tau"] = intervals(of("body", "tau_s"))
        settings["low"], settings["high"] = BODY_LIMITS
    if "rtt" in groups:
        sides = {key: of("rtt", key) for key in _LIMITS["rtt"]}
        settings["rtt_tail"] = HeavyTail(centre=one, white=one, **sides)
        settings["latency"] = 0.0
    for name in ("regime", "outage"):
        if name in groups:
            fixed = {key: of(name, key) for key in ("level", "rtt", "share")}
            settings[name] = TwoState(stay=intervals(of(name, "stay_s")), **fixed)
    return network_process(rows.shape[0], **settings)
