"""What a table is chosen by, where weights may be asked for."""

import types

import jax
import numpy as np
from helpers.toy_world import base_view, cluster_spec, make_plan

from jaxsim.planning import table
from jaxsim.planning.table import preferred

# Training steps per second, utilisation, egress over the GPUs' price, steps per USD of three plans.
FAST, CLEAN, CHEAP = (2.0, 0.5, 1.0, 10.0), (1.0, 0.4, 0.0, 12.0), (0.5, 0.1, 0.2, 40.0)


def test_every_weight_and_the_price_of_a_token_is_a_network_more(monkeypatch):
    cluster = cluster_spec(2).to_arrays()
    builder = types.SimpleNamespace(problem=types.SimpleNamespace(cluster=cluster))
    views = jax.tree.map(lambda x: np.stack([np.asarray(x)] * 8), base_view(cluster))
    asked = []

    def parts(plans, few, problem):
        asked.append(few.gpus_available.shape[0])
        size = len(plans.group)
        each = np.zeros((size, 2, 4))  # the second choice runs nowhere
        each[:3, 0] = FAST, CLEAN, CHEAP
        return np.broadcast_to(each, (asked[-1], size, 2, 4))

    monkeypatch.setattr(table, "_PARTS", parts)
    plans = [jax.tree.map(np.asarray, make_plan([(0,)], [(8,)], [8]))] * 3
    weights = ((1.0, 0.0, 0.0, 0.0), (1.0, 0.0, 1.0, 0.0), (0.0, 0.0, 1.0, 0.0))
    found = preferred(builder, plans, views, weights)
    count = asked[0]
    assert asked == [1 + table.PRICED_VIEWS] and found.shape == (count * 7, 3)
    price, three_quarters, half, quarter, progress, both, traffic = found[::count]
    np.testing.assert_allclose(price, [0.25, 0.3, 1.0], rtol=1e-6)
    # Per second the fast one costs 4, the clean one 5/3, the cheap one 1/4: what a budget leaves.
    np.testing.assert_allclose([three_quarters, half, quarter], [[0, 1, 0.5]] * 2 + [[0, 0, 1]])
    np.testing.assert_allclose(progress, [1.0, 0.5, 0.25], rtol=1e-6)
    # Progress relative to the fastest, less egress: 0, 0.5 and 0.05.
    np.testing.assert_allclose(both, [0.0, 1.0, 0.1], atol=1e-6)
    assert traffic.tolist() == [0.0, 1.0, 0.0]  # nothing but the plan without traffic is worth it
    # Together they keep all three, where rates alone keep one.
    rates = np.array([[2.0, 1.0, 0.5]] * 5, np.float32)
    assert table._cover(rates, [0], 3) == [0]
    assert set(table._cover(np.concatenate([rates, 2.0 * found]), [0], 3)) == {0, 1, 2}


def test_what_is_always_a_candidate_is_one_however_slow_it_is():
    """Of what is not, those come first that are nearest to the best in some state or by some weight."""
    base = np.array([1.0, 9.0, 8.0, 0.5, 7.0, 10.0])
    views = np.zeros(table.FIRST_VIEWS)
    rates = np.array([[1.0, 4.0, 5.0, 0.5, 10.0, 5.0]])
    builder = types.SimpleNamespace(rates=lambda plans, few: rates)
    always = np.array([True, False, False, True, False, False])
    wanted = np.zeros((0, 6))

    def kept(most, wanted=wanted, always=always):
        found = table._candidates(builder, None, base, views, always, wanted, most)
        return found.tolist()

    assert kept(6) == [0, 1, 2, 3, 4, 5]
    assert kept(4) == [0, 3, 4, 5], "the two, the best at base and the best in the other state"
    assert kept(1) == [0, 3], "all that are always in"
    dear = np.array([[0.0, 0.0, 1.0, 0.0, 0.0, 0.0]])
    assert kept(3, dear, np.zeros(6, bool)) == [2, 4, 5]
