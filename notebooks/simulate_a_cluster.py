# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Simulate a cluster
#
# One step of the environment is one decision interval. `reset` and `step` are pure functions: one
# scenario runs under `jax.lax.scan`, many at once under `jax.vmap`.

# %%
import os

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib import pyplot as plt

import jaxsim
from jaxsim.plan import describe
from jaxsim.trees import take

small = os.environ.get("HIPPO_NOTEBOOK_SIZE") == "small"
intervals, scenarios = (8, 2) if small else (120, 16)
print("worlds:", ", ".join(jaxsim.list_worlds()))

# %%
params = jaxsim.make("four-aws-regions", seed=0)
names = tuple(jaxsim.load_cluster("four-aws-regions").domains)
print("plan in force:", describe(take(params.initial_plan, 0), names))
print("training steps per interval at base:", float(params.progress_ref[0]))


# %% [markdown]
# The plan stays the same; the links move. The reward is the relative gain over that plan on steady
# links, so a reward of -0.1 is 10 % less training.


# %%
def episode(key):
    """Rewards [T] and bandwidths [T, K, K] in GB/s of a scenario in which nobody re-plans."""
    state, _ = jaxsim.reset(key, params)

    def interval(state, t):
        state, timestep = jaxsim.step(
            jax.random.fold_in(key, t), state, params.initial_plan, params
        )
        return state, (timestep.reward, state.view.bandwidth_gb_per_s)

    return jax.lax.scan(interval, state, jnp.arange(intervals))[1]


keys = jax.random.split(jax.random.key(0), scenarios)
rewards, bandwidth = jax.jit(jax.vmap(episode))(keys)
print("rewards", rewards.shape, "bandwidth", bandwidth.shape)
print(f"mean reward {float(rewards.mean()):+.3f}, worst interval {float(rewards.min()):+.3f}")

# %%
figure = plt.figure(figsize=(8.0, 4.5), layout="constrained")
above, below = figure.subplots(2, 1, sharex=True)
for source, target in ((0, 1), (0, 2), (0, 3)):
    label = f"{names[source]} to {names[target]}"
    above.plot(8.0 * np.asarray(bandwidth[0, :, source, target]), label=label)
above.set_ylabel("bandwidth [Gbit/s]")
above.legend()
below.plot(np.asarray(rewards).T, color="0.7", linewidth=0.8)
below.plot(np.asarray(rewards).mean(axis=0), color="black", label="mean of scenarios")
below.set(xlabel="interval", ylabel="reward")
below.legend()
plt.show()
