"""What a token is worth: the published model by hand, its bands, the setting that users say."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from helpers.shared_data import shared_data

from jaxsim.files import InputError
from jaxsim.learning import (
    Communication,
    best_batch_tokens,
    lower_end,
    published_efficiency,
    read_efficiency,
)

CENTRE = 0.0


def talk(replicas, period, gparams=1.0, bits=16.0, stages=16.0, overlap=0.0, tokens=1e6):
    numbers = np.broadcast_arrays(gparams, replicas, period, bits, stages, overlap, tokens)
    return Communication(*(jnp.asarray(x, jnp.float32) for x in numbers))


def by_hand(replicas, period, gparams):
    """The published formula in Python floats."""
    root = math.sqrt(replicas - 1)
    debt = -0.1636 + root * (
        0.1594 + 0.1976 * math.log10(period / 30) - 0.0848 * math.log10(min(gparams, 1.0))
    )
    return min((1 + 0.32 * debt) ** (-1 / 0.32), 1.0)


@pytest.mark.parametrize("replicas", [2, 4, 8, 16])
@pytest.mark.parametrize("period", [30, 100, 500])
@pytest.mark.parametrize("gparams", [0.15, 1.0, 70.0])
def test_the_centre_is_the_published_formula(replicas, period, gparams):
    band = published_efficiency().band(talk(replicas, period, gparams))
    assert float(band.centre) == pytest.approx(by_hand(replicas, period, gparams), rel=1e-4)
    assert float(band.low) < float(band.centre) <= float(band.high) <= 1.0


def test_four_at_30_and_eight_at_500_are_worth_what_was_published():
    band = published_efficiency().band(talk([4.0, 8.0], [30.0, 500.0]))
    np.testing.assert_allclose(band.centre, [0.90, 0.46], atol=0.01)
    assert not band.extrapolated[0] and band.extrapolated[1]


def test_syncs_more_often_than_30_steps_were_published_of_eight_small_replicas_alone():
    small = published_efficiency().band(talk([2.0, 4.0, 8.0, 16.0], 15.0, gparams=0.416))
    np.testing.assert_array_equal(small.extrapolated, [True, True, False, True])
    assert published_efficiency().band(talk([2.0, 4.0, 8.0], 15.0, gparams=7.0)).extrapolated.all()
    assert not published_efficiency().band(talk([2.0, 4.0], 30.0, gparams=7.0)).extrapolated.any()


def test_synchronous_training_in_16_bits_is_worth_one_whoever_trains():
    plain = published_efficiency().band(talk([1.0, 2.0, 16.0], 1.0, gparams=[0.1, 7.0, 400.0]))
    for end in (plain.low, plain.centre, plain.high):
        np.testing.assert_array_equal(end, 1.0)
    alone = published_efficiency().band(talk(1.0, 100.0, bits=4.0))  # nobody to talk to
    assert float(alone.low) == 1.0 and not bool(alone.extrapolated)


def test_below_its_least_period_the_formula_is_not_continued():
    band = published_efficiency().band(talk(4.0, [2.0, 9.0, 10.0]))
    np.testing.assert_array_equal(band.centre[:2], band.centre[2])
    assert band.extrapolated.all()


def test_more_replicas_rarer_syncs_and_fewer_bits_never_raise_an_end():
    worth = published_efficiency()
    for axis in (
        talk(np.arange(2.0, 17.0), 100.0, 7.0),
        talk(4.0, np.geomspace(10.0, 1000.0, 20), 7.0),
        talk(4.0, 30.0, 1.0, bits=np.arange(32.0, 1.0, -1.0)),
        talk(4.0, 30.0, 1.0, overlap=np.arange(0.0, 31.0)),
    ):
        band = worth.band(axis)
        for end in (band.low, band.centre, band.high):
            assert np.all(np.diff(np.asarray(end)) <= 1e-6)


def test_factors_on_top_multiply():
    plain, few, late = (
        published_efficiency().band(how)
        for how in (talk(8.0, 30.0), talk(8.0, 30.0, bits=4.0), talk(8.0, 30.0, overlap=30.0))
    )
    assert float(few.centre / plain.centre) == pytest.approx(0.98, rel=1e-5)
    assert float(few.low / plain.low) == pytest.approx(0.95, rel=1e-5)
    assert float(late.centre / plain.centre) == pytest.approx(0.76, rel=1e-5)
    # Gradients of every step, and activations between stages, have factors of their own.
    assert float(published_efficiency().band(talk(2.0, 1.0, bits=4.0)).low) == pytest.approx(0.96)
    assert float(published_efficiency().band(talk(1.0, 1.0, stages=8.0)).low) == pytest.approx(0.98)


def test_a_draw_moves_inside_the_band_and_the_lower_end_is_where_plans_are_chosen():
    how = talk(8.0, 100.0)
    worth = published_efficiency()
    band = worth.band(how)
    at = {d: float(worth.replace(deviate=jnp.float32(d)).of(how)) for d in (-9.0, -1.96, 0.0, 5.0)}
    assert at[-9.0] == at[-1.96] == float(band.low)
    assert at[0.0] == float(band.centre) and at[5.0] == float(band.high)
    drawn = worth.replace(deviate=jnp.float32(1.0))
    assert float(worth.of(how)) == float(lower_end(drawn).of(how)) < float(drawn.of(how))


def test_what_the_user_says(tmp_path):
    how = talk([1.0, 4.0], [1.0, 100.0], 7.0)
    none, given = read_efficiency("none"), read_efficiency("0.8")
    np.testing.assert_array_equal(none.of(how), [1.0, 1.0])
    np.testing.assert_array_equal(given.of(how), jnp.asarray([1.0, 0.8], jnp.float32))
    assert not given.band(how).extrapolated.any()
    path = tmp_path / "mine.csv"
    path.write_text(
        "parameter,value,lo95,hi95\nc0,0.0,0.0,0.0\nc1,0.2,0.1,0.3\nbatch_price,0.45,,\n"
    )
    mine = read_efficiency(path).replace(deviate=jnp.float32(CENTRE))
    debt = math.sqrt(3) * (0.2 + 0.1976 * math.log10(100 / 30))
    best = [0.22592 * 7e9**0.281 * 2048, 0.00709 * 7e9**0.4695 * 4**0.3399 * 2048]
    np.testing.assert_allclose(
        best_batch_tokens(jnp.float32(7.0), jnp.float32([1.0, 4.0]), jnp.array([False, True])),
        best,
        rtol=1e-3,
    )
    price = [(1e6 / b) ** -0.45 if b < 1e6 else 1.0 for b in best]
    np.testing.assert_allclose(
        mine.of(how), [price[0], (1 + 0.32 * debt) ** (-1 / 0.32) * price[1]], rtol=1e-3
    )


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("1.2", ["efficiency", "at most 1", "1.2"]),
        ("0", ["efficiency", "> 0"]),
        ("heuristic", ["efficiency", "published, none", "heuristic"]),
    ],
)
def test_refusals(said, words):
    with pytest.raises(InputError) as refused:
        read_efficiency(said)
    assert all(word in str(refused.value) for word in words)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("c9,1,1,1", ["line 2", "c9", "c0"]),
        ("c1,fast,1,1", ["line 2", "value", "fast"]),
        ("c1,2,0,1", ["line 2", "lo95 <= value <= hi95"]),
    ],
)
def test_refusals_of_a_file(tmp_path, line, words):
    path = tmp_path / "bad.csv"
    path.write_text(f"parameter,value,lo95,hi95\n{line}\n")
    with pytest.raises(InputError) as refused:
        read_efficiency(path)
    assert all(word in str(refused.value) for word in (str(path), *words))


def test_centre_and_band_follow_the_published_grid():
    import pandas as pd

    grid = pd.read_csv(shared_data("low_communication/eta_model_grid.csv"))
    columns = ["replicas_M", "sync_every_H_steps", "params"]
    replicas, period, params = (grid[name].to_numpy(np.float32) for name in columns)
    band = published_efficiency().band(talk(replicas, period, params / 1e9))
    centre, low, high = (np.asarray(x) for x in (band.centre, band.low, band.high))
    np.testing.assert_allclose(centre, grid.eta_capped_at_1, atol=1e-3)
    inside = (grid.support == "inside data").to_numpy()
    np.testing.assert_array_equal(~np.asarray(band.extrapolated), inside)
    off_low, off_high = low - grid.eta_lo95, high - np.minimum(grid.eta_hi95, 1.0)
    assert np.abs(off_low[inside]).max() < 0.03 and np.abs(off_high[inside]).max() < 0.05
    small = params <= 1e10
    assert np.abs(off_low[small]).max() < 0.04
    # Far outside the data the lower end may be off, rather too low than too high.
    assert off_low.min() > -0.11 and off_low.max() < 0.08
    assert np.sqrt((off_low**2).mean()) < 0.03


def test_the_published_parameters_are_a_file_that_users_may_give():
    path = shared_data("low_communication/eta_model_parameters.csv")
    how = talk([2.0, 8.0, 16.0], [30.0, 100.0, 500.0], [0.5, 7.0, 70.0])
    plain, read = published_efficiency().band(how), read_efficiency(path).band(how)
    for name in ("low", "centre", "high"):
        np.testing.assert_allclose(getattr(read, name), getattr(plain, name), rtol=1e-5)
