"""Rows of a batch are those of an evaluation, and the same in any company."""

import numpy as np
import pytest

from experiments.common import load_world
from experiments.evaluate import Evaluator, named
from experiments.sweep.batches import make_batches
from experiments.sweep.config import SweepConfig
from experiments.sweep.design import design_points
from experiments.sweep.playing import SPLIT, Player

SMALL = {"table_size": 6, "global_batch": 64, "seq": 1024, "layout_limit": 50}


def rows_of(columns, scheduler, point, name):
    here = np.array(columns["scheduler"]) == scheduler
    return columns[name][here & (columns["point"] == point)]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("load", "allow"),
    [(0.0, "synchronous"), (0.4, "synchronous"), (0.0, "any")],
    ids=["idle", "loaded", "any"],
)
def test_a_batch_comes_to_what_an_evaluation_does(load, allow):
    config = SweepConfig(
        **SMALL,
        model=["gpt2-medium"],
        strength=[0.1, 0.4],
        load=[load],
        scenarios=3,
        steps=12,
        batch=8,
        schedulers="best_static,hysteresis,clairvoyant",
        allow=allow,
    )
    points = design_points(config)
    (batch,) = make_batches(config, points)
    columns = Player(config, points).columns(batch)
    sizes = (None, "gpt2-medium", 64, 1024, 6)
    _, world, _ = load_world(*sizes, layout_limit=50, loaded=load > 0, allow=allow)
    for number, point in enumerate(points):
        settings = config.settings(point.jitter, point.strength, point.load)
        bank = Evaluator(world, settings, range(3), SPLIT, (1.0, 0.0, 0.0, 0.0))
        for scheduler in config.names:
            metrics, _ = bank.play(named(scheduler, world, {}))
            for name in ("progress", "step_s", "utilisation", "usd_per_mtoken", "replans"):
                mine = rows_of(columns, scheduler, number, name)
                np.testing.assert_allclose(mine, getattr(metrics, name), rtol=1e-4)
