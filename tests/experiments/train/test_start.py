"""Training that goes on from a policy which was trained before."""

import jax
import numpy as np
import pytest

from agents.hi_ppo.checkpoint import load_shipped, networks_of, policies
from agents.hi_ppo.settings import Networks
from experiments.train.start import starting_policy
from jaxsim.files import InputError


def test_every_seed_starts_from_the_first_policy():
    shipped = load_shipped()
    found = starting_policy("hi_ppo", networks_of(shipped), 3)
    expected = policies(shipped)[0]
    assert starting_policy(None, Networks(), 3) is None
    for seed in range(3):
        one = jax.tree.map(lambda x, seed=seed: x[seed], found)
        jax.tree.map(np.testing.assert_array_equal, one, expected)


@pytest.mark.parametrize(
    ("start", "networks", "words"),
    [
        ("hi_ppo", Networks(hidden=8), ["train.hidden 32", "asked for is 8"]),
        ("hi_ppo", Networks(encoder="none"), ["train.encoder sage", "asked for is none"]),
        ("hi_ppo", Networks(lower_level="base"), ["train.lower_level filtered", "is base"]),
        ("hi_ppo", Networks(reference="base"), ["train.reference outlook", "is base"]),
        ("nobody.msgpack", Networks(), ["nobody.msgpack", "no such file"]),
    ],
)
def test_what_cannot_be_started_from_is_refused(start, networks, words):
    with pytest.raises(InputError) as error:
        starting_policy(start, networks, 1)
    assert all(word in str(error.value) for word in words)
