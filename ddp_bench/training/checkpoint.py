"""Save and restore a run: models, optimizers, scalers, and every rank's place in the data."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ddp_bench.errors import ConfigError
from ddp_bench.ranks import Control
from ddp_bench.training.runner import Runner

FILE = "checkpoint.pt"
FORMAT = 1


def _to_tensors(value: Any) -> Any:
    """Arrays to tensors and big integers to strings: what can be loaded without running code."""
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy())
    if isinstance(value, dict):
        return {key: _to_tensors(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_tensors(item) for item in value]
    if isinstance(value, np.integer | np.floating):
        return value.item()
    return value


def _to_arrays(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.numpy()
    if isinstance(value, dict):
        return {key: _to_arrays(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_to_arrays(item) for item in value]
    return value


def _rng_state(device: torch.device) -> dict:
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def save(
    folder: Path | None, step: int, runners: dict[str, Runner], control: Control, key: dict
) -> None:
    """Write `folder`/checkpoint.pt on rank 0, atomically; `step` is the next step to train.

    Args:
        folder: on rank 0; not used elsewhere.
        key: settings that must not change over a resume.
    """
    device = next(iter(runners.values())).device
    mine = {
        "rng": _rng_state(device),
        "arms": {label: _to_tensors(r.arm.state_dict()) for label, r in runners.items()},
    }
    ranks = control.gather_objects(mine)
    if ranks is None or folder is None:
        return
    content = {
        "format": FORMAT,
        "step": step,
        "key": key,
        "ranks": ranks,
        "runners": {label: r.state_dict() for label, r in runners.items()},
    }
    temporary = folder / f".{FILE}.tmp"
    torch.save(content, temporary)
    os.replace(temporary, folder / FILE)


def load(folder: Path, runners: dict[str, Runner], control: Control, key: dict) -> int:
    """Restore what `save` wrote; returns the next step to train.

    Raises:
        ConfigError: naming the file and the setting that differs, or what is wrong with the file.
    """
    path = folder / FILE
    if not path.is_file():
        raise ConfigError(f"{path}: no checkpoint; allowed is a run with --checkpoint_every > 0")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        _check(path, content, key)
        _restore(content, runners, control.rank)
        return content["step"]
    except ConfigError:
        raise
    except Exception as error:  # damaged files make torch raise all kinds
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ConfigError(f"{path}: damaged, or not of this program: {reason}") from None


def _check(path: Path, content: dict, key: dict) -> None:
    if content.get("format") != FORMAT:
        raise ConfigError(f"{path}: format {content.get('format')!r}; allowed is {FORMAT}")
    for name, value in key.items():
        saved = content["key"].get(name)
        if saved != value:
            raise ConfigError(f"{path}: {name} is {value!r}; allowed to resume is {saved!r}")


def _restore(content: dict, runners: dict[str, Runner], rank: int) -> None:
    mine = content["ranks"][rank]
    for label, runner in runners.items():
        runner.load_state_dict(content["runners"][label])
        runner.arm.load_state_dict(_to_arrays(mine["arms"][label]))
    torch.set_rng_state(mine["rng"]["cpu"])
    if "cuda" in mine["rng"]:
        torch.cuda.set_rng_state(mine["rng"]["cuda"])
