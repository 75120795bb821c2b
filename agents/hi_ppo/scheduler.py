"""A trained Hi-PPO behind the protocol of all schedulers."""

from __future__ import annotations

from typing import Any, Self

import jax
import jax.numpy as jnp
import jraph
from flax import struct
from jax import Array
from jaxtyping import Bool, Float, Int, Key

from agents.foresight import Outlook
from agents.hi_ppo.features import (
    AHEAD,
    CHOICE_FEATURES,
    GRAPH_NODE_FEATURES,
    MOVE_FEATURES,
    ROW_FEATURES,
    Measurement,
    Reference,
    Statistics,
    init_statistics,
    lower_inputs,
    reference_of,
    update_statistics,
    upper_inputs,
)
from agents.hi_ppo.filter import ViewFilter, init_filter, update_filter
from agents.hi_ppo.forecast import forecast
from agents.hi_ppo.lower import allowed_choices, balanced_on
from agents.hi_ppo.networks import (
    GraphInputs,
    LowerInputs,
    UpperInputs,
    lower_network,
    upper_network,
)
from agents.hi_ppo.settings import Networks
from agents.protocol import (
    Scheduler,
    Setup,
    best_choices,
    carry_out,
    find_row,
    measured_rates,
    nothing,
    switch_times,
    switch_worths,
)
from agents.staying import Layouts, first_layouts, losses
from jaxsim.env import EDGE_FEATURES, NODE_FEATURES, Observation
from jaxsim.plan import Plan
from jaxsim.pytree import Pytree
from jaxsim.trees import take


class PolicyParams(Pytree):
    """Parameters of both policies, as flax initialises them."""

    upper: Any
    lower: Any


def init_policy(key: Key[Array, ""], networks: Networks) -> PolicyParams:
    """Fresh parameters of both policies: none of their shapes depends on a world."""
    upper_key, lower_key = jax.random.split(key)

    def zeros(*shape):
        return jnp.zeros(shape, jnp.float32)

    one = jnp.zeros((1,), jnp.int32)
    yes = jnp.ones((1,), bool)

    def wan(features):
        nodes, edges = zeros(1, features), zeros(1, EDGE_FEATURES)
        return GraphInputs(jraph.GraphsTuple(nodes, edges, one, one, None, one, one), yes)

    ahead, row = forecasts_of(networks), jnp.int32(0)
    rows, moves = zeros(1, ROW_FEATURES + ahead), zeros(1, MOVE_FEATURES + ahead)
    upper = UpperInputs(wan(NODE_FEATURES), rows, zeros(1, 1), moves, row, yes, zeros(1))
    lower = LowerInputs(wan(GRAPH_NODE_FEATURES), yes, zeros(1, CHOICE_FEATURES), yes, zeros(1))
    return PolicyParams(
        upper=upper_network(networks).init(upper_key, upper),
        lower=lower_network(networks).init(lower_key, lower),
    )


def forecasts_of(networks: Networks) -> int:
    """How many forecasts of every row the networks see."""
    return len(AHEAD) if networks.forecasts else 0


def policy_shapes(networks: Networks) -> PolicyParams:
    """Names, shapes and types of the parameters of both policies, in place of their values."""
    return jax.eval_shape(lambda key: init_policy(key, networks), jax.random.key(0))


class Memory(Pytree):
    """What the policy carries from interval to interval."""

    stats: Statistics
    filtered: ViewFilter  # of all measurements
    outlook: Outlook | None  # of them as well, where forecasts are seen
    layouts: Layouts | None
    clock: Int[Array, "*batch"]  # intervals since the last upper decision


def measure(
    setup: Setup,
    observation: Observation,
    reference: Reference,
    layouts: Layouts | None,
    allowed: Bool[Array, "P V"] | None = None,
    job: int = 0,
) -> tuple[Measurement, Layouts | None]:
    """Score the table under what was measured, with the `allowed` lower choices [P, V] (None = all);
    `layouts` of the interval before become this one's. Before the first deployment the best static row
    stands for the plan in force: to stay is to deploy it."""
    plan, target = (take(p, job) for p in (observation.plan, observation.target))
    row, found = find_row(setup.table, target)
    rates = measured_rates(setup, observation)
    if allowed is not None:
        rates = jnp.where(allowed, rates, nothing(setup))
    lost, layouts = losses(setup, layouts, best_choices(rates), observation.view)
    price = switch_worths(setup, plan, observation.view)
    measured = Measurement(
        rates=rates,
        lost=lost,
        switch_s=switch_times(setup, plan, observation.view),
        price=jnp.zeros_like(lost) if price is None else price,
        row=jnp.where(found, row, reference.static_row),
    )
    return measured, layouts


def score_upper(
    setup: Setup,
    params: PolicyParams,
    networks: Networks,
    observation: Observation,
    stats: Statistics,
    before: Float[Array, " P"],
    reference: Reference,
    measured: Measurement,
) -> Float[Array, " P"]:
    """[P] the upper level's logits; `stats` holds the measurement, `before` [P] the rates before it."""
    inputs = upper_inputs(setup, observation, stats, before, reference, measured)
    return upper_network(networks).apply(params.upper, inputs)[0]


def decide_lower(
    setup: Setup,
    params: PolicyParams,
    networks: Networks,
    observation: Observation,
    measured: Measurement,
    filtered: ViewFilter,
    row: Int[Array, ""],
) -> Plan:
    """The row's plan with the free fields as the lower level sets them, with a job axis of one.

    `filtered` holds the measurement.
    """
    inputs = lower_inputs(setup, observation, measured.rates, row)
    settings, _ = lower_network(networks).apply(params.lower, inputs)
    choice = jnp.argmax(settings).astype(jnp.int32)
    return carry_out(setup, row, choice, balanced_on(setup, networks, filtered, observation.view))


class Looked(Pytree):
    """What the policy sees before a decision."""

    measured: Measurement
    logits: Float[Array, "*batch P"]  # of the upper level


class HiPPO(Pytree, Scheduler):
    """The greedy policy: the upper level decides every `every` intervals, the lower in each.

    Attributes:
        policy: parameters of both networks
        every: [] intervals
        networks: of both levels
        setup: set by `bind`
        reference: what rates are measured in, set by `bind`
        allowed: [P, V] lower choices, None = all, set by `bind`
    """

    policy: PolicyParams
    every: Int[Array, "*batch"] | int
    networks: Networks = struct.field(pytree_node=False)
    setup: Setup = struct.field(default=None)  # set by `bind`, as is the next
    reference: Reference = struct.field(default=None)
    allowed: Bool[Array, "*batch P V"] | None = struct.field(default=None)

    def bind(self, setup: Setup) -> Self:
        allowed = allowed_choices(setup, self.networks)
        reference = reference_of(setup, self.networks, allowed)
        return self.replace(setup=setup, reference=reference, allowed=allowed)

    def init(self, key: Key[Array, ""]) -> Memory:
        del key
        filtered, layouts = init_filter(self.setup.prior), first_layouts(self.setup)
        stats = init_statistics(self.reference, forecasts_of(self.networks))
        outlook = Outlook.of(self.setup) if self.networks.forecasts else None
        return Memory(stats, filtered, outlook, layouts, jnp.int32(0))

    def decide(
        self, key: Key[Array, ""], observation: Observation, memory: Memory, *truth: Any
    ) -> tuple[Plan, Memory]:
        del key, truth
        looked, known = self.look(observation, memory)
        wanted = jnp.argmax(looked.logits).astype(jnp.int32)
        row = jnp.where(memory.clock == 0, wanted, looked.measured.row)
        clock = jax.lax.rem(memory.clock + 1, jnp.int32(self.every))
        return self.carried_out(observation, looked, known, row), known.replace(clock=clock)

    def look(self, observation: Observation, memory: Memory) -> tuple[Looked, Memory]:
        """What is measured and how the upper level scores the rows, and the memory that holds it."""
        known = self.reference, memory.layouts, self.allowed
        measured, layouts = measure(self.setup, observation, *known)
        outlook, ahead = self._foreseen(observation, memory.outlook, measured)
        of_rows = measured.rates.max(axis=-1), measured.lost, ahead
        stats = update_statistics(memory.stats, *of_rows)
        filtered = update_filter(memory.filtered, observation.view)
        of = self.setup, self.policy, self.networks, observation
        logits = score_upper(*of, stats, memory.stats.last, self.reference, measured)
        known = Memory(stats, filtered, outlook, layouts, memory.clock)
        return Looked(measured, logits), known

    def _foreseen(
        self, observation: Observation, outlook: Outlook | None, measured: Measurement
    ) -> tuple[Outlook | None, Array | None]:
        """The outlook with one more measurement, and [A, P] rates as they are expected to be."""
        if outlook is None:
            return None, None
        outlook = outlook.measured(self.setup, observation.view)
        choice = best_choices(measured.rates).choice
        return outlook, forecast(self.setup, outlook, observation.view, choice)

    def carried_out(
        self, observation: Observation, looked: Looked, known: Memory, row: Int[Array, ""]
    ) -> Plan:
        """The row's plan as the lower level sets it up; `known` holds the measurement."""
        of = self.setup, self.policy, self.networks, observation
        return decide_lower(*of, looked.measured, known.filtered, row)
