"""Who decides when: the upper level every so many intervals, the lower in each. The levels themselves
are replaced by ones that are easy to foresee: the upper always wants to leave the row in force."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from agents.hi_ppo import scheduler, training
from agents.hi_ppo.features import Measurement, make_reference
from agents.hi_ppo.settings import Networks, TrainSettings
from agents.hi_ppo.training import Trainer

IN_FORCE, WANTED = 1, 2


def measured(*_):
    """Three rows, one of them in force."""
    return Measurement(jnp.ones((3, 1)), *[jnp.zeros(3)] * 3, jnp.int32(IN_FORCE))


@pytest.mark.parametrize("every", [1, 2, 3])
def test_between_its_decisions_the_row_in_force_stays(every, monkeypatch):
    known = make_reference(jnp.ones(3), jnp.zeros(3))
    monkeypatch.setattr(scheduler, "reference_of", lambda *_: known)
    monkeypatch.setattr(scheduler, "measure", lambda *_: (measured(), None))
    monkeypatch.setattr(scheduler, "score_upper", lambda *_: jax.nn.one_hot(WANTED, 3))
    monkeypatch.setattr(scheduler, "decide_lower", lambda *args: args[-1])  # the row as it is told
    monkeypatch.setattr(scheduler, "init_filter", lambda _: 0)
    monkeypatch.setattr(scheduler, "update_filter", lambda count, _: count + 1)
    agent = scheduler.HiPPO(None, every, Networks(8)).bind(
        SimpleNamespace(prior=None, gpus_vary=False)
    )
    observation = SimpleNamespace(view=None)
    memory, rows = agent.init(jax.random.key(0)), []
    for _ in range(7):
        row, memory = agent.decide(jax.random.key(0), observation, memory)
        rows.append(int(row))
        assert int(memory.clock) == len(rows) % every, "intervals since the last decision"
    assert rows == [WANTED if t % every == 0 else IN_FORCE for t in range(7)]
    assert float(memory.stats.count) == memory.filtered == 7, "it measures in every interval"


@pytest.mark.parametrize("every", [1, 2, 3])
def test_training_plays_one_upper_decision_and_then_what_is_in_force(every, monkeypatch):
    inputs = SimpleNamespace(mask=jnp.arange(3) == WANTED)
    monkeypatch.setattr(training, "make_setup", lambda *_: None)
    monkeypatch.setattr(training, "update_statistics", lambda stats, *_: stats + 1)
    monkeypatch.setattr(training, "upper_inputs", lambda *_: inputs)
    trainer = object.__new__(Trainer)
    trainer.settings, trainer.table = TrainSettings(every=every), None
    logits = jnp.where(inputs.mask, 0.0, -jnp.inf)
    trainer.upper = SimpleNamespace(apply=lambda *_: (logits, jnp.float32(0.5)))

    def interval(policy, tape, carry, key, row):
        """Says what it was told; what is measured next is that WANTED was not kept."""
        after = carry.replace(measured=measured(), stats=carry.stats + 1)
        return after, row, jnp.float32(10.0), carry.stats

    trainer._interval = interval
    carry = training._Carry(None, None, measured(), jnp.int32(1), None, None, jnp.float32(0.0))
    tape = SimpleNamespace(params=None, reference=None)
    carry, (high, rows, rewards, stats) = trainer._segment(
        SimpleNamespace(upper=None), tape, carry, jax.random.key(0)
    )
    assert rows.tolist() == [WANTED] + [IN_FORCE] * (every - 1)
    assert stats.tolist() == list(range(1, every + 1)), "it measures before each"
    assert (
        int(high.action) == WANTED
        and float(high.value) == 0.5
        and rewards.tolist() == [10.0] * every
    )


@pytest.mark.parametrize("moving", [False, True])
def test_shaping_adds_what_the_clairvoyant_still_gets_more(moving, monkeypatch):
    """r + w1 + w1 dV / ref (Ng, Harada and Russell 1999); who moves keeps the old potential."""
    state = SimpleNamespace(t=jnp.int32(2), moving=jnp.array([moving]))
    parts = SimpleNamespace(efficiency=1.0, utilisation=2.0, cost=3.0, fairness=4.0)
    record = SimpleNamespace(
        progress=jnp.array([30.0]), switched=jnp.array([True]), reward_parts=parts
    )
    timestep = SimpleNamespace(reward=jnp.float32(0.25), record=record)
    timestep.observation = SimpleNamespace(view="next")
    inputs = SimpleNamespace(mask=jnp.array([True, True]))
    monkeypatch.setattr(training, "lower_inputs", lambda *_: inputs)
    played = []
    monkeypatch.setattr(training, "carry_out", lambda setup, row, choice, view: view)
    monkeypatch.setattr(training, "expected_view", lambda *seen: seen)
    monkeypatch.setattr(training, "update_filter", lambda *seen: seen)
    monkeypatch.setattr(
        training, "step", lambda key, s, action, p: played.append(action) or (state, timestep)
    )
    monkeypatch.setattr(training, "make_setup", lambda *_: None)
    monkeypatch.setattr(training, "update_statistics", lambda stats, rate, _: (stats, rate))
    trainer = object.__new__(Trainer)
    trainer.table, trainer._measured = None, measured
    trainer.settings = TrainSettings(shaping=0.5)
    logits = jnp.array([0.0, -jnp.inf])
    trainer.lower = SimpleNamespace(apply=lambda *_: (logits, jnp.float32(0.0)))
    value = jnp.array([[90.0, 0.0], [80.0, 0.0], [64.0, 0.0]])
    params = SimpleNamespace(progress_ref=jnp.array([40.0]), weights=jnp.array([0.8, 0, 0, 0]))
    seen = SimpleNamespace(view="now")
    stats = SimpleNamespace(last="rates")
    before = training._Carry(None, seen, measured(), stats, "filter", None, jnp.float32(80.0))
    after, low, reward, info = trainer._interval(
        SimpleNamespace(lower=None),
        SimpleNamespace(params=params, value=value),
        before,
        jax.random.key(0),
        0,
    )
    potential = 80.0 if moving else 64.0
    expected = 0.25 + 0.5 * 0.8 * (1 + (potential - 80.0) / 40.0)
    assert float(reward) == pytest.approx(expected)
    assert float(after.potential) == potential and after.observation.view == "next"
    # Shares are those that suit what is expected after the last measurement; the next is taken in.
    assert played == [("filter", "now")] and after.filtered == ("filter", "next")
    # What was seen is in the averages before the next decision, and what was seen before is kept.
    assert after.stats[0] is stats and after.stats[1].tolist() == [1.0, 1.0, 1.0]
    assert after.before == "rates"
    assert float(info[0]) == 0.75 and info[2:6] == (1.0, 2.0, 3.0, 4.0) and float(info[6]) == 1.0
    assert int(low.action) == 0 and float(low.weight) == 1.0
