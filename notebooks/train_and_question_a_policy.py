# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Train and question a policy
#
# `hippo train` trains Hi-PPO and leaves a run folder; notebooks read run folders. What is trained here
# in a minute is a demonstration: the policy that ships took `experiments/configs/shipped.yaml`.

# %%
import os
import tempfile

import jax
import jax.numpy as jnp
from matplotlib import pyplot  # noqa: F401, lets Jupyter display figures

import agents
import jaxsim
from agents.hi_ppo import load_checkpoint, schedulers
from analysis.figures import learning_curve
from analysis.records import load
from experiments.cli import main
from jaxsim.plan import describe
from jaxsim.trees import take

small = os.environ.get("HIPPO_NOTEBOOK_SIZE") == "small"
folder = os.path.join(tempfile.mkdtemp(), "policy")

# %%
size = ["--epochs", "2" if small else "40", "--scenarios", "4" if small else "16"]
size += ["--eval-scenarios", "3" if small else "8", "--eval-every", "2" if small else "10"]
world_of_training = ["--table-size", "4" if small else "16", "--scenario.horizon", "8"]
assert main(["train", *size, *world_of_training, "--seeds", "[0]", "--out", folder]) == 0

# %%
record = load(folder)
print({key: value for key, value in record.summary.items() if isinstance(value, int | float)})
learning_curve(record.table("metrics"), record.table("eval"))

# %% [markdown]
# ## What would you do if ...?
#
# A policy is a scheduler: it maps what was measured to a plan. So it can be asked about links that
# never were. Here all links out of one domain become slower, and the policy that ships says where it
# would train. It moves only if that is worth the move, which costs time.

# %%
world = jaxsim.make_world("four-aws-regions")
params = jaxsim.make("four-aws-regions", seed=0)
setup = agents.make_setup(params, world.table)
names = tuple(jaxsim.load_cluster("four-aws-regions").domains)
policy = agents.make("hi_ppo", world, params).bind(setup)
_, timestep = jaxsim.reset(jax.random.key(0), params)
observation = timestep.observation


@jax.jit
def asked(bandwidth):
    """The plan that the policy chooses where links have `bandwidth` [K, K] in GB/s."""
    view = observation.view.replace(bandwidth_gb_per_s=bandwidth)
    seen = observation.replace(view=view)
    plan, _ = policy.decide(jax.random.key(0), seen, policy.init(jax.random.key(1)))
    return take(plan, 0)


measured = observation.view.bandwidth_gb_per_s
for slow in range(len(names)):
    for factor in (1.0, 0.3, 0.03):
        changed = measured.at[slow, :].multiply(factor).at[:, slow].multiply(factor)
        changed = jnp.where(jnp.eye(len(names), dtype=bool), measured, changed)
        print(f"links of {names[slow]:9} x {factor:<4}: {describe(asked(changed), names)}")

# %% [markdown]
# The checkpoint that was just trained is asked in the same way, with its own table of plans; as a
# command, `hippo evaluate --schedulers FOLDER` plays it against every rival.

# %%
trained = schedulers(load_checkpoint(folder))
print("policies in the run folder:", len(trained))
