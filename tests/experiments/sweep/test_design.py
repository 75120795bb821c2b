"""Designs and batches: every point once, every scenario once, shapes apart."""

import numpy as np
import pytest

from experiments.sweep.__main__ import with_design
from experiments.sweep.batches import fingerprint, group_of, make_batches, padded
from experiments.sweep.config import SweepConfig, recorded, resumed_config
from experiments.sweep.design import design_points, varied
from jaxsim.files import InputError


def test_a_grid_is_every_combination_once():
    config = SweepConfig(jitter=["uniform", "ou"], strength=[0.1, 0.2, 0.3], load=[0.0, 0.5])
    points = design_points(config)
    assert len(points) == len(set(points)) == 12
    assert varied(points) == ["jitter", "strength", "load"]
    assert {p.domains for p in points} == {None} and {p.model for p in points} == {"llama-7b"}


def test_a_latin_hypercube_has_one_point_in_every_strip():
    config = SweepConfig(
        design="latin_hypercube", points=20, strength=[0.1, 0.3], jitter=["ou", "uniform"]
    )
    points = design_points(config)
    strips = np.floor((np.array([p.strength for p in points]) - 0.1) / 0.2 * 20).astype(int)
    assert sorted(strips) == list(range(20))
    assert sum(p.jitter == "ou" for p in points) == 10
    assert points == design_points(config)
    assert points != design_points(SweepConfig(**{**vars(config), "seed": 1}))


def test_a_random_design_stays_inside_its_ranges():
    config = SweepConfig(design="random", points=50, load=[0.2, 0.4], domains=[2, 4])
    points = design_points(config)
    assert all(0.2 <= p.load <= 0.4 for p in points) and {p.domains for p in points} == {2, 4}
    assert len({p.load for p in points}) == 50


def test_batches_hold_every_scenario_once_and_one_shape_each():
    config = SweepConfig(
        jitter=["uniform", "ou"],
        load=[0.0, 0.3],
        weights=["1,0,0,0", "1,0,1,0"],
        scenarios=5,
        batch=4,
    )
    points = design_points(config)
    batches = make_batches(config, points)
    cells = [cell for b in batches for cell in zip(b.points, b.seeds, strict=True)]
    assert sorted(cells) == [(p, s) for p in range(len(points)) for s in range(5)]
    assert [b.number for b in batches] == list(range(len(batches)))
    for batch in batches:
        mine = [points[number] for number in batch.points]
        assert {group_of(point) for point in mine} == {batch.group}
        assert len({point.jitter for point in mine}) == 1
        assert len(padded(batch)[0]) == batch.size == 4
    assert {b.group.weighted for b in batches} == {False, True}


def test_the_last_batch_is_filled_up_from_its_start():
    batch = make_batches(SweepConfig(scenarios=5, batch=4), design_points(SweepConfig()))[-1]
    assert (batch.seeds, batch.count, list(padded(batch)[1])) == ((4,), 1, [4, 4, 4, 4])


def test_strength_is_the_amplitude_or_the_drift():
    config = SweepConfig(strength=[0.2])
    assert config.settings("uniform", 0.2, 0.0).uniform == 0.2
    assert config.settings("ou", 0.2, 0.4).ou_sigma == (0.2, 0.2)
    assert config.settings("ou", None, 0.4).load_swing == 0.2


@pytest.mark.parametrize(
    "wrong",
    [
        {"design": "square"},
        {"executor": "cloud"},
        {"allow": "some"},
        {"load": [1.5]},
        {"load": []},
        {"domains": [1]},
        {"weights": ["1,0"]},
        {"jitter": ["ou", "ou"]},
        {"jitter": ["regime"], "strength": [0.1]},
        {"batch": 0},
        {"workers": -1},
        {"jobs": [0]},
        {"jobs": [2], "weights": ["1,0,1,0"]},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_nonsense_is_refused_by_the_key(wrong):
    with pytest.raises(ValueError, match=list(wrong)[-1]):
        SweepConfig(**wrong)


def test_what_changes_rows_changes_the_fingerprint_and_how_they_are_made_does_not():
    one = SweepConfig()
    assert fingerprint(one) == fingerprint(SweepConfig(workers=2, executor="ray", out="elsewhere"))
    assert fingerprint(one) != fingerprint(SweepConfig(steps=100))
    assert not {"out", "workers"} & set(recorded(one))


def test_the_design_file_may_stand_in_front():
    assert with_design(["a.yaml", "--steps", "2"]) == ["--config", "a.yaml", "--steps", "2"]
    assert with_design(["--config", "a.yaml"]) == ["--config", "a.yaml"]


def test_a_resumed_sweep_keeps_its_design(tmp_path):
    from analysis.records import RunWriter

    folder = tmp_path / "run"
    with RunWriter.create("sweep", recorded(SweepConfig(steps=10)), 0, folder):
        pass
    asked = SweepConfig(resume=str(folder), workers=2)
    config = resumed_config(asked, ["resume", "workers"])
    assert (config.steps, config.workers, config.resume) == (10, 2, str(folder))
    with pytest.raises(InputError, match="steps: cannot be changed with --resume"):
        resumed_config(SweepConfig(resume=str(folder), steps=20), ["resume", "steps"])
    same = SweepConfig(resume=str(folder), steps=10)  # as in the design file
    assert resumed_config(same, ["resume", "steps"]).steps == 10
