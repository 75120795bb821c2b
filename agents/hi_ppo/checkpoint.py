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

from agents.hi_ppo.scheduler import HiPPO, PolicyParams, policy_shapes
from agents.hi_ppo.settings import ENCODERS, LOWER_LEVELS, REFERENCES, Networks
from jaxsim.files import InputError, is_file, listed, parse_json, read_bytes, shown, values

VERSION = 2
HEADER_UNCHECKED = 1  # the older version, whose checksum covers the arrays alone; still read
MOST_BYTES = 2**30
MOST_HIDDEN, MOST_EVERY, MOST_SEEDS = 4096, 1_000_000, 1000
MAGIC = b"hippo-checkpoint\n"
FILE_NAME = "checkpoint.msgpack"
SHIPPED = "hi_ppo.msgpack"
KNOWN = {"encoder": ENCODERS, "lower_level": LOWER_LEVELS, "reference": REFERENCES}
OLDER = {"reference": "base"}  # of files that do not say: where the default has changed since


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """What a file holds: a pytree of arrays as nested dicts, and how it came to be."""

    # hidden, encoder, forecasts, lower_level, reference, every, seeds, epoch, config;
    # rivals: settings tuned beside it
    meta: dict[str, Any]
    tree: dict[str, Any]
    source: str = "checkpoint"  # for messages


def save_checkpoint(path: Path, tree: Any, meta: dict[str, Any]) -> None:
    """Write arrays and their description; the file appears complete or not at all.

    Raises InputError, and leaves an older file as it is, where an array is no longer finite: such a
    policy has diverged.
    """
    arrays = jax.tree.map(np.asarray, serialization.to_state_dict(tree))
    _refuse_diverged(path, arrays)
    body = serialization.msgpack_serialize(arrays)
    header = json.dumps({"version": VERSION, **meta}).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not tempfile, whose files nobody else may read: the umask decides, as for any other file.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(MAGIC + header + b"\n" + _digest(header, body) + b"\n" + body)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _digest(header: bytes, body: bytes) -> bytes:
    return hashlib.sha256(header + b"\n" + body).hexdigest().encode()


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

    Raises InputError for a file that is missing, truncated, of another version or no checkpoint, and
    for one whose description or arrays cannot be a policy's.
    """
    path = Path(path)
    try:
        if path.is_dir():
            path = path / FILE_NAME
    except OSError as error:  # a name too long to ask
        raise InputError(f"{path}: no checkpoint there: {error.strerror}") from None
    if not is_file(str(path)):
        raise InputError(f"{path}: no checkpoint there: no such file")
    return _parse(read_bytes(path, "a checkpoint", MOST_BYTES), str(path))


def load_shipped() -> Checkpoint:
    """The checkpoint that comes with the package; InputError where a build left it out."""
    resource = importlib.resources.files("agents.hi_ppo") / SHIPPED
    if not resource.is_file():
        raise InputError(f"hi_ppo: this installation ships no checkpoint {SHIPPED}; name a path")
    return _parse(resource.read_bytes(), SHIPPED)


def load_trained(path: str | Path | None = None) -> Checkpoint:
    """A checkpoint whose policies can play; None is the one that ships.

    Raises InputError as `load_checkpoint` does, and for weights of other shapes than the networks'.
    """
    source = SHIPPED if path is None else str(path)
    checkpoint = load_shipped() if path is None else load_checkpoint(path)
    expected = serialization.to_state_dict(policy_shapes(networks_of(checkpoint)))
    count = len(checkpoint.meta["seeds"])
    _check_like(checkpoint.tree["policy"], expected, f"{source}: policy", (count,))
    return checkpoint


def _parse(content: bytes, source: str) -> Checkpoint:
    if not content.startswith(MAGIC):
        raise InputError(f"{source}: not a Hi-PPO checkpoint")
    header, _, body = content[len(MAGIC) :].partition(b"\n")
    try:
        meta = dict(parse_json(header.decode(), source, "a header"))
        version = meta.pop("version")
        digest = meta.pop("sha256").encode() if version == HEADER_UNCHECKED else b""
    except (ValueError, KeyError, AttributeError, TypeError):
        raise InputError(f"{source}: truncated or damaged: its header cannot be read") from None
    if version not in (VERSION, HEADER_UNCHECKED) or isinstance(version, bool):
        read = f"this program reads version {VERSION}"
        raise InputError(f"{source}: version {shown(version)}; {read}")
    if version == VERSION:
        digest, _, body = body.partition(b"\n")
        good = digest == _digest(header, body)
    else:
        good = digest == hashlib.sha256(body).hexdigest().encode()
    if not good:
        raise InputError(f"{source}: truncated or damaged: the checksum does not match")
    _check_meta(meta, source)
    try:
        tree = serialization.msgpack_restore(body)
    except Exception as error:  # msgpack has no common class of its faults
        raise InputError(f"{source}: damaged: its arrays cannot be read: {error}") from None
    _check_tree(tree, len(meta["seeds"]), source)
    return Checkpoint(meta, tree, source)  # pyright: ignore[reportArgumentType]


def _check_meta(meta: dict[str, Any], source: str) -> None:
    for key in ("hidden", "every", "seeds", "epoch", "config"):
        if key not in meta:
            raise InputError(f"{source}: header: missing key {key!r}")
    values.count(meta["hidden"], f"{source}: hidden", high=MOST_HIDDEN)
    for key, allowed in KNOWN.items():
        if (given := meta.get(key, allowed[0])) not in allowed:
            raise InputError(f"{source}: {key}: expected {listed(allowed)}, got {shown(given)}")
    if not isinstance(forecasts := meta.get("forecasts", False), bool):
        raise InputError(f"{source}: forecasts: expected true or false, got {shown(forecasts)}")
    values.count(meta["every"], f"{source}: every", high=MOST_EVERY)
    values.count(meta["epoch"], f"{source}: epoch", low=0)
    seeds = values.entries(meta["seeds"], f"{source}: seeds", "seed")
    for seed in seeds:
        values.count(seed, f"{source}: seeds", low=0, high=2**63)
    if len(set(seeds)) < len(seeds) or len(seeds) > MOST_SEEDS:
        allowed = f"different ones, {MOST_SEEDS} at most"
        raise InputError(f"{source}: seeds: expected {allowed}, got {shown(seeds)}")
    if not isinstance(meta["config"], dict):
        raise InputError(f"{source}: config: expected a mapping, got {shown(meta['config'])}")
    rivals = meta.get("rivals", {})
    if not isinstance(rivals, dict):
        raise InputError(f"{source}: rivals: expected a mapping, got {shown(rivals)}")
    for key, value in rivals.items():
        values.number(value, f"{source}: rivals: {key}")


def _check_tree(tree: Any, count: int, source: str) -> None:
    """Raise InputError unless these are finite arrays, those of the policy with one row a seed."""
    if not isinstance(tree, dict) or not isinstance(tree.get("policy"), dict):
        raise InputError(f"{source}: holds no policy")
    if set(tree["policy"]) != {"upper", "lower"}:
        raise InputError(f"{source}: policy: expected an upper and a lower one")
    for where, array in jax.tree_util.tree_leaves_with_path(tree):
        name = jax.tree_util.keystr(where, simple=True, separator=".")
        kind = getattr(getattr(array, "dtype", None), "kind", "")
        if not isinstance(array, np.ndarray) or kind not in "biuf":
            raise InputError(f"{source}: {name}: expected an array of numbers")
        if kind == "f" and not np.isfinite(array).all():
            raise InputError(f"{source}: {name} is not finite")
        if name.startswith("policy.") and array.shape[:1] != (count,):
            rows = f"{count} seeds, but arrays of shape {array.shape}"
            raise InputError(f"{source}: {name}: {rows}")


def _check_like(tree: Any, like: Any, where: str, lead: tuple[int, ...] = ()) -> None:
    """Raise InputError for a nested dict of arrays that differs from `like` in names, shapes (after
    the axes `lead`) or types."""
    if isinstance(like, dict):
        if not isinstance(tree, dict) or set(tree) != set(like):
            got = listed(tree) if isinstance(tree, dict) else "an array"
            raise InputError(f"{where}: expected {listed(like) or 'nothing'}, got {got}")
        for name in like:
            _check_like(tree[name], like[name], f"{where}.{name}", lead)
        return
    expected = f"{np.dtype(like.dtype).name} {(*lead, *like.shape)}"
    got = "no array"
    if hasattr(tree, "shape"):
        got = f"{np.dtype(tree.dtype).name} {tuple(tree.shape)}"
    if got != expected:
        raise InputError(f"{where}: expected an array {expected}, got {got}")


def restore(checkpoint: Checkpoint, target: Any) -> Any:
    """Put the arrays of a checkpoint into a pytree of the same structure.

    Raises InputError where names, shapes or types differ.
    """
    _check_like(checkpoint.tree, serialization.to_state_dict(target), checkpoint.source)
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
    every, networks = jnp.int32(checkpoint.meta["every"]), networks_of(checkpoint)
    return [HiPPO(policy, every, networks) for policy in policies(checkpoint)]


def networks_of(checkpoint: Checkpoint) -> Networks:
    """What its parameters are of; what an older file does not say is as it was then."""
    names = {field.name for field in dataclasses.fields(Networks)}
    told = {**OLDER, **checkpoint.meta}
    return Networks(**{key: value for key, value in told.items() if key in names})
