"""Who decides when: the upper level every so many intervals, the lower in each. The levels themselves
are replaced by ones that are easy to foresee: the upper always wants to leave the row in force."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from agents.hi_ppo import scheduler, training
from agents.hi_ppo.features import Measurement
from agents.hi_ppo.settings import TrainSettings
from agents.hi_ppo.training import Trainer

IN_FORCE, WANTED = 1, 2


def measured(*_):
    """Three rows, one of them in force."""
    return Measurement(jnp.ones((3, 1)), jnp.zeros(3), jnp.int32(IN_FORCE))


@pytest.mark.parametrize("every", [1, 2, 3])
def test_between_its_decisions_the_row_in_force_stays(every, monkeypatch):
    monkeypatch.setattr(scheduler, "score_table", lambda *_: SimpleNamespace(rate=jnp.ones(3)))
    monkeypatch.setattr(scheduler, "measure", measured)
    monkeypatch.setattr(scheduler, "decide_upper", lambda *_: jnp.int32(WANTED))
    monkeypatch.setattr(scheduler, "decide_lower", lambda *args: args[-1])  # the row as it is told
    agent = scheduler.make_hi_ppo(SimpleNamespace(usual=None), None, 8, every)
    memory, rows = agent.init(jax.random.key(0)), []
    for _ in range(7):
        row, memory = agent.decide(jax.random.key(0), None, memory)
        rows.append(int(row))
    assert rows == [WANTED if t % every == 0 else IN_FORCE for t in range(7)]
    assert float(memory.stats.count) == 7, "it measures in every interval all the same"


@pytest.mark.parametrize("every", [1, 2, 3])
def test_training_plays_one_upper_decision_and_then_what_is_in_force(every, monkeypatch):
    inputs = SimpleNamespace(mask=jnp.array([True, False, False]))
    rows = jnp.array([WANTED, IN_FORCE, IN_FORCE], jnp.int32)
    monkeypatch.setattr(training, "make_setup", lambda *_: None)
    monkeypatch.setattr(training, "make_reference", lambda *_: None)
    monkeypatch.setattr(training, "update_statistics", lambda stats, _: stats + 1)
    monkeypatch.setattr(training, "upper_inputs", lambda *_: (inputs, rows))
    trainer = object.__new__(Trainer)
    trainer.settings, trainer.table = TrainSettings(every=every), None
    logits = jnp.where(inputs.mask, 0.0, -jnp.inf)
    trainer.upper = SimpleNamespace(apply=lambda *_: (logits, jnp.float32(0.5)))
    trainer._measured = measured
    played = []

    def interval(policy, tape, carry, key, args):
        played.append((int(args[-1]), carry.stats))
        return carry, jnp.float32(len(played)), jnp.float32(10.0), jnp.float32(0.0)

    trainer._interval = interval
    carry = training._Carry(None, None, 0, jnp.float32(0.0))
    tape = SimpleNamespace(params=None, base_rate=None)
    carry, (high, low, rewards, _) = trainer._segment(
        SimpleNamespace(upper=None), tape, carry, jax.random.key(0)
    )
    assert [row for row, _ in played] == [WANTED] + [IN_FORCE] * (every - 1)
    assert [stats for _, stats in played] == list(range(1, every + 1)), "it measures before each"
    assert int(high.action) == 0 and float(high.value) == 0.5
    assert low.tolist() == list(range(1, every + 1)) and rewards.tolist() == [10.0] * every
