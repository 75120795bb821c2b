"""Checkpoints: one file, written whole or not at all, that says what it is."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.resources
import json
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import serialization

from agents.hi_ppo.scheduler import HiPPO, PolicyParams
from jaxsim.files import InputError

VERSION = 1
MAGIC = b"hippo-checkpoint\n"
FILE_NAME = "checkpoint.msgpack"
SHIPPED = "hi_ppo.msgpack"


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """What a file holds: a pytree of arrays as nested dicts, and how it came to be."""

    meta: dict[str, Any]  # hidden, every, seeds, epoch, config
    tree: dict[str, Any]


def save_checkpoint(path: Path, tree: Any, meta: dict[str, Any]) -> None:
    """Write arrays and their description; the file appears complete or not at all.

    Raises InputError, and leaves an older file as it is, where an array is no longer finite: such a
    policy has diverged.
    """
    arrays = jax.tree.map(np.asarray, serialization.to_state_dict(tree))
    _refuse_diverged(path, arrays)
    body = serialization.msgpack_serialize(arrays)
    header = {"version": VERSION, "sha256": hashlib.sha256(body).hexdigest(), **meta}
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not tempfile, whose files nobody else may read: the umask decides, as for any other file.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(MAGIC + json.dumps(header).encode() + b"\n" + body)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _refuse_diverged(path: Path, arrays: Any) -> None:
    for where, array in jax.tree_util.tree_leaves_with_path(arrays):
        if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all():
            name = jax.tree_util.keystr(where, simple=True, separator=".")
            kept = "the older file is kept" if path.exists() else "there is no older file"
            raise InputError(
                f"{path}: not written: {name} is not finite, training has diverged (a smaller "
                f"learning_rate may help); {kept}"
            )


def load_checkpoint(path: str | Path) -> Checkpoint:
    """Read a checkpoint file, or the one in a run folder.

    Raises InputError for a file that is missing, truncated, of another version or no checkpoint.
    """
    path = Path(path)
    if path.is_dir():
        path = path / FILE_NAME
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: no checkpoint there: {error.strerror}") from None
    return _parse(content, str(path))


def load_shipped() -> Checkpoint:
    """The checkpoint that comes with the package; InputError where a build left it out."""
    resource = importlib.resources.files("agents.hi_ppo") / SHIPPED
    if not resource.is_file():
        raise InputError(f"hi_ppo: this installation ships no checkpoint {SHIPPED}; name a path")
    return _parse(resource.read_bytes(), SHIPPED)


def _parse(content: bytes, source: str) -> Checkpoint:
    if not content.startswith(MAGIC):
        raise InputError(f"{source}: not a Hi-PPO checkpoint")
    header, _, body = content[len(MAGIC) :].partition(b"\n")
    try:
        meta = json.loads(header)
        version, digest = meta.pop("version"), meta.pop("sha256")
    except (ValueError, KeyError, AttributeError, TypeError):
        raise InputError(f"{source}: truncated or damaged: its header cannot be read") from None
    if version != VERSION:
        raise InputError(f"{source}: version {version!r}; this program reads version {VERSION}")
    if hashlib.sha256(body).hexdigest() != digest:
        raise InputError(f"{source}: truncated or damaged: the checksum does not match")
    return Checkpoint(meta, serialization.msgpack_restore(body))


def restore(checkpoint: Checkpoint, target: Any) -> Any:
    """Put the arrays of a checkpoint into a pytree of the same structure."""
    return jax.tree.map(jnp.asarray, serialization.from_state_dict(target, checkpoint.tree))


def policies(checkpoint: Checkpoint) -> list[PolicyParams]:
    """The policies in a checkpoint, one per seed."""
    tree = checkpoint.tree["policy"]
    count = len(checkpoint.meta["seeds"])

    def pick(i):
        return jax.tree.map(lambda x: jnp.asarray(x[i]), tree)

    return [PolicyParams(upper=p["upper"], lower=p["lower"]) for p in map(pick, range(count))]


def schedulers(checkpoint: Checkpoint) -> list[HiPPO]:
    """The schedulers in a checkpoint, one per policy seed, not yet bound to a setup."""
    every, hidden = jnp.int32(checkpoint.meta["every"]), checkpoint.meta["hidden"]
    return [HiPPO(policy, every, hidden) for policy in policies(checkpoint)]
