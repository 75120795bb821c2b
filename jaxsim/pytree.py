"""The base of all pytrees of this project: frozen dataclasses whose fields are leaves."""

from __future__ import annotations

from flax import struct


class Pytree(struct.PyTreeNode):
    """A frozen dataclass that is a JAX pytree, with `replace`; `struct.field(pytree_node=False)` makes
    a field static.

        class Point(Pytree):
            at: Float[Array, "*J K"]  # [m]

    Annotations of fields name the axes of one instance as its maker builds it. They are not checked at
    construction: `jax.tree.map` and `jax.vmap` rebuild instances from whatever a function gave them,
    such as shapes, axes, batches or None. `tests/test_types.py` holds them against real instances.
    """

    # jaxtyping's import hook checks the fields of a dataclass unless the class says this.
    __no_type_check__ = True
