"""What a training run's settings come to."""

import pytest

from agents.hi_ppo.settings import TrainSettings


@pytest.mark.parametrize(("algorithm", "every", "cadence"), [("ppo", 4, 4), ("exact", 4, 1)])
def test_a_policy_of_the_exact_gradient_decides_in_every_interval(algorithm, every, cadence):
    assert TrainSettings(algorithm=algorithm, every=every).cadence == cadence


def test_forecasts_are_seen_by_policies_of_the_exact_gradient_alone():
    assert TrainSettings(forecasts=True).networks.forecasts
    with pytest.raises(ValueError, match="forecasts: ppo sees none"):
        TrainSettings(algorithm="ppo", forecasts=True)


def test_ppo_learns_with_the_lower_level_as_it_is_measured_and_filtered():
    assert TrainSettings(lower_level="base").networks.lower_level == "base"
    with pytest.raises(ValueError, match="lower_level: ppo takes filtered"):
        TrainSettings(algorithm="ppo", lower_level="measured")
    with pytest.raises(ValueError, match="lower_level: expected"):
        TrainSettings(lower_level="none")


def test_what_rows_bring_before_anything_is_measured_is_known_at_base_or_in_an_outlook():
    assert TrainSettings(reference="base").networks.reference == "base"
    with pytest.raises(ValueError, match="reference: expected outlook, base"):
        TrainSettings(reference="last")
