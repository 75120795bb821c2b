"""How Hi-PPO is trained: sizes, schedule and the settings of both levels."""

from __future__ import annotations

import dataclasses

from jaxsim.files import (
    check_counts,
    check_fields,
    is_non_negative,
    is_positive,
    is_share,
    listed,
)

ALGORITHMS = ("exact", "ppo")
ENCODERS = ("sage", "gat", "none")
LOWER_LEVELS = ("filtered", "measured", "base")
REFERENCES = ("outlook", "base")


@dataclasses.dataclass(frozen=True)
class Networks:
    """The networks of both levels.

    Attributes:
        hidden: width
        encoder: of the WAN, see `agents.hi_ppo.networks.GraphEncoder`
        forecasts: do they see the rates that a model of the links foresees?
        lower_level: what it goes by, see `agents.hi_ppo.lower`
        reference: what rows are taken to bring before anything is measured, see
            `agents.hi_ppo.features.reference_of`
    """

    hidden: int = 32
    encoder: str = ENCODERS[0]
    forecasts: bool = False
    lower_level: str = LOWER_LEVELS[0]
    reference: str = REFERENCES[0]


@dataclasses.dataclass(frozen=True)
class PPOSettings:
    """Schulman et al. 2017.

    Attributes:
        learning_rate: of Adam, decays linearly to zero over the run
        clip: range of the probability ratio around 1
        value_weight: weight of the value loss
        entropy_weight: weight of the entropy bonus
        max_grad_norm: gradients are clipped by their global norm
        epochs: passes over each batch
        minibatches: per pass; must divide the number of environments
        trace_decay: lambda of the advantage estimate
        target_kl: divergence from the policy that acted beyond which the passes over a batch end; 0 =
            none
    """

    learning_rate: float = 1e-3
    clip: float = 0.2
    value_weight: float = 0.5
    entropy_weight: float = 0.002
    max_grad_norm: float = 0.5
    epochs: int = 3
    minibatches: int = 4
    trace_decay: float = 0.9
    target_kl: float = 0.0

    def __post_init__(self):
        rates = ("learning_rate", "clip", "max_grad_norm")
        check_fields(self, rates, "a number > 0", is_positive)
        check_fields(
            self, ("value_weight", "entropy_weight", "target_kl"), "a number >= 0", is_non_negative
        )
        check_counts(self, {"epochs": 1000, "minibatches": 100_000})
        check_fields(self, ("trace_decay",), "a number from 0 to 1", is_share)


@dataclasses.dataclass(frozen=True)
class ExactSettings:
    """Gradient ascent on the expected progress of recorded scenarios.

    Attributes:
        learning_rate: of Adam, decays to zero by half a cosine over the run
        max_grad_norm: gradients are clipped by their global norm; a guard. A few scenarios have
            gradients a hundred times the usual, and less is learned where these are cut
        batch: scenarios per update, shared out among the worlds
        updates: per epoch
        temperature: what logits are divided by while it learns. At 1 a policy is nearly sure of most
            decisions, and the gradient is that of the few near ties of a few scenarios; when it plays
            it takes the likeliest row at any temperature
    """

    learning_rate: float = 1e-2
    max_grad_norm: float = 100.0
    temperature: float = 4.5
    batch: int = 8
    updates: int = 5

    def __post_init__(self):
        positive = ("learning_rate", "max_grad_norm", "temperature")
        check_fields(self, positive, "a number > 0", is_positive)
        check_counts(self, {"batch": 100_000, "updates": 1_000_000})


@dataclasses.dataclass(frozen=True)
class TrainSettings:
    """Sizes of Hi-PPO and of its training.

    Attributes:
        algorithm: exact (the exact gradient on recorded scenarios, of the upper policy; it decides in
            every interval) or ppo (of both policies, by playing; what follows is of ppo, but for
            `hidden`, `encoder`, `forecasts`, `lower_level`, `reference` and `exact`)
        envs: scenarios played at once, per policy seed
        rollout: intervals between two updates; must divide the horizon and be a multiple of `every`
        every: intervals between two decisions of the upper policy
        hidden: width of the networks
        encoder: of the WAN: sage (GraphSAGE), gat (with attention) or none (no messages)
        forecasts: let the policy see the rates that a model of the links foresees; exact only
        lower_level: what it goes by in every interval: filtered (choices as measured, batch shares as a
            filter of all measurements expects links and GPUs), measured (both as last measured) or base
            (both as they suit the base: never changed); ppo takes filtered only
        reference: what rows are taken to bring before anything is measured, where averages begin:
            outlook (in the mean over the states of links and load that are to be expected, by which the
            best static plan is chosen) or base (at the links' base)
        upper_discount: gamma per interval of the upper policy
        lower_discount: gamma per interval of the lower policy, whose choices leave nothing behind
        shaping: weight of the potential shaping with the training-time clairvoyant value, 0 to 1
        idle_start: share of the episodes that begin with nothing deployed, the others with a random
            row
        upper: PPO of the upper policy
        lower: PPO of the lower policy
        exact: the exact gradient's settings
    """

    algorithm: str = "exact"
    envs: int = 128
    rollout: int = 32
    every: int = 2
    hidden: int = 32
    encoder: str = "sage"
    forecasts: bool = False
    lower_level: str = "filtered"
    reference: str = REFERENCES[0]
    upper_discount: float = 0.95
    lower_discount: float = 0.5
    shaping: float = 1.0
    idle_start: float = 0.15
    upper: PPOSettings = dataclasses.field(default_factory=lambda: PPOSettings(learning_rate=1e-4))
    lower: PPOSettings = dataclasses.field(
        default_factory=lambda: PPOSettings(learning_rate=3e-4, epochs=1)
    )
    exact: ExactSettings = dataclasses.field(default_factory=ExactSettings)

    def __post_init__(self):
        most = {"envs": 1_000_000, "rollout": 1_000_000, "every": 1_000_000, "hidden": 65_536}
        check_counts(self, most)
        check_fields(self, ("algorithm",), listed(ALGORITHMS), ALGORITHMS.__contains__)
        check_fields(self, ("encoder",), listed(ENCODERS), ENCODERS.__contains__)
        known = listed(LOWER_LEVELS)
        check_fields(self, ("lower_level",), known, LOWER_LEVELS.__contains__)
        check_fields(self, ("reference",), listed(REFERENCES), REFERENCES.__contains__)
        if self.forecasts and self.algorithm == "ppo":
            raise ValueError("forecasts: ppo sees none; algorithm exact does")
        if self.lower_level != LOWER_LEVELS[0] and self.algorithm == "ppo":
            raise ValueError("lower_level: ppo takes filtered; algorithm exact takes the others")
        shares = ("upper_discount", "lower_discount", "shaping", "idle_start")
        check_fields(self, shares, "a number from 0 to 1", is_share)

    @property
    def networks(self) -> Networks:
        """Of both levels."""
        names = (field.name for field in dataclasses.fields(Networks))
        return Networks(**{name: getattr(self, name) for name in names})

    @property
    def cadence(self) -> int:
        """Intervals between two decisions of the upper policy that is trained so."""
        return 1 if self.algorithm == "exact" else self.every


def check_sizes(settings: TrainSettings, horizon: int) -> None:
    """Raise ValueError where batches would not divide: cheap, so ask before solving scenarios."""
    if horizon % settings.rollout or settings.rollout % settings.every:
        raise ValueError("rollout must divide the horizon and be a multiple of every")
    if settings.envs * settings.rollout // settings.every % settings.upper.minibatches:
        raise ValueError("upper.minibatches must divide envs x rollout / every")
    if settings.envs * settings.rollout % settings.lower.minibatches:
        raise ValueError("lower.minibatches must divide envs x rollout")
