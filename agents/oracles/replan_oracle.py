"""The best row of the table on the true present network, the switch spread over a horizon."""

from __future__ import annotations

from typing import Any, ClassVar

from jax import Array
from jaxtyping import Key

from agents.baselines import Hysteresis
from jaxsim.env import Observation
from jaxsim.plan import Plan
from jaxsim.trees import take


class ReplanOracle(Hysteresis):
    """Hysteresis on the true network of the coming interval instead of the measured one."""

    oracle: ClassVar[bool] = True

    def decide(
        self, key: Key[Array, ""], observation: Observation, memory: Any, *truth: Any
    ) -> tuple[Plan, Any]:
        """`truth` is the scenario's `Truth`."""
        (known,) = truth
        t = observation.t
        view = take(known.views, t)
        # An episode may have scored the table ahead, for the measured network and for the true one.
        rates = None if observation.rates is None else known.rates[t]
        return super().decide(key, observation.replace(view=view, rates=rates), memory)
