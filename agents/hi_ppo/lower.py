"""What the lower level goes by: measurements and a filter of them, the last one alone, or the base.

filtered  choices as measured, batch shares as the filter of all measurements expects links and GPUs
measured  both as last measured, as rivals have it
base      both as they suit what is known before anything is measured: no lower level at all
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool

from agents.hi_ppo.filter import ViewFilter, expected_view
from agents.hi_ppo.settings import Networks
from agents.protocol import Setup, outlook_rates, prior_rates
from jaxsim.step_time import NetworkView


def allowed_choices(setup: Setup, networks: Networks) -> Bool[Array, "P V"] | None:
    """[P, V] the lower choices that rows may be set up with; None = all. At base each row has the one
    that is best under the prior, and in the mean over the outlook where local jobs take GPUs."""
    if networks.lower_level != "base":
        return None
    rates = outlook_rates(setup).mean(axis=0) if setup.gpus_vary else prior_rates(setup)
    return jax.nn.one_hot(jnp.argmax(rates, axis=-1), rates.shape[-1], dtype=bool)


def balanced_on(
    setup: Setup, networks: Networks, filtered: ViewFilter, measured: NetworkView
) -> NetworkView:
    """The view that batch shares are balanced on; `filtered` holds the measurement."""
    if networks.lower_level == "base":
        return setup.prior
    if networks.lower_level == "measured":
        return measured
    return expected_view(filtered, measured)
