"""A plan that was told before, from a file: one that runs already, or one to be played as it is."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxsim.cluster import ClusterSpec
from jaxsim.files import InputError, read_json
from jaxsim.plan import FULL_PRECISION_BITS, Plan, empty_plan

KIND = "a plan as `hippo plan --json`, `hippo respond` or `hippo watch` tells it"


def read_running(file: str, spec: ClusterSpec, allow: str) -> Plan:
    """The plan of a file, NumPy leaves, no job axis: the object under `fields`, at the top or under
    `plan`.

    Raises InputError that names the file and the key, for a plan of a cluster with other domains, and
    for one that trains otherwise than `allow` permits.
    """
    body = read_json(file, KIND)
    fields = _fields(body)
    empty = {name: np.asarray(value) for name, value in vars(empty_plan(spec.n_domains)).items()}
    if not isinstance(fields, dict) or set(fields) != set(empty):
        raise InputError(f"{file}: fields: expected those of {KIND}")
    plan = Plan(**{name: _array(file, name, fields[name], empty[name]) for name in empty})
    if plan.group.max() < 0:
        raise InputError(f"{file}: fields.group: no domain trains")
    bits = min(int(plan.wire_bits), int(plan.activation_bits))
    if allow == "synchronous" and (int(plan.sync_period) > 1 or bits < FULL_PRECISION_BITS):
        raise InputError(
            f"{file}: fields: the plan syncs every {int(plan.sync_period)} steps, in {bits} bits at "
            "least; allowed are every step and 16 bits, or any with --allow any"
        )
    return plan


def check_job(plan: Plan, file: str, layers: int, global_batch: int) -> None:
    """Raise InputError where the plan is of another model, by its layers, or of another batch
    [sequences]; NumPy leaves, no job axis."""
    groups = np.arange(plan.group.max() + 1)
    for group in groups:
        if (held := int(plan.layers[plan.group == group].sum())) != layers:
            raise InputError(
                f"{file}: fields.layers: a pipeline holds {held} layers; the model has {layers}"
            )
    each = plan.dp * plan.micro_batch * plan.batch_share
    if (held := int(each[groups].sum())) != global_batch:
        raise InputError(
            f"{file}: fields.batch_share: {held:,} sequences a step; the job has {global_batch:,}"
        )


def _fields(body: Any) -> Any:
    """What stands under `fields`, at the top or under `plan`; None where nothing does."""
    if not isinstance(body, dict):
        return None
    inner = body.get("plan")
    return body.get("fields", inner.get("fields") if isinstance(inner, dict) else None)


def _array(file: str, name: str, value: Any, like: np.ndarray) -> np.ndarray:
    try:
        array = np.array(value)
    except ValueError:  # rows of several lengths
        array = np.array(None)
    if array.dtype.kind != "i" or array.shape != like.shape:
        expected = "one integer"
        if like.shape:
            shape = " x ".join(map(str, like.shape))
            expected = f"{shape} integers, as of a cluster of {like.shape[0]} domains"
        raise InputError(f"{file}: fields.{name}: expected {expected}")
    return array.astype(like.dtype)
