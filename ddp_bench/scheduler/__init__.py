"""Micro-batch scheduling as pure functions of lengths: no torch, no communication, no state.

costs     what a micro-batch costs: `tokens`, `tokens_sq`, `fitted`
counts    how many samples every rank pops from its own FIFO buffer (exact min-max)
pooled    how one shared pool of samples is split over ranks (exact min-max)
packing   Karmarkar-Karp partition for padding-free micro-batches
fit       the fitted cost: learnt online during a run, and fitted once more after it
"""

from ddp_bench.scheduler.costs import COST_TYPES, CostModel, padded_length, prefix_costs
from ddp_bench.scheduler.counts import (
    COUNT_SOLVERS,
    Infeasible,
    solve_enumeration,
    solve_greedy,
    solve_order_statistic,
)
from ddp_bench.scheduler.fit import FIT_COLUMNS, OnlineFit, cost_fits, fit_coefficients
from ddp_bench.scheduler.packing import karmarkar_karp
from ddp_bench.scheduler.pooled import split_pool

__all__ = [
    "COST_TYPES",
    "COUNT_SOLVERS",
    "FIT_COLUMNS",
    "CostModel",
    "Infeasible",
    "OnlineFit",
    "cost_fits",
    "fit_coefficients",
    "karmarkar_karp",
    "padded_length",
    "prefix_costs",
    "solve_enumeration",
    "solve_greedy",
    "solve_order_statistic",
    "split_pool",
]
