"""One tiny training run that several tests share, so that it is traced and compiled once.

The embedded four regions, four plans, four environments, two policies, episodes of eight intervals:
nothing is learned that is worth having, but every part of a training run takes part.
"""

import contextlib
import dataclasses
import functools

import jax.numpy as jnp
import pytest

import experiments.evaluate.evaluation
import experiments.train.training
import experiments.train.worlds
from experiments.common.options import parse
from experiments.common.setup import load_world
from experiments.evaluate.evaluator import Evaluator
from experiments.train.config import TrainConfig
from experiments.train.training import TrainingRun

EPOCHS = 150
SEEDS = (0, 1)
WORLD = ["--global-batch", "256", "--table-size", "4", "--scenario.base-spread", "0.5"]
ARGV = [
    *WORLD,
    *("--train.algorithm", "ppo", "--scenario.horizon", "8"),
    *("--train.envs", "4", "--train.rollout", "4"),
    *("--train.hidden", "8", "--epochs", str(EPOCHS), "--scenarios", "4"),
    *("--eval-scenarios", "3", "--eval-every", str(EPOCHS), "--checkpoint-every", "60"),
    *("--seeds", "[0,1]"),
]

cached_world = functools.cache(load_world)


def tiny_config(**changes):
    """The configuration that ARGV gives."""
    extra = [f"--{key}={value}" for key, value in changes.items()]
    return parse(TrainConfig, [*ARGV, *extra], "tiny training")


@functools.cache
def _compiled_run():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiments.train.worlds, "load_world", cached_world)
        return TrainingRun(tiny_config())


def shared_run(config=None, mesh=None, options=None):
    """The one TrainingRun, back at its start; a new one where `config` differs in more than its
    folders. Its epochs are compiled as all else, whatever the `options`."""
    del options
    assert mesh is None
    config = tiny_config() if config is None else config
    if dataclasses.replace(config, out=None, resume=None) != tiny_config():
        return TrainingRun(config)
    run = _compiled_run()
    run.config = config
    run.state = run.trainer.init(jnp.asarray(SEEDS, jnp.uint32))
    return run


evaluators = {}


def shared_evaluator(world, *bank, **traces):
    """One Evaluator per world and bank of scenarios; what it is asked to play, it plays again."""
    key = (id(world), *bank)
    if any(trace is not None for trace in traces.values()):
        return Evaluator(world, *bank, **traces)
    if key not in evaluators:
        evaluators[key] = Evaluator(world, *bank)
    return evaluators[key]


@contextlib.contextmanager
def compiled_pieces():
    """Within the block, the commands take worlds, the training run and banks from memory; the plans
    that rivals propose have tests of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiments.train.worlds, "load_world", cached_world)
        # Neither regions nor the search's width are changed by these tests.
        patch.setattr(
            experiments.evaluate.evaluation,
            "load_world",
            lambda *args, **_: cached_world(*args[:5]),
        )
        patch.setattr(experiments.train.training, "TrainingRun", shared_run)
        patch.setattr(experiments.evaluate.evaluation, "Evaluator", shared_evaluator)
        yield patch
