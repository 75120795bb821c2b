# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Dynamic micro-batches
#
# In synchronous data-parallel training the slowest rank sets the pace, and a micro-batch is padded to
# its longest sample. `ddp_bench.scheduler` decides per step how many samples every rank takes, and
# which. These are pure functions of lengths; `hippo ddp` measures them in real training.

# %%
import os

import numpy as np
from matplotlib import pyplot as plt

from ddp_bench.scheduler import CostModel, prefix_costs, solve_order_statistic, split_pool

small = os.environ.get("HIPPO_NOTEBOOK_SIZE") == "small"
steps, ranks, batch = (20, 4, 32) if small else (2000, 4, 32)
rng = np.random.default_rng(0)

# %% [markdown]
# Lengths of text have a long tail; here they are log-normal, cut at 512 tokens. The cost of a
# micro-batch of k samples padded to L tokens is a + b kL + c kL^2: linear layers and attention.

# %%
cost = CostModel("fitted", a=5.0, b=0.02, c=2e-5)
lengths = np.clip(rng.lognormal(3.6, 0.8, size=(steps, batch)), 4, 512).astype(int)
print("median", int(np.median(lengths)), "tokens; 99th centile", int(np.quantile(lengths, 0.99)))


# %%
def largest(groups):
    """Cost [ms] of the slowest rank."""
    return max(float(cost(len(group), max(group))) for group in groups)


def same_counts():
    """Every rank takes batch / ranks samples, as they come."""
    return [largest(np.split(row, ranks)) for row in lengths]


def counts_decided(ahead=32):
    """Every rank keeps a queue of `ahead` samples in order; how many it pops is decided, exactly."""
    stream = iter(lengths.ravel())
    queues, times = [[] for _ in range(ranks)], []
    while True:
        for queue in queues:  # nothing is skipped: a long sample waits, but comes
            queue.extend(
                length for _, length in zip(range(ahead - len(queue)), stream, strict=False)
            )
        if sum(map(len, queues)) < ranks * ahead:
            return times
        counts = solve_order_statistic([prefix_costs(np.array(q), cost) for q in queues], batch)
        times.append(largest([q[:n] for q, n in zip(queues, counts, strict=True)]))
        queues = [q[n:] for q, n in zip(queues, counts, strict=True)]


def pool_split():
    """The batch is one pool; which samples go together is decided, exactly."""
    return [largest([row[i] for i in split_pool(row, ranks, cost)]) for row in lengths]


rules = {"same counts": same_counts, "counts decided": counts_decided, "pool split": pool_split}
slowest = {name: np.array(rule()) for name, rule in rules.items()}
static = slowest["same counts"].mean()
for name, times in slowest.items():
    change = 100.0 * (times.mean() / static - 1.0)
    slow = np.quantile(times, 0.95)
    print(f"{name:15} mean {times.mean():6.1f} ms  P95 {slow:6.1f} ms  {change:+.1f} %")

# %% [markdown]
# The gradient stays that of the global batch for any counts: each rank's sum of losses is scaled by
# ranks / batch, so that averaging over ranks gives the mean over all samples.

# %%
parts = [lengths[0][indices] for indices in split_pool(lengths[0], ranks, cost)]
losses = rng.normal(size=512)  # of a sample of each length
averaged = np.mean([ranks / batch * losses[part - 1].sum() for part in parts])
assert np.isclose(averaged, losses[lengths[0] - 1].mean())

# %%
figure = plt.figure(figsize=(7.0, 3.2), layout="constrained")
axes = figure.add_subplot()
for name, times in slowest.items():
    axes.plot(np.sort(times), np.linspace(0, 100, len(times)), label=name)
axes.set(xlabel="slowest rank of a step [ms]", ylabel="steps at most as slow [%]")
axes.legend()
plt.show()
