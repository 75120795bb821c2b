"""What moves send, with what is equal told once: the slowest link of each move is the same."""

import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxsim.planning.transfers import AMOUNTS_STEP, TRANSFERS_STEP, Transfers


def moves(seed, rows=5, side=3, amounts=4):
    """[P, P, K, K] of a few amounts, zero among them, on links of their own."""
    rng = np.random.default_rng(seed)
    values = np.sort(rng.uniform(0, 9, (amounts, side, side)), axis=0).astype(np.float32)
    values[0] = 0.0
    which = rng.integers(amounts, size=(rows, rows, side, side))
    return np.take_along_axis(values, which.reshape(-1, side, side), axis=0).reshape(which.shape)


def done(amounts_gb, seed):
    """Some time that depends on the link and grows with the amount."""
    speed = np.random.default_rng(seed + 1).uniform(0.1, 2, amounts_gb.shape[-1])
    return (np.asarray(amounts_gb) * speed.astype(np.float32)) ** 2


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10_000), st.integers(1, 6), st.integers(1, 5))
def test_the_slowest_link_of_every_move_is_found(seed, rows, amounts):
    bytes_gb = moves(seed, rows, amounts=amounts)
    by_hand = done(bytes_gb.reshape(rows, rows, -1), seed).max(axis=-1)
    for transfers in (Transfers.of(jnp.asarray(bytes_gb)), Transfers.distinct(bytes_gb)):
        found = transfers.slowest(jnp.asarray(done(transfers.amounts_gb, seed)))
        np.testing.assert_array_equal(found, by_hand)


def test_amounts_are_told_once_and_padded():
    transfers = Transfers.distinct(moves(0))
    assert transfers.amounts_gb.shape == (AMOUNTS_STEP, 9)
    assert transfers.which.shape == (TRANSFERS_STEP, 9) and transfers.which.max() < 4
    assert transfers.of_move.shape == (5, 5) and transfers.of_move.max() < 25
    # All moves alike: one transfer.
    assert Transfers.distinct(np.ones((5, 5, 3, 3))).of_move.max() == 0


def test_several_futures_stand_side_by_side():
    bytes_gb = moves(7)
    transfers = Transfers.distinct(bytes_gb)
    each = [done(transfers.amounts_gb, seed) for seed in (1, 2)]
    together = transfers.slowest(jnp.stack(list(map(jnp.asarray, each)), axis=-1))
    for which, one in enumerate(each):
        np.testing.assert_array_equal(together[..., which], transfers.slowest(jnp.asarray(one)))
