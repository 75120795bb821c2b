"""What the files say that a design names: parts that were played from others are not taken over."""

from __future__ import annotations

import hashlib
from pathlib import Path

from agents import registry
from agents.hi_ppo import FILE_NAME
from analysis.provenance import package_versions
from experiments.common import SEARCH
from experiments.sweep.config import SweepConfig
from jaxsim.cluster import list_clusters, load_cluster
from jaxsim.workload import MODEL_PRESETS

VERSION = "version"  # of this package, which brings the embedded clusters, models and policy


def digests(config: SweepConfig) -> dict[str, str]:
    """What each file holds that the rows of a sweep depend on, in short, by its name; the package's
    version covers what is embedded. The files are there: `check_inputs` has read them."""
    files: dict[str, Path] = {}
    for name in config.cluster:
        if name not in list_clusters():
            files[f"cluster {name}"] = Path(name)
            if (calibration := load_cluster(name).calibration_file) is not None:
                files[f"calibration {calibration}"] = Path(calibration)
    for name in config.model:
        if name not in MODEL_PRESETS:
            files[f"model {name}"] = Path(name)
    if Path(config.efficiency).is_file():
        files[f"efficiency {config.efficiency}"] = Path(config.efficiency)
    for name in config.names:
        if (bare := name.removesuffix(SEARCH)) not in registry.names():
            path = Path(bare)
            files[f"checkpoint {name}"] = path / FILE_NAME if path.is_dir() else path
    found = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}
    version = package_versions(("hippo-sched",)).get("hippo-sched", "unknown")
    return {VERSION: version, **found}


def changed(before: dict[str, str], now: dict[str, str]) -> list[str]:
    """What is not as it was, in words; the names of both are the same where the settings are."""
    told = []
    for name, value in now.items():
        if before.get(name) != value:
            if name == VERSION:
                told.append(f"hippo-sched has changed from {before.get(name)} to {value}")
            else:
                told.append(f"{name} has changed")
    return told
