"""Where a run came from: commit, package versions and machine, without importing jax or torch."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections import Counter
from importlib import metadata
from pathlib import Path

CORE_PACKAGES = (
    "hippo-sched",
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "chex",
    "jraph",
    "numpy",
    "scipy",
    "pandas",
    "matplotlib",
    "torch",
    "transformers",
    "datasets",
)


def _output(*command: str) -> str | None:
    """Standard output of a command, stripped; None when it is absent, slow or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def git_state(source: Path | None = None) -> tuple[str | None, bool | None]:
    """(commit, dirty) of the repository that tracks `source`; (None, None) outside git.

    `source` defaults to this file. It must be tracked: an installed copy may lie in a virtual
    environment inside somebody else's repository, whose commit would say nothing about this code.
    """
    source = Path(__file__ if source is None else source).resolve()
    git = ("git", "-C", str(source.parent))
    if _output(*git, "ls-files", "--error-unmatch", source.name) is None:
        return None, None
    commit = _output(*git, "rev-parse", "HEAD")
    status = _output(*git, "status", "--porcelain", "--untracked-files=no")
    return commit, None if status is None else bool(status)


def package_versions(names: tuple[str, ...] = CORE_PACKAGES) -> dict[str, str]:
    """Versions of those of `names` that are installed."""
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    """The processor's model name; `platform` alone gives only the architecture on Linux."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _memory_gb() -> float | None:
    """Physical memory [GB], None where the system does not report it."""
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 2)
    except (AttributeError, OSError, ValueError):
        return None


def _accelerator() -> str | None:
    """Names of the GPUs present such as '4 x NVIDIA A100', None without one."""
    if shutil.which("nvidia-smi") is None:
        return None
    listing = _output("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
    if not listing:
        return None
    return ", ".join(f"{n} x {name}" for name, n in Counter(listing.splitlines()).items())


def machine() -> dict[str, str | int | float | None]:
    """Interpreter, operating system, processor, cores, memory [GB] and accelerator."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gb": _memory_gb(),
        "accelerator": _accelerator(),
    }
