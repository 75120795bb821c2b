# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # A scheduler in 20 lines
#
# A scheduler of the plan table chooses a row before every interval. This one moves when the training
# that it expects to gain within a horizon exceeds the training that the move costs.

# %%
import os

import jax
import jax.numpy as jnp
import numpy as np

import agents
import jaxsim
from agents.episodes import play
from agents.protocol import TableScheduler

small = os.environ.get("HIPPO_NOTEBOOK_SIZE") == "small"
intervals, scenarios = (8, 2) if small else (64, 8)


# %%
class PayBack(TableScheduler):
    """Move when the gain pays the move back within `horizon_s` [s]."""

    horizon_s: float = 600.0

    def choose(self, key, seen, memory):
        kept = seen.now.rate[seen.row] * self.horizon_s  # training steps if it stays
        left = jnp.maximum(self.horizon_s - seen.switch_s, 0.0)  # [P] seconds left after the move
        gained = jnp.where(jnp.arange(len(left)) == seen.row, kept, seen.now.rate * left)
        best = jnp.argmax(gained).astype(jnp.int32)
        return jnp.where(seen.idle, jnp.argmax(seen.now.rate).astype(jnp.int32), best), memory


# %% [markdown]
# All schedulers play the same scenarios: a seed is the same links for everybody, so differences are
# paired.

# %%
world = jaxsim.make_world("four-aws-regions")
params = jaxsim.make("four-aws-regions", seed=0)
setup = agents.make_setup(params, world.table)
players = {
    "pay back, 600 s": PayBack(),
    "pay back, 60 s": PayBack(horizon_s=60.0),
    "hysteresis": agents.make("hysteresis", world, params),
    "best_static": agents.make("best_static", world, params),
}


def progress(scheduler, keys):
    """[B] training steps of an episode, and how often the plan changed."""

    def one(key):
        done = play(scheduler, params, setup, None, key, jax.random.key(1), intervals)
        return done.record.progress.sum(), done.record.switched.sum()

    return jax.jit(jax.vmap(one))(keys)


keys = jax.random.split(jax.random.key(0), scenarios)
found = {name: progress(scheduler, keys) for name, scheduler in players.items()}

# %%
static = np.asarray(found["best_static"][0])
for name, (steps, moves) in found.items():
    gain = 100.0 * (np.asarray(steps) / static - 1.0)
    error = gain.std(ddof=1) / np.sqrt(scenarios)
    moved = float(np.mean(moves))
    print(f"{name:16} {gain.mean():+6.2f} % (standard error {error:.2f}), {moved:.1f} moves")
