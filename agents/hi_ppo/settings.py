"""How Hi-PPO is trained: sizes, schedule and the settings of both levels."""

from __future__ import annotations

import dataclasses

from agents.hi_ppo.ppo import PPOSettings
from jaxsim.files import check_fields, is_count, is_share


@dataclasses.dataclass(frozen=True)
class TrainSettings:
    """Attributes:
    envs: scenarios played at once, per policy seed
    rollout: intervals between two updates; must divide the horizon and be a multiple of `every`
    every: intervals between two decisions of the upper policy
    hidden: width of the networks
    upper_discount: gamma per interval of the upper policy
    lower_discount: gamma per interval of the lower policy, whose choices leave nothing behind
    shaping: weight of the potential shaping with the training-time clairvoyant value, 0 to 1
    idle_start: share of the episodes that begin with nothing deployed, the others with a random row
    upper: PPO of the upper policy
    lower: PPO of the lower policy
    """

    envs: int = 128
    rollout: int = 32
    every: int = 2
    hidden: int = 32
    upper_discount: float = 0.95
    lower_discount: float = 0.5
    shaping: float = 1.0
    idle_start: float = 0.15
    upper: PPOSettings = dataclasses.field(default_factory=PPOSettings)
    lower: PPOSettings = dataclasses.field(
        default_factory=lambda: PPOSettings(learning_rate=3e-4, epochs=1)
    )

    def __post_init__(self):
        check_fields(self, ("envs", "rollout", "every", "hidden"), "an integer >= 1", is_count)
        shares = ("upper_discount", "lower_discount", "shaping", "idle_start")
        check_fields(self, shares, "a number from 0 to 1", is_share)


def check_sizes(settings: TrainSettings, horizon: int) -> None:
    """Raise ValueError where batches would not divide: cheap, so ask before solving scenarios."""
    if horizon % settings.rollout or settings.rollout % settings.every:
        raise ValueError("rollout must divide the horizon and be a multiple of every")
    if settings.envs * settings.rollout // settings.every % settings.upper.minibatches:
        raise ValueError("upper.minibatches must divide envs x rollout / every")
    if settings.envs * settings.rollout % settings.lower.minibatches:
        raise ValueError("lower.minibatches must divide envs x rollout")
