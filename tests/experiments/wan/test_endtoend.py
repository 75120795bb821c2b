"""End to end: the scene that is played, and the stretch of a trace that is chosen."""

import numpy as np
import pytest
import yaml

from experiments.cli import main
from experiments.wan.scene import SHIPPED, busiest, read_scene
from jaxsim.files import InputError


def test_the_scene_that_ships_is_read():
    scene = read_scene(SHIPPED)
    assert scene.seconds == scene.rows * scene.row_s and "hi_ppo" in scene.schedulers


def test_the_stretch_is_the_one_in_which_links_move_most():
    factors = np.ones((12, 2, 2), np.float32)
    factors[6:9, 0, 1] = (0.5, 1.5, 0.5)
    assert busiest(factors, 3) == 6


@pytest.mark.parametrize(
    ("change", "said"),
    [({"rows": 0}, "rows: expected"), ({"model": 3}, "model: expected"), ({"x": 1}, "x")],
)
def test_a_wrong_scene_is_one_line(change, said, tmp_path):
    file = tmp_path / "scene.yaml"
    file.write_text(yaml.safe_dump({**yaml.safe_load(SHIPPED.read_text()), **change}))
    with pytest.raises(InputError) as refusal:
        read_scene(file)
    assert said in str(refusal.value) and str(file) in str(refusal.value)


def test_without_the_capability_it_is_skipped(monkeypatch, capsys):
    monkeypatch.setattr("experiments.wan.start.reason_missing", lambda: "no such power")
    assert main(["wan", "end-to-end", "--trace", "any.csv"]) == 0
    assert capsys.readouterr().out == "skipped: no such power\n"


def test_a_trace_must_be_named(capsys):
    assert main(["wan", "end-to-end"]) == 2
    assert "--trace" in capsys.readouterr().err
