"""Versions, devices, folders, capabilities: what is there, and what a command lacks."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from experiments.common import compile_cache, module_output

PROJECT = "hippo-sched"
REAL_TRAINING = ("ddp", "parallel", "memory", "microbench", "communication", "comparative")
# Modules that read an exported plan with the framework's own parser; where they are missing, the files
# are written all the same.
FRAMEWORKS = {
    "torchtitan": ("torchtitan", "torchft"),
    "megatron": ("megatron.core",),
    "deepspeed": ("deepspeed",),
    "maxtext": ("maxtext",),
    "chakra": ("google.protobuf",),
    "ns3": ("ns3",),
}
# Distribution -> release that an export is written for; another one may read the files differently.
RELEASES = {
    "torchtitan": {"torchtitan": "0.3.0", "torchft": "0.2.0"},
    "megatron": {"megatron-core": "0.16.1"},
    "deepspeed": {"deepspeed": "0.19.8"},
    "maxtext": {"maxtext": "0.2.5"},
}


def examined(commands: Iterable[str]) -> dict[str, Any]:
    """The whole answer, as --json writes it; `commands` are those of `hippo`."""
    packages = versions()
    network = wide_area_network()
    return {
        "python": platform.python_version(),
        "machine": machine(),
        "packages": packages,
        "devices": devices(),
        "folders": folders(),
        "commands": {name: ready(name, packages, network) for name in commands},
        "export_checks": exports(),
    }


def versions() -> list[dict[str, Any]]:
    """Of every package that this one asks for: name, extra ("" = always), what is asked for, what is
    installed (None = nothing), and whether that fits."""
    rows = [{"name": PROJECT, "extra": "", "wanted": "", **_installed(Requirement(PROJECT))}]
    try:
        asked = metadata.requires(PROJECT) or []
    except metadata.PackageNotFoundError:
        return rows
    extras = metadata.metadata(PROJECT).get_all("Provides-Extra") or []
    for text in asked:
        wanted = Requirement(text)
        within = [e for e in ("", *extras) if not wanted.marker or _holds(wanted, e)]
        if within:
            name = (
                f"{wanted.name}[{','.join(sorted(wanted.extras))}]"
                if wanted.extras
                else wanted.name
            )
            about = {"name": name, "extra": within[0], "wanted": str(wanted.specifier)}
            rows.append({**about, **_installed(wanted)})
    return rows


def _holds(wanted: Requirement, extra: str) -> bool:
    return wanted.marker is not None and wanted.marker.evaluate({"extra": extra})


def _installed(wanted: Requirement) -> dict[str, Any]:
    try:
        version = metadata.version(wanted.name)
    except metadata.PackageNotFoundError:
        return {"version": None, "fits": False}
    fits = wanted.specifier.contains(version, prereleases=True)
    return {"version": version, "fits": fits and all(_has(wanted.name, e) for e in wanted.extras)}


def _has(package: str, extra: str) -> bool:
    """Is all that an extra of another package asks for installed?"""
    asked = [Requirement(text) for text in metadata.requires(package) or []]
    return all(
        _installed(one)["fits"]
        for one in asked
        if one.marker and not one.marker.evaluate({"extra": ""}) and _holds(one, extra)
    )


def machine() -> dict[str, Any]:
    """System, CPU cores that this process may use, memory [GB]."""
    try:
        cores = len(os.sched_getaffinity(0))
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not Linux
        cores, pages = os.cpu_count() or 1, None
    memory = None if pages is None else round(pages / 1e9, 1)
    return {"system": platform.platform(), "cpu_cores": cores, "memory_gb": memory}


def devices() -> list[dict[str, Any]]:
    """What JAX computes on; nothing is allocated there."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    try:
        import jax

        found = jax.devices()
    except (ImportError, RuntimeError) as error:
        return [{"platform": None, "kind": str(error).splitlines()[0], "memory_gb": None}]
    return [
        {"platform": d.platform, "kind": d.device_kind, "memory_gb": _memory_gb(d)} for d in found
    ]


def _memory_gb(device: Any) -> float | None:
    stats = device.memory_stats() or {}
    return round(stats["bytes_limit"] / 1e9, 1) if "bytes_limit" in stats else None


def folders() -> list[dict[str, Any]]:
    """Folders that commands write to: what for, path, whether it can be written, what is in it [MB]."""
    home = Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface"))
    places = {
        "compiled programs": compile_cache(),
        "texts and tokenizers": home,
        "run folders": Path("outputs").resolve(),
    }
    return [{"for": name, **_folder(path)} for name, path in places.items()]


def _folder(path: Path) -> dict[str, Any]:
    above = next(p for p in (path, *path.parents) if p.exists())
    writable = above.is_dir() and os.access(above, os.W_OK | os.X_OK)
    there = path.is_dir()
    return {
        "path": str(path),
        "exists": there,
        "writable": writable,
        "mb": round(_bytes_in(path) / 1e6, 1) if there else None,
    }


def _bytes_in(path: Path) -> int:
    total = 0
    for folder, _, names in os.walk(path, onerror=lambda error: None):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_size
            except OSError:  # gone meanwhile
                continue
    return total


def wide_area_network() -> str:
    """What is missing for an emulated network, "" if nothing."""
    try:
        return module_output("ddp_bench.wan", "capability")
    except (OSError, subprocess.SubprocessError) as error:
        return f"ddp_bench.wan does not start: {error}"


def ready(name: str, packages: list[Mapping[str, Any]], network: str) -> dict[str, Any]:
    """Whether a command can do its work here, what it lacks, and what only a part of it lacks."""
    extra = "ddp" if name in REAL_TRAINING else ""
    lacks = _unfit(packages, extra)
    part = []
    if name == "wan":
        lacks += [network] if network else []
        part += [f"run, study: {text}" for text in _unfit(packages, "ddp", ("",))]
    if name == "sweep":
        scale = _unfit(packages, "scale", ("",))
        lacks += [text for text in scale if not text.startswith("ray")]
        part += [f"--executor ray: {text}" for text in scale if text.startswith("ray")]
    if name == "comparative":
        part += _unfit(packages, "toolbox", ("",))
    if name == "report":
        part += [f"--html: {text}" for text in _unfit(packages, "html", ("",))]
    if name in ("wan", "probe") and shutil.which("iperf3") is None:
        part.append("iperf3 is not installed: nothing is measured with it")
    return {"ready": not lacks, "missing": lacks, "parts": part}


def _unfit(
    packages: list[Mapping[str, Any]], extra: str, besides: tuple[str, ...] = ()
) -> list[str]:
    """Packages without an extra, and of `extra`, that are missing or of another version."""
    wanted = {"", extra} - set(besides)
    return [
        f"{row['name']}{row['wanted']}"
        + (f" (found {row['version']})" if row["version"] else "")
        + (f": pip install '{PROJECT}[{row['extra']}]'" if row["extra"] else "")
        for row in packages
        if row["extra"] in wanted and not row["fits"] and row["name"] != PROJECT
    ]


def exports() -> dict[str, dict[str, Any]]:
    """For each format of `hippo plan --export`: can the framework's own parser check it here? Modules
    that are missing, and packages of another release than the export is for, in words."""
    found = {}
    for name, modules in FRAMEWORKS.items():
        missing = [module for module in modules if not _importable(module)]
        others = other_releases(RELEASES.get(name, {}))
        found[name] = {"ready": not missing + others, "missing": missing, "other_releases": others}
    return found


def other_releases(wanted: Mapping[str, str]) -> list[str]:
    """Of packages and the releases that are wanted: what is here instead. One that is not installed
    under its name has no release to compare."""
    told = []
    for package, release in wanted.items():
        version = _installed(Requirement(f"{package}=={release}"))
        if version["version"] is not None and not version["fits"]:
            told.append(f"{package} {version['version']} is here, the export is for {release}")
    return told


def _importable(module: str) -> bool:
    """Whether a module is there; the packages above it are imported, it is not."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError, AttributeError):
        return False
