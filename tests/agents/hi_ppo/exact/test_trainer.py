"""Gradient ascent on recordings: it learns what pays, resumes exactly, and compiles once."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.hi_ppo.checkpoint import load_checkpoint, restore, save_checkpoint
from agents.hi_ppo.exact import ExactTrainer, Recording
from agents.hi_ppo.exact.trainer import GAINS
from agents.hi_ppo.exact.value import expected_progress, policy_of
from agents.hi_ppo.features import ROW_FEATURES, Statistics, make_reference
from agents.hi_ppo.networks import upper_network
from agents.hi_ppo.scheduler import init_policy
from agents.hi_ppo.settings import ExactSettings, TrainSettings
from agents.shrinkage import init_shrinkage
from jaxsim.env import EDGE_FEATURES, NODE_FEATURES
from jaxsim.trees import stack

LENGTH, ROWS, DOMAINS, EPOCHS = 6, 3, 2, 12
SETTINGS = TrainSettings(hidden=8, exact=ExactSettings(learning_rate=0.02, batch=2, updates=5))
META = {"hidden": 8, "every": 1, "seeds": [0, 1], "epoch": 0, "config": {}}
SEEDS = jnp.asarray([0, 1], jnp.uint32)


def scenario(seed):
    """One of the last two rows, which a feature tells, brings 1 and the others nothing; a move takes
    one interval. By their averages all rows are alike, so that the prior says stay."""
    rng = np.random.default_rng(seed)
    good = 1 + seed % 2
    alike = np.ones((LENGTH, ROWS))
    rows = rng.normal(size=(LENGTH, ROWS, ROW_FEATURES)) * 0.1
    rows[:, good, 0] = 1.0
    stayed = np.zeros((LENGTH, ROWS))
    stayed[:, good] = 1.0
    after = np.broadcast_to(np.arange(LENGTH)[:, None, None] + 1, (LENGTH, ROWS, ROWS))
    body = {
        "stats": Statistics(
            *(jnp.asarray(alike, jnp.float32),) * 5,
            jnp.zeros((LENGTH, ROWS)),
            jnp.zeros(LENGTH),
            stack([init_shrinkage(jnp.ones(ROWS), jnp.float32(1.0))] * LENGTH),
            jnp.zeros((LENGTH, 0, ROWS)),
        ),
        "reference": make_reference(jnp.ones(ROWS), jnp.zeros(ROWS)),
        "rows": rows,
        "nodes": rng.normal(size=(LENGTH, DOMAINS, NODE_FEATURES)),
        "edges": rng.normal(size=(LENGTH, DOMAINS**2, EDGE_FEATURES)),
        "switch_s": np.full((LENGTH, ROWS, ROWS), 60.0) * (1 - np.eye(ROWS)),
        "unit": 1.0,
        "usd": np.zeros((ROWS, ROWS)),
        "usd_worth": np.zeros((LENGTH, ROWS)),
        "stayed": stayed,
        "moved": np.zeros((LENGTH, ROWS, ROWS)),
        "interval_s": 60.0,
        "domains": np.full((ROWS, DOMAINS), 0.5),
        "start_s": 30.0,
        "started": np.eye(ROWS)[good] * 0.5,
    }
    numbers = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), body)
    numbers["reference"] = body["reference"]
    return Recording(
        **numbers,
        after=jnp.asarray(after, jnp.int16),
        mask=jnp.ones(ROWS, bool),
        wan_mask=jnp.ones(DOMAINS, bool),
        after_start=jnp.int32(1),
    )


@functools.cache
def trainer():
    return ExactTrainer(SETTINGS, [stack([scenario(seed) for seed in range(4)])], EPOCHS)


def train(state, epochs):
    metrics = []
    for _ in range(epochs):
        state, one = trainer().run_epoch(state)
        metrics.append(one)
    return state, metrics


@functools.cache
def trained():
    return train(trainer().init(SEEDS), EPOCHS)


def test_it_learns_what_pays():
    """The best is to deploy the good row and to stay: 0.5 in the first interval, 1 in each of 5."""
    progress = np.array([m.progress_rel for m in trained()[1]])  # [epochs, seeds]
    best = 5.5 / LENGTH
    assert np.all(progress[0] < 0.75 * best) and np.all(progress[-1] > 0.95 * best)
    assert np.all(progress < best + 1e-5)


def test_interrupted_and_resumed_equals_never_interrupted(tmp_path):
    """Bit for bit, with a process's memory replaced by the file in between."""
    state, first = train(trainer().init(SEEDS), 5)
    save_checkpoint(tmp_path / "it.msgpack", state, META)
    other = trainer().init(jnp.asarray([7, 9], jnp.uint32))  # nothing of it may survive
    state, rest = train(restore(load_checkpoint(tmp_path / "it.msgpack"), other), EPOCHS - 5)
    for a, b in ((state, trained()[0]), ([*first, *rest], trained()[1])):
        for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
            np.testing.assert_array_equal(x, y)


def test_the_lower_policy_and_the_value_stay_as_they_were():
    """The recordings are made with the lower choice that is best as measured; no critic is needed."""
    fresh, after = trainer().init(SEEDS).policy, trained()[0].policy
    for a, b in zip(jax.tree.leaves(fresh.lower), jax.tree.leaves(after.lower), strict=True):
        np.testing.assert_array_equal(a, b)
    changed = set()
    for name, before in fresh.upper["params"].items():
        now = after.upper["params"][name]
        pairs = zip(jax.tree.leaves(before), jax.tree.leaves(now), strict=True)
        changed |= {name} if any(np.any(a != b) for a, b in pairs) else set()
    assert set(fresh.upper["params"]) - changed == {
        "value_layers_0",
        "value_layers_1",
    }


def test_an_epoch_compiles_once_and_counts_its_intervals():
    trained()
    assert trainer().epoch_on._cache_size() == 1
    assert trainer().steps_per_epoch == 5 * 2 * LENGTH


def wider(recording):
    """The same scenario in a table with one row more, which may not be in force."""

    def grown(name, axes):
        x = getattr(recording, name)
        return {name: jnp.pad(x, [(0, int(i in axes)) for i in range(x.ndim)])}

    rows = {"rows": (1,), "stayed": (1,), "moved": (1, 2), "after": (1, 2), "mask": (0,)}
    rows |= {"domains": (0,), "started": (0,), "switch_s": (1, 2)}
    rows |= {"usd": (0, 1), "usd_worth": (1,)}
    fields = {k: v for name, axes in rows.items() for k, v in grown(name, axes).items()}
    stats = jax.tree.map(
        lambda x: jnp.pad(x, [*[(0, 0)] * (x.ndim - 1), (0, 1)]) if x.shape[-1:] == (ROWS,) else x,
        recording.stats,
    )
    base = jnp.pad(recording.reference.base_rate, (0, 1))
    return recording.replace(
        **fields, stats=stats, reference=make_reference(base, jnp.zeros_like(base))
    )


def test_worlds_of_other_sizes_count_as_scenarios_of_one_bank():
    """One scenario of each of two worlds, the second with a row of padding: the update is that of both
    scenarios in one bank, which a batch of two draws whole."""
    once = dataclasses.replace(SETTINGS, exact=dataclasses.replace(SETTINGS.exact, updates=1))
    two = scenario(0), scenario(1)
    apart = ExactTrainer(once, [stack([two[0]]), stack([wider(two[1])])], EPOCHS)
    together = ExactTrainer(once, [stack(list(two))], EPOCHS)
    assert apart.steps_per_epoch == together.steps_per_epoch
    ours, theirs = (t.run_epoch(t.init(SEEDS))[1].columns() for t in (apart, together))
    for name, values in ours.items():
        np.testing.assert_allclose(values, theirs[name], rtol=1e-4, err_msg=name)


def test_what_is_recorded_of_an_epoch():
    columns = trained()[1][-1].columns()
    assert set(columns) == {"progress_rel", "gradient_norm", "prior_scale"}
    assert all(np.shape(column) == (2,) for column in columns.values())


@pytest.mark.parametrize("change", [{"batch": 0}, {"learning_rate": 0.0}, {"updates": 0}])
def test_settings_without_sense_are_refused(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        ExactSettings(**change)


def test_a_scenario_counts_in_its_own_units_and_no_loss_is_endless():
    """Ten times the gains in units of ten are the same scenario; beyond WORST nothing gets worse."""
    trainer().init(SEEDS)
    params = init_policy(jax.random.key(0), SETTINGS.networks).upper
    one = scenario(1)
    loss = jax.jit(trainer()._loss)
    tenfold = {name: 10.0 * getattr(one, name) for name in GAINS}
    scaled = one.replace(**tenfold, unit=jnp.float32(10.0))
    for a, b in zip(loss(params, one), loss(params, scaled), strict=True):
        assert float(a) == pytest.approx(float(b), rel=1e-6)
    losses = [loss(params, one.replace(moved=jnp.full_like(one.moved, x)))[0] for x in (-5.0, -1e9)]
    assert float(losses[0]) == float(losses[1]) > float(loss(params, one)[0])


def test_a_temperature_softens_what_is_learned_from():
    """Logits are divided by it: at twice the temperature, the policy of half the logits."""
    one, network = scenario(0), upper_network(SETTINGS.networks)
    params = init_policy(jax.random.key(0), SETTINGS.networks).upper
    params["params"]["score"]["kernel"] = jnp.ones_like(params["params"]["score"]["kernel"])
    plain, started = policy_of(network, params, one)
    soft, softly = policy_of(network, params, one, temperature=2.0)
    assert np.std(np.log(plain)) > 0.1
    for sharp, found in ((plain, soft), (started, softly)):
        half = np.sqrt(np.asarray(sharp, float))
        np.testing.assert_allclose(found, half / half.sum(axis=-1, keepdims=True), rtol=1e-4)
    values = [expected_progress(network, params, one, temperature)[0] for temperature in (1.0, 4.5)]
    sharpest = dataclasses.replace(SETTINGS.exact, temperature=1.0)
    for settings, value in zip((sharpest, SETTINGS.exact), values, strict=True):
        trainer = ExactTrainer(dataclasses.replace(SETTINGS, exact=settings), [stack([one])], 1)
        np.testing.assert_allclose(trainer._loss(params, one)[1], value, rtol=1e-5)
