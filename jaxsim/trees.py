"""Pytrees whose leaves share a leading axis: one of many, and many from single ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxsim.short_axes import threadsafe


def as_leaf(value: Any, dtype: Any = np.float32) -> Any:
    """A number or an array as a leaf of this type. What is on the host stays there, where thousands of
    small leaves cost least; what is on the device or traced stays that."""
    return value.astype(dtype) if isinstance(value, jax.Array) else np.asarray(value, dtype)


def take(tree: Any, index: Any) -> Any:
    """`leaf[index]` of every leaf: for a number i, the i-th of many without the leading axis.

    `index` is whatever the leaves take: a number, a tuple of numbers, an array of numbers or a mask.
    NumPy leaves stay on the host. Numbers out of range are clipped under `jit`, as JAX does.
    """
    return jax.tree.map(lambda leaf: leaf[index], tree)


def take_at_once(tree: Any, index: Any) -> Any:
    """`take` outside of `jit`: all leaves on the device by one program, not each by one of its own."""
    leaves, structure = jax.tree.flatten(tree)
    there = [i for i, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)]
    taken = dict(zip(there, _take([leaves[i] for i in there], index), strict=True))
    return structure.unflatten(
        [taken[i] if i in taken else leaf[index] for i, leaf in enumerate(leaves)]
    )


_take = threadsafe(take)


def distinct(tree: Any) -> tuple[np.ndarray, np.ndarray]:
    """Which entries t of leaves [S, T, ...] differ: [D] the first of each kind, and [T] the kind of
    every entry, so that `x[:, first][:, kind]` is `x`. Entries are alike that are equal in all leaves
    and for all S."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    keys = [b"".join(x[:, t].tobytes() for x in leaves) for t in range(leaves[0].shape[1])]
    number: dict[bytes, int] = {}
    kind = np.array([number.setdefault(key, len(number)) for key in keys])
    return np.unique(kind, return_index=True)[1], kind


def stack(trees: Iterable[Any]) -> Any:
    """One tree from trees of the same structure and shapes: every leaf gains a leading axis.

    Leaves are JAX arrays. Raises ValueError where structures or shapes differ.
    """
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def stack_numpy(trees: Iterable[Any]) -> Any:
    """`stack` on the host: leaves are, or become, NumPy arrays."""
    return jax.tree.map(lambda *leaves: np.stack([np.asarray(x) for x in leaves]), *trees)


def stack_on_host(trees: Iterable[Any]) -> Any:
    """`stack` outside of `jit`, of leaves from host or device: each is copied once, and one that is the
    same object in all trees is repeated.

    Raises ValueError where structures or shapes differ.
    """
    trees = list(trees)

    def many(first, *others):
        if all(other is first for other in others):
            return jnp.broadcast_to(jnp.asarray(first), (len(trees), *np.shape(first)))
        return jnp.asarray(np.stack([np.asarray(leaf) for leaf in (first, *others)]))

    return jax.tree.map(many, *trees)
