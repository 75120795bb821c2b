"""A second, slow opinion on plans: everything that the family promises, asked one by one."""

import jax
import numpy as np

from jaxsim.files.errors import InputError
from jaxsim.plan.plan import Plan
from jaxsim.workload.workload import Workload


def check_plan(plan: Plan, work: Workload, gpus: np.ndarray, names: tuple[str, ...]) -> None:
    """Refuse, on the host, a plan that cannot be carried out on `gpus` [K] GPUs (one job).

    Raises InputError that names the first field that is wrong.
    """
    p = jax.tree.map(np.asarray, plan)
    used = p.group >= 0
    if not used.any():
        raise InputError("plan: group: no domain is used")
    groups = sorted(set(p.group[used].tolist()))
    if groups != list(range(len(groups))):
        raise InputError(f"plan: group: expected numbers 0..{len(groups) - 1}, got {groups}")
    total = 0
    for g in groups:
        members = np.flatnonzero(p.group == g)
        if sorted(p.position[members].tolist()) != list(range(len(members))):
            raise InputError(f"plan: position: group {g} needs 0..{len(members) - 1}")
        if p.layers[members].sum() != int(work.layers):
            got = int(p.layers[members].sum())
            raise InputError(f"plan: layers: group {g} holds {got} of {int(work.layers)} layers")
        total += int(p.batch_share[g] * p.micro_batch[g] * p.dp[g])
    if total != int(work.global_batch):
        raise InputError(f"plan: batch_share: {total} sequences of {int(work.global_batch)}")
    need = p.dp[np.clip(p.group, 0, None)] * p.tp * p.pp * p.cp * used
    for k in np.flatnonzero(used):
        if need[k] > gpus[k] or need[k] < 1 or not 1 <= p.pp[k] <= p.layers[k]:
            raise InputError(
                f"plan: {names[k]}: dp x tp x pp x cp = {need[k]} GPUs of {gpus[k]}, "
                f"{p.pp[k]} stages for {p.layers[k]} layers"
            )
