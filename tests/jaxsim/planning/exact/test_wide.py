"""The search of the whole plan space against scoring every plan of it."""

import dataclasses
import functools
import itertools
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from helpers.every_plan import drawn_calibration, drawn_cluster, every_plan, rates_of
from helpers.toy_world import GPU, JOB, base_view, calibration, cluster_spec

from jaxsim.files import InputError
from jaxsim.plan import Problem, Recompute, Schedule
from jaxsim.planning import (
    Exchange,
    PlanFamily,
    PlanSpace,
    layer_pace,
    partitions,
)
from jaxsim.planning.exact import SpaceSearch
from jaxsim.planning.exact.blocks import placements
from jaxsim.step_time.sync import ring_rate_gb_per_s
from jaxsim.trees import take
from jaxsim.workload.number_bytes import SENT_GRADIENT_BYTES
from jaxsim.workload.workload import build_workload

CHOICES = (
    (1, Recompute.NONE, Schedule.ONE_F_ONE_B),
    (2, Recompute.FULL, Schedule.EAGER_1F1B),
)
SPACE = PlanSpace(
    max_pipeline=2,
    groups=PlanFamily(cuts=("even",), tensor_parallel=(1,), choices=CHOICES),
    periods=(30,),
    bits=(16, 4),
    activation_bits=(16, 8),
    streams=((1, 0), (5, 1)),
)
# Fewer ways to talk, more that a group may be: sharded weights, shared sequences, half of the GPUs
SHARDED = dataclasses.replace(
    SPACE,
    groups=dataclasses.replace(
        SPACE.groups, zero_stages=(1, 3), context_parallel=(1, 2), parts=(1, 2)
    ),
    bits=(16,),
    streams=((5, 1),),
)
SPACES = {"talk": SPACE, "sharded": SHARDED}
WORK = build_workload([JOB]).job(0)


@functools.cache
def search(n, space="talk"):
    """Of a toy cluster of n domains."""
    cluster = cluster_spec(n, gpus=2).to_arrays()
    return SpaceSearch(Problem(WORK, cluster, calibration()), SPACES[space])


def test_partitions_of_three_by_hand():
    found = set(partitions(3, 2))
    by_hand = {(1,), (2,), (4,), (1, 2), (1, 4), (2, 4), (1, 2, 4), (3,), (5,), (6,)}
    by_hand |= {(3, 4), (5, 2), (1, 6)}
    assert found == by_hand and len(list(partitions(3, 2))) == len(found)
    # All partitions of subsets of n things are those of n + 1 things: Bell numbers, less the empty.
    assert [len(list(partitions(n, n))) for n in (1, 2, 3, 4, 5)] == [1, 4, 14, 51, 202]


def test_the_space_says_what_it_holds_and_refuses_what_nothing_is_known_of():
    ways = SPACE.exchanges()
    assert ways[0] == Exchange() and len(set(ways)) == len(ways) == 4 + 2 * 2 * 2
    assert PlanSpace("synchronous").exchanges() == [Exchange()]
    assert "H 1, 30;" in SPACE.describe()
    with pytest.raises(InputError, match=r"periods.*>= 10.*got 4"):
        PlanSpace(periods=(4, 30))
    with pytest.raises(InputError, match=r"allow.*synchronous or any.*most"):
        PlanSpace("most")


def views(n, count):
    rng = np.random.default_rng(3)
    base = base_view(search(n).problem.cluster)
    for _ in range(count):
        factor = np.exp(rng.normal(0.0, 1.0, (n, n))) * 10 ** rng.uniform(-1.5, 1.5)
        yield base.replace(
            bandwidth_gb_per_s=base.bandwidth_gb_per_s * jnp.asarray(factor, jnp.float32),
            rtt_s=base.rtt_s * jnp.float32(rng.uniform(0.1, 4.0)),
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "count", "space"),
    [
        (2, 3, "talk"),
        (2, 3, "sharded"),
        pytest.param(3, 200, "talk", marks=pytest.mark.nightly),
        pytest.param(2, 200, "sharded", marks=pytest.mark.nightly),
    ],
)
def test_nothing_in_the_space_is_faster_than_what_is_found(n, count, space):
    everything, one = every_plan(SPACES[space], (2,) * n), search(n, space)
    for view in views(n, count):
        best = rates_of(everything, view, one.problem).max()
        result = one.best(view, most_scored=10**6)
        assert result.rate == pytest.approx(best, rel=1e-5)
        assert result.gap_pct <= 0.02 and result.bound >= best * (1 - 1e-6)
        plain = one.best(view, 10**6, [Exchange()])
        assert plain.rate <= result.rate * (1 + 1e-6)
        assert plain.exchange == Exchange() and float(plain.cost.efficiency) == 1.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "count", "seed", "mixed"),
    [
        (2, 3, 0, False),
        (2, 3, 3, True),
        pytest.param(2, 140, 1, False, marks=pytest.mark.nightly),
        pytest.param(3, 60, 2, False, marks=pytest.mark.nightly),
        pytest.param(2, 60, 4, True, marks=pytest.mark.nightly),
        pytest.param(3, 20, 5, True, marks=pytest.mark.nightly),
    ],
)
def test_nothing_is_faster_on_a_cluster_that_is_drawn_as_well(n, count, seed, mixed):
    """GPUs, prices, rates and round trips are drawn; synchronous plans alone, and any."""
    rng = np.random.default_rng(seed)
    kinds = set()
    for _ in range(count):
        spec = drawn_cluster(rng, n, mixed)
        cluster = spec.to_arrays()
        problem = Problem(WORK, cluster, drawn_calibration(rng, n) if mixed else calibration())
        one, pace = SpaceSearch(problem, SPACE), layer_pace(problem)
        assert (pace is not None) is mixed
        view = base_view(cluster)
        everything = every_plan(SPACE, spec.gpus, pace)
        rates = rates_of(everything, view, one.problem)
        plain = np.ones(len(rates), bool)
        for name, value in Exchange().fields().items():
            plain &= np.asarray(getattr(everything, name)) == value
        for ways, best in ((None, rates.max()), ([Exchange()], rates[plain].max())):
            result = one.best(view, 10**6, ways)
            assert result.rate == pytest.approx(best, rel=1e-5), spec
            assert result.exhaustive and result.gap_pct <= 0.02
            assert result.bound >= best * (1 - 1e-6)
            kinds.add((ways is None, int((result.plan.group >= 0).sum())))
    assert len(kinds) > 2, "the best plans must differ from one cluster to another"


def test_what_domains_hold_is_told_apart_by_layer_and_by_number():
    """By hand: turned round, a pipeline of equal halves holds as much in each domain, other layers."""
    members = np.array([[0, 1, -1], [1, 0, -1], [0, 1, -1], [0, 1, 2], [2, 1, 0], [1, 0, 2]])
    layers = np.array([[4, 4, 0], [4, 4, 0], [5, 3, 0], [3, 3, 2], [2, 3, 3], [3, 3, 2]])
    placed, held = placements(members, layers)
    assert len(set(placed.tolist())) == 6
    assert held[0] == held[1] and held[3] == held[4]
    assert len(set(held.tolist())) == 4, "less for other counts, and for another domain at an end"


@pytest.mark.slow
def test_where_two_pipelines_meet_it_counts_which_domain_holds_which_layers():
    """Four domains of one GPU, of which one alone has no room: the links between domains that hold the
    same layers make the ring, so that a pipeline backwards is another plan."""
    space = dataclasses.replace(
        SPACE,
        groups=dataclasses.replace(SPACE.groups, choices=CHOICES[:1]),
        bits=(16,),
        activation_bits=(16,),
        streams=((1, 0),),
    )
    cluster = cluster_spec(4, gpus=1, gpu={**GPU, "memory_gb": 4.0}).to_arrays()
    one = SpaceSearch(Problem(WORK, cluster, calibration()), space)
    rng, turned, base = np.random.default_rng(0), set(), base_view(cluster)
    everything = every_plan(space, (1,) * 4)
    for _ in range(12):
        factor = np.exp(rng.normal(0.0, 1.5, (4, 4)))
        factor = np.sqrt(factor * factor.T) * rng.choice([1.0, 10.0, 100.0])
        links = base.bandwidth_gb_per_s * jnp.asarray(factor, jnp.float32)
        view = base.replace(bandwidth_gb_per_s=links, rtt_s=0.1 * base.rtt_s)
        rates = rates_of(everything, view, one.problem)
        result = one.best(view, 10**6)
        assert result.rate == pytest.approx(rates.max(), rel=1e-5) and result.gap_pct <= 0.02
        best = take(everything, int(rates.argmax()))
        if (best.group >= 0).all():
            turned.add(tuple(best.position.tolist()))
    assert len(turned) > 2, "the best way round must depend on the links"


def test_padding_changes_nothing_that_is_found():
    small, view = search(2), next(views(2, 1))
    cluster = cluster_spec(2, gpus=2).to_arrays(4)
    large = SpaceSearch(Problem(WORK, cluster, calibration()), SPACE)
    wide = base_view(cluster)
    for name in ("bandwidth_gb_per_s", "rtt_s"):
        values = np.array(getattr(wide, name))
        values[:2, :2] = getattr(view, name)
        wide = wide.replace(**{name: jnp.asarray(values)})
    assert len(small.pipelines.dp) == len(large.pipelines.dp)
    for ways in (None, [Exchange()]):
        one, other = small.best(view, 10**6, ways), large.best(wide, 10**6, ways)
        assert other.rate == pytest.approx(one.rate, rel=1e-6)
        assert other.bound == pytest.approx(one.bound, rel=1e-6)
        assert (other.exchange, other.partitions) == (one.exchange, one.partitions)
        for name, value in vars(one.plan).items():
            got = np.asarray(getattr(other.plan, name))
            np.testing.assert_array_equal(got[:2] if got.ndim else got, value, err_msg=name)
        assert np.all(other.plan.group[2:] == -1) and not other.cost.wan_gb[2:].any()


def test_a_search_that_must_stop_early_says_how_far_off_it_may_be():
    everything, one = every_plan(SPACE, (2, 2)), search(2)
    view = next(views(2, 1))
    best = rates_of(everything, view, one.problem).max()
    hasty = one.best(view, most_scored=1)
    assert hasty.bound >= best * (1 - 1e-6) and hasty.rate <= best * (1 + 1e-6)
    assert hasty.gap_pct >= 100 * (best / hasty.rate - 1) - 1e-3


def test_a_group_sends_over_all_of_its_links_to_one_other_at_the_most():
    """The bound on a ring's sync, block by block in plain loops; the first block is no less one."""
    one, view = search(3), next(views(3, 1))
    masks = [int(m) for m in one.masks]
    several = [(0b001, 0b010), (0b001, 0b010, 0b100), (0b011, 0b100), (0b001,)]
    parts = np.array([[masks.index(b) for b in p] + [-1] * (3 - len(p)) for p in several])
    found, latency = one._ring_bounds(parts, view)
    rtt = np.asarray(view.rtt_s)[~np.eye(3, dtype=bool)]
    for h in (1, 2):
        rate = np.asarray(ring_rate_gb_per_s(view.bandwidth_gb_per_s, jnp.int32(h), calibration()))
        for p, blocks in enumerate(several):
            rings = [[_members(b), [_members(o) for o in blocks if o != b]] for b in blocks]
            to_best = [
                max((sum(rate[i, j] for i in own for j in o) for o in others), default=np.inf)
                for own, others in rings
            ]
            n = len(blocks)
            sent_gb = 2 * (n - 1) / n * SENT_GRADIENT_BYTES * float(WORK.gparams)
            wanted = sent_gb / min(to_best) if n > 1 else 0.0
            assert found[h - 1, p] == pytest.approx(wanted, rel=1e-5)
            assert latency[p] == pytest.approx(2 * (n - 1) * 0.5 * rtt.min(), rel=1e-5)


def _members(mask):
    return [k for k in range(3) if mask >> k & 1]


@pytest.mark.parametrize(("n", "count"), [(2, 1), (3, 2), (4, 6), (5, 6)])
def test_all_rings_of_up_to_four_groups_are_tried_and_the_fastest_of_more(n, count):
    rng = np.random.default_rng(0)
    rate = np.exp(rng.normal(size=(n, n)))
    view = SimpleNamespace(bandwidth_gb_per_s=jnp.asarray(rate, jnp.float32))
    of = SimpleNamespace(domains=list(range(n)), masks=np.array([1 << k for k in range(n)]))
    found = SpaceSearch._rings(of, list(range(n)), view)
    assert len(set(found)) == len(found) == count
    rings = [(0, *rest) for rest in itertools.permutations(range(1, n))]
    slowest = sorted(
        max(1 / rate[a, b] for a, b in zip(r, (*r[1:], 0), strict=True)) for r in rings
    )
    if n > 2:
        ours = [max(1 / rate[a, b] for a, b in zip(r, (*r[1:], 0), strict=True)) for r in found]
        np.testing.assert_allclose(ours, slowest[:count], rtol=1e-5)


@pytest.mark.parametrize(("most", "n", "count"), [(2, 3, 3 + 6), (1, 3, 3), (5, 2, 2 + 2)])
def test_a_pipeline_has_no_more_domains_than_allowed_or_there_are(most, n, count):
    orders = PlanSpace(max_pipeline=most).orders(cluster_spec(n).to_arrays())
    assert len(set(orders)) == len(orders) == count
    assert max(map(len, orders)) == min(most, n)
