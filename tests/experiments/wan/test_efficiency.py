"""Token efficiency at a small scale: what is read, how losses become shares of tokens."""

import numpy as np
import pytest
import yaml

from analysis.records import load
from experiments.cli import main
from experiments.wan.efficiency import (
    SHIPPED,
    Arm,
    half_width,
    published_band,
    read_efficiency_protocol,
    tokens_to_reach,
)
from experiments.wan.training import TrainingOptions, job_spec
from jaxsim.files import InputError


def test_tokens_are_read_off_the_reference_on_their_logarithm():
    tokens, losses = np.array([1.0, 10.0, 100.0]), np.array([5.0, 3.0, 2.0])
    assert tokens_to_reach(2.5, tokens, losses) == pytest.approx(10**1.5)
    assert tokens_to_reach(3.0, tokens, losses) == pytest.approx(10.0)
    assert tokens_to_reach(9.0, tokens, losses) == 1.0
    assert tokens_to_reach(1.0, tokens, losses) == 100.0


def test_an_interval_needs_two_values():
    assert half_width(np.array([1.0])) == float("inf")
    assert half_width(np.array([1.0, 3.0])) == pytest.approx(12.706, rel=1e-3)


def test_the_published_fit_says_what_it_was_not_made_for():
    job = job_spec(TrainingOptions())
    band = published_band(Arm(2, 30, 32), job, 1024)
    assert band["extrapolated"] and band["published_low"] <= band["published"] <= 1.0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"steps": 7}, "steps: expected a multiple of evaluate_every"),
        ({"arms": [{"replicas": 3, "sync_period": 1, "wire_bits": 32}]}, "replicas: expected"),
        ({"arms": [{"replicas": 2, "sync_period": 7, "wire_bits": 32}]}, "sync_period: expected"),
        ({"arms": [{"replicas": 2, "sync_period": 1, "wire_bits": 4}]}, "wire_bits: expected"),
    ],
)
def test_a_wrong_protocol_is_one_line(change, said, tmp_path):
    file = tmp_path / "p.yaml"
    file.write_text(yaml.safe_dump({**yaml.safe_load(SHIPPED.read_text()), **change}))
    with pytest.raises(InputError) as refusal:
        read_efficiency_protocol(file)
    assert said in str(refusal.value) and str(file) in str(refusal.value)


@pytest.mark.nightly
def test_a_protocol_in_the_small(tmp_path):
    body = yaml.safe_load(SHIPPED.read_text())
    body |= {"steps": 4, "evaluate_every": 2, "seeds": 2, "held_out": 4, "global_batch": 4}
    body["arms"] = [{"replicas": 2, "sync_period": 2, "wire_bits": 32}]
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(body))
    out = tmp_path / "run"
    assert main(["wan", "efficiency", "--config", str(tmp_path / "p.yaml"), "--out", str(out)]) == 0
    record = load(out)
    assert len(record.table("losses")) == 2 * (4 + 2)  # the reference trains twice as long
    (row,) = record.table("efficiency").to_dict("records")
    assert 0.0 < row["efficiency"] <= 2.0 and row["published"] <= 1.0
    assert main(["report", str(out)]) == 0
    assert (out / "figures" / "token-efficiency.png").stat().st_size > 5000
