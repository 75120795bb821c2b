"""An evaluation on sites with GPUs of different types, from the file to the figures."""

import pytest
from helpers.toy_world import two_sites_yaml

from analysis.records import load
from experiments.evaluate import __main__ as evaluate

WHO = "best_static,hysteresis,sailor,hyperion,dt_fm,crosspipe,alpa,zero"


@pytest.mark.nightly
@pytest.mark.usefixtures("scoring_is_optimised")
def test_everybody_plans_and_plays_where_a_site_has_faster_gpus(tmp_path):
    """South gets H100 in one of two files that are alike else; local jobs hold some GPUs."""
    alike = two_sites_yaml(40.0, 40.0)
    mixed = alike.replace("south, gpus: 4,", "south, gpu: H100-80GB, gpus: 4,")
    progress = {}
    for name, text in (("alike", alike), ("mixed", mixed)):
        (tmp_path / f"{name}.yaml").write_text(text)
        argv = ["--cluster", str(tmp_path / f"{name}.yaml"), "--schedulers", WHO]
        argv += ["--model", "gpt2-medium", "--global_batch", "64", "--seq", "1024"]
        argv += ["--steps", "8", "--seeds", "4", "--table_size", "8", "--tuning_scenarios", "0"]
        argv += ["--scenario.load_share", "0.25", "--out", str(tmp_path / name)]
        assert evaluate.main(argv) == 0
        rows = load(tmp_path / name).table("scenarios")
        assert rows["utilisation"].between(0, 1).all()
        assert rows["memory_utilisation"].dropna().between(0, 1).all()
        progress[name] = rows.groupby("scheduler")["progress"].mean()
    assert (progress["mixed"] > 0).all()
    # The model is small, so that the host's work is much of a step: who uses south gains some.
    gain = progress["mixed"] / progress["alike"]
    assert gain["best_static"] > 1.05, gain
    assert (gain > 0.95).all(), gain
