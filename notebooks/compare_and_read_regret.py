# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Compare schedulers and read regret
#
# Clairvoyant knows the future and plays the best sequence of plans. Regret is what a scheduler lacks
# of that, on the same scenario. Headroom says whether there was anything to gain at all.

# %%
import os
import tempfile

import pandas as pd
from matplotlib import pyplot  # noqa: F401, lets Jupyter display figures

from analysis.figures import schedulers_compared
from analysis.records import load
from experiments.cli import main

small = os.environ.get("HIPPO_NOTEBOOK_SIZE") == "small"
folder = os.path.join(tempfile.mkdtemp(), "comparison")

# %%
asked = ["--schedulers", "best_static,hysteresis,hi_ppo,clairvoyant"]
asked += ["--seeds", "2" if small else "12", "--steps", "8" if small else "48"]
asked += [
    "--table-size",
    "16",
    "--layout-limit",
    "300",
    "--tuning-scenarios",
    "0" if small else "8",
]
assert main(["evaluate", *asked, "--out", folder]) == 0

# %%
record = load(folder)
headroom = record.summary["headroom"]
print(f"headroom: {headroom['n_kept']} of {headroom['n_scenarios']} scenarios")
columns = ["regret_pct", "regret_ci95_pct", "bound_pct", "step_s", "replans"]
pd.DataFrame(record.summary["schedulers"]).T[columns].sort_values("regret_pct")

# %% [markdown]
# The interval of a mean holds the differences between scenarios. Whether one scheduler beats another
# is the question of the *paired* gain: both on the same scenario, then averaged.

# %%
paired = record.summary["paired"].get("hi_ppo", {})
pd.DataFrame(paired).T

# %%
schedulers_compared(record.table("scenarios"), ["hi_ppo"])

# %% [markdown]
# Scenarios in which clairvoyant itself gains next to nothing decide nothing. The same numbers, one
# scenario at a time:

# %%
scenarios = record.table("scenarios")
seeds = scenarios.groupby(["scheduler", "scenario"])["progress_rel"].mean().unstack("scheduler")
(100.0 * (1.0 - seeds)).round(2)
