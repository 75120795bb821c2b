"""The policy that a training run starts from, where one is named."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from agents.hi_ppo import Networks, PolicyParams, load_trained, networks_of, policies
from experiments.common import LEARNED
from jaxsim.files import InputError


def starting_policy(start: str | None, networks: Networks, count: int) -> PolicyParams | None:
    """A checkpoint's first policy for each of `count` seeds, leaves [count, ...]; None = fresh ones.

    Raises InputError for what is no checkpoint, and for one of other networks.
    """
    if start is None:
        return None
    checkpoint = load_trained(None if start == LEARNED else start)
    found, asked = (dataclasses.asdict(of) for of in (networks_of(checkpoint), networks))
    for key in asked:
        if found[key] != asked[key]:
            raise InputError(
                f"train: start: {start} has train.{key} {found[key]}, asked for is {asked[key]}"
            )
    first = policies(checkpoint)[0]
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (count, *x.shape)), first)
