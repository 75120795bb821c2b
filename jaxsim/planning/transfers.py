"""What moves between the rows of a table send over links, with what is equal told once.

A domain that lacks layers fetches whole ones, in equal parts from those who hold them: of P x P moves
over E links only some tens of amounts a link differ. Where links are done is looked up for these alone.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from jaxsim.planning.pairs import filled
from jaxsim.pytree import Pytree

# Amounts and transfers are padded to multiples of these: tables with others share programs.
AMOUNTS_STEP, TRANSFERS_STEP = 16, 1024


class Transfers(Pytree):
    """P x P moves over E links, as D transfers of U amounts a link; D = P x P and U = D where nothing
    is told apart."""

    amounts_gb: Float[Array, "*batch U E"]  # [GB]
    which: Int[Array, "*batch D E"] | None = None  # amount of each transfer; None: its own
    of_move: Int[Array, "*batch P P"] | None = None  # transfer of each move; None: its own

    @property
    def lots(self) -> tuple[int, int]:
        """Shape of what is looked up: (U, E), each amount of each link; (U, 1), whole transfers, where
        nothing is told apart."""
        n_amounts, n_links = self.amounts_gb.shape
        return n_amounts, 1 if self.which is None else n_links

    @staticmethod
    def of(bytes_gb: Float[Array, "P P *links"]) -> Transfers:
        """Of moves whose bytes are traced: nothing is told apart."""
        return Transfers(bytes_gb.reshape(bytes_gb.shape[0] ** 2, -1))

    @staticmethod
    def distinct(bytes_gb: Float[np.ndarray, "P P *links"]) -> Transfers:
        """Of moves whose bytes are known on the host."""
        n_rows = bytes_gb.shape[0]
        every = np.asarray(bytes_gb, np.float32).reshape(n_rows**2, -1)
        transfers, of_move = np.unique(every, axis=0, return_inverse=True)
        found = [np.unique(column, return_inverse=True) for column in transfers.T]
        size = filled(max(len(values) for values, _ in found), AMOUNTS_STEP)
        amounts = [np.pad(values, (0, size - len(values)), "edge") for values, _ in found]
        which = np.stack([index.ravel() for _, index in found], axis=1)
        which = which.astype(np.int16 if size <= np.iinfo(np.int16).max else np.int32)
        more = filled(len(which), TRANSFERS_STEP) - len(which)
        return Transfers(
            amounts_gb=jnp.asarray(np.stack(amounts, axis=1)),
            which=jnp.asarray(np.pad(which, ((0, more), (0, 0)), "edge")),
            of_move=jnp.asarray(of_move.reshape(n_rows, n_rows), jnp.int32),
        )

    def slowest(self, done_s: Float[Array, "U E *more"]) -> Float[Array, "P P *more"]:
        """[P, P] when all links of each move are done, given when each link has carried each amount."""
        n_links, *more = done_s.shape[1:]
        if self.which is not None:
            link = jnp.arange(n_links, dtype=jnp.int32)[None]
            place = self.which.astype(jnp.int32) * n_links + link
            done_s = done_s.reshape(-1, *more).at[place].get(mode="promise_in_bounds")
        done_s = done_s.max(axis=1)
        if self.of_move is not None:
            return done_s.at[self.of_move].get(mode="promise_in_bounds")
        n_rows = math.isqrt(done_s.shape[0])
        return done_s.reshape(n_rows, n_rows, *more)
