# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Your own cluster
#
# A cluster is a YAML file: the GPUs, the software that trains, domains, and three matrices (rows send,
# columns receive). Bandwidths are in Gbit/s, round trips in ms.

# %%
import os
import tempfile
from pathlib import Path

import jax.numpy as jnp
import pandas as pd

import jaxsim
from jaxsim.plan import Plan, Problem
from jaxsim.planning import base_view
from jaxsim.workload import MODEL_PRESETS, JobSpec, build_workload

small = os.environ.get("HIPPO_NOTEBOOK_SIZE") == "small"
file = Path(tempfile.mkdtemp()) / "three-sites.yaml"
file.write_text("""\
name: three-sites
gpu: A100-80GB
stack: llm-foundry
domains:
  - {name: north, gpus: 16, gpus_per_node: 8, usd_per_gpu_hour: 2.0}
  - {name: south, gpus: 16, gpus_per_node: 8, usd_per_gpu_hour: 2.0}
  - {name: west, gpus: 8, gpus_per_node: 8, usd_per_gpu_hour: 2.0}
intra_domain: {bandwidth_gbps: 400, rtt_ms: 0.05}
wan:
  bandwidth_gbps: [[0, 5.1, 3.0], [5.1, 0, 4.2], [3.0, 4.2, 0]]
  rtt_ms: [[0, 30, 61], [30, 0, 44], [61, 44, 0]]
  egress_usd_per_gb: [[0, 0.02, 0.02], [0.02, 0, 0.02], [0.02, 0.02, 0]]
""")
spec = jaxsim.load_cluster(str(file))
print(spec.name, dict(zip(spec.domains, spec.gpus, strict=True)))

# %% [markdown]
# ## What does a plan of your own cost?
#
# Domains of one group form a pipeline over the WAN, groups are data-parallel replicas.

# %%
job = JobSpec(MODEL_PRESETS["llama-7b"], global_batch=512, seq=4096)
cluster = spec.to_arrays()
problem = Problem(build_workload([job]).job(0), cluster, spec.calibration)
sites = {
    "north alone": [["north"]],
    "north | south": [["north"], ["south"]],
    "north>south": [["north", "south"]],
    "north | south | west": [["north"], ["south"], ["west"]],
}


def cost_of(groups, period, view):
    plan = Plan.build(
        spec, job, groups, tp=2, dp=4, recompute="full", schedule="eager_1f1b", sync_period=period
    )
    return jaxsim.job_step_cost(plan, problem, view)


rows = []
for name, groups in sites.items():
    for period in (1, 32) if len(groups) > 1 else (1,):
        cost = cost_of(groups, period, base_view(cluster))
        rows.append((name, period, float(cost.step_s), bool(cost.runs)))
pd.DataFrame(rows, columns=["groups", "steps between syncs", "step [s]", "runs"])

# %% [markdown]
# ## When is the WAN the bottleneck?
#
# All links times a factor, the plan of two replicas. Synchronous training feels it, local SGD with a
# sync every 32 steps hardly does (what its tokens are worth is another matter: docs/concepts.md).

# %%
table = []
for factor in (1.0, 0.1) if small else (4.0, 2.0, 1.0, 0.5, 0.25, 0.1):
    base = base_view(cluster)
    moved = base.replace(bandwidth_gb_per_s=base.bandwidth_gb_per_s * jnp.float32(factor))
    seconds = [float(cost_of(sites["north | south"], h, moved).step_s) for h in (1, 32)]
    table.append((factor, *seconds))
pd.DataFrame(table, columns=["WAN x", "step, H = 1 [s]", "step, H = 32 [s]"])

# %% [markdown]
# The search over all plans, prices and memory included, is one command; the comparison of schedulers on
# moving links another:
#
#     hippo plan --cluster three-sites.yaml --model llama-7b
#     hippo evaluate --cluster three-sites.yaml --model llama-7b --schedulers all
