"""Gradient ascent on the expected progress, over batches of recorded scenarios."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Float, Int, UInt32

from agents.hi_ppo import PolicyParams, TrainSettings, init_policy, upper_network
from agents.hi_ppo.exact.recording import Recording
from agents.hi_ppo.exact.value import expected_progress
from jaxsim.pytree import Pytree
from jaxsim.trees import take

GAINS = ("stayed", "moved", "started")  # of a recording
WORST = 5.0  # intervals of the best at base, lost
PARTS = "parts"  # axis of a mesh of devices, each of which sums over its share of a batch


class ExactState(Pytree):
    """Everything that training carries from epoch to epoch, for one policy seed."""

    policy: PolicyParams
    upper_opt: Any
    key: UInt32[Array, "*batch 2"]  # raw key data, uint32; epochs fold their number into it
    epoch: Int[Array, "*batch"]  # epochs done


class ExactMetrics(Pytree):
    """Means over one epoch, [] each."""

    progress_rel: Float[Array, "*batch"]  # expected progress / that of the best static plan at base
    gradient_norm: Float[Array, "*batch"]
    prior_scale: Float[Array, "*batch"]

    def columns(self) -> dict[str, Float[Array | np.ndarray, "..."]]:
        """What a run records of an epoch, by name."""
        names = ("progress_rel", "gradient_norm", "prior_scale")
        return {name: getattr(self, name) for name in names}


class ExactTrainer:
    """Compiled pieces of a training run; all state is in ExactState.

    The loss is minus the expected progress, half of it from idle domains and half from a row that
    might be any: good play must not depend on a good start. Its gradient is exact (the policy
    gradient of Sutton et al. 2000 with the true Q of every action), by differentiation through the
    programme. The lower level stays at its prior, the choice that is best as measured: the upper
    level's recordings are made with it.

    There may be several banks of recordings, of worlds of any sizes. Each update draws as many
    scenarios from every one; their progress counts in units of the best static plan's, so a world
    weighs as much as there is to be gained in it.

    With a `mesh` of N devices along PARTS each sums the gradient over an Nth of every batch. State and
    banks are arrays of the mesh then, the same on all devices; results are those of one device but for
    the order in which scenarios are added.
    """

    def __init__(
        self,
        settings: TrainSettings,
        banks: Sequence[Recording],
        epochs: int,
        mesh: Mesh | None = None,
        options: dict[str, bool] | None = None,
    ):
        """`options`: of the compiler for the program of an epoch.

        Raises ValueError where a batch cannot be dealt out to the mesh's devices evenly."""
        self.settings, self.banks, self.mesh = settings, tuple(banks), mesh
        exact = settings.exact
        of_each = max(1, exact.batch // len(self.banks))
        self.batches = [min(of_each, bank.stayed.shape[0]) for bank in self.banks]
        parts = 1 if mesh is None else mesh.size
        if any(size % parts for size in self.batches):
            raise ValueError(
                f"train.exact.batch: expected a multiple of {parts}, the devices, for each world; "
                f"got {', '.join(map(str, self.batches))}"
            )
        rate = optax.cosine_decay_schedule(exact.learning_rate, max(1, epochs * exact.updates))
        clip = optax.clip_by_global_norm(exact.max_grad_norm)
        self.optimizer = optax.chain(clip, optax.adam(rate))
        self.network = upper_network(settings.networks)
        self.init = jax.jit(jax.vmap(self._init))
        epoch = jax.vmap(self._epoch, (0, None))
        self.epoch_on = jax.jit(epoch, compiler_options=options)

    def run_epoch(self, state: ExactState) -> tuple[ExactState, ExactMetrics]:
        """Some updates, each on a batch of other scenarios."""
        return self.epoch_on(state, self.banks)

    @property
    def steps_per_epoch(self) -> int:
        """Intervals of scenarios in one epoch, of one policy seed; each is seen from every row."""
        lengths = [bank.stayed.shape[1] for bank in self.banks]
        drawn = sum(size * length for size, length in zip(self.batches, lengths, strict=True))
        return self.settings.exact.updates * drawn

    def _init(self, seed: Array) -> ExactState:
        """Fresh state for a seed (uint32)."""
        policy_key, run_key = jax.random.split(jax.random.key(seed))
        policy = init_policy(policy_key, self.settings.networks)
        return ExactState(
            policy=policy,
            upper_opt=self.optimizer.init(policy.upper),
            key=jax.random.key_data(run_key),
            epoch=jnp.int32(0),
        )

    def _epoch(
        self, train: ExactState, banks: tuple[Recording, ...]
    ) -> tuple[ExactState, ExactMetrics]:
        key = jax.random.fold_in(jax.random.wrap_key_data(train.key), train.epoch)

        def update(carry, key):
            params, opt_state = carry
            gradient, progress = self._mean_gradient(params, banks, key)
            # optax raises a float to an int power, which strict promotion refuses.
            with jax.numpy_dtype_promotion("standard"):
                changes, opt_state = self.optimizer.update(gradient, opt_state, params)
            metrics = ExactMetrics(
                progress_rel=progress,
                gradient_norm=optax.tree.norm(gradient),
                prior_scale=jnp.exp(params["params"]["prior_scale"]),
            )
            return (optax.apply_updates(params, changes), opt_state), metrics

        keys = jax.random.split(key, self.settings.exact.updates)
        carry = (train.policy.upper, train.upper_opt)
        (upper, upper_opt), metrics = jax.lax.scan(update, carry, keys)
        policy = train.policy.replace(upper=upper)
        train = train.replace(policy=policy, upper_opt=upper_opt, epoch=train.epoch + 1)
        return train, jax.tree.map(jnp.mean, metrics)

    def _mean_gradient(
        self, params: Any, banks: tuple[Recording, ...], key: Array
    ) -> tuple[Any, Array]:
        """The mean over worlds, each of scenarios of its own."""
        keys = jax.random.split(key, len(banks))
        found = []
        for bank, size, key in zip(banks, self.batches, keys, strict=True):
            which = jax.random.permutation(key, bank.stayed.shape[0])[:size]
            found.append(self._gradient(params, bank, which))
        return jax.tree.map(lambda *xs: sum(xs) / len(xs), *found)

    def _gradient(self, params: Any, bank: Recording, which: Array) -> tuple[Any, Array]:
        """The gradient of the loss in per cent, in the mean over scenarios `which` [B]."""
        summed = self._summed
        if self.mesh is not None:
            alike, dealt = PartitionSpec(), PartitionSpec(PARTS)
            # What a device adds up is its own until `psum`, which the check of replication cannot see.
            summed = jax.shard_map(
                lambda *args: jax.lax.psum(self._summed(*args), PARTS),
                mesh=self.mesh,
                in_specs=(alike, alike, dealt),
                out_specs=alike,
                check_vma=False,
            )
        return jax.tree.map(lambda x: x / which.size, summed(params, bank, which))

    def _summed(self, params: Any, bank: Recording, which: Array) -> tuple[Any, Array]:
        """The sum over scenarios `which` [B], one after the other: together they would not fit a small
        machine's memory."""

        def add(total, index):
            one = jax.grad(self._loss, has_aux=True)(params, take(bank, index))
            return jax.tree.map(jnp.add, total, one), None

        nothing = jax.tree.map(jnp.zeros_like, (params, jnp.float32(0.0)))
        return jax.lax.scan(add, nothing, which)[0]

    def _loss(self, params: Any, recording: Recording) -> tuple[Array, Array]:
        """The loss of one scenario in per cent, and what it makes from idle domains; both in the
        recording's unit. What is worse than to lose WORST of them is not told apart: else a few
        scenarios would be all of the gradient.
        """
        bounded = recording.replace(
            **{
                name: jnp.maximum(getattr(recording, name) / recording.unit, -WORST)
                for name in GAINS
            }
        )
        idle, anywhere = expected_progress(
            self.network, params, bounded, self.settings.exact.temperature
        )
        return -50.0 * (idle + anywhere), idle
