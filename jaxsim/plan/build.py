"""The fields of a plan on the host (NumPy): empty, from numbers, from a description in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxsim.cluster import ClusterSpec
from jaxsim.files import InputError, values
from jaxsim.plan.layouts import Layout, split_layers
from jaxsim.plan.modes import Mode, Recompute, Schedule
from jaxsim.workload import RESHARD, JobSpec

UNUSED = -1
FULL_PRECISION_BITS = 16
WIDEST_BITS = 32  # of a value on the WAN
AS_JOB = -1  # reshard: what the job says

Domain = str | int  # by name, or by index in the cluster's order
PerDomain = int | Mapping[Domain, int]  # one number for all, or one by domain
PerGroup = int | Sequence[int]  # one number for all, or one per group
Named = Mode | str | Sequence[Mode | str]  # one mode for all groups, or one per group
Split = tuple[list[int], list[int]]  # layers and stages of a group's domains, in order


def empty_fields(n_domains: int) -> dict[str, Any]:
    """The fields of a plan that uses nothing."""
    zeros = np.zeros(n_domains, np.int32)
    ones = np.ones(n_domains, np.int32)
    return {
        "group": zeros + UNUSED,
        "position": zeros,
        "layers": zeros,
        "batch_share": zeros,
        "sync_period": np.int32(1),
        "wire_bits": np.int32(FULL_PRECISION_BITS),
        "activation_bits": np.int32(FULL_PRECISION_BITS),
        "fragments": np.int32(1),
        "overlap": np.int32(0),
        "shard_groups": np.int32(1),
        "dp": ones,
        "micro_batch": ones,
        "recompute": zeros,
        "schedule": zeros,
        "tp": ones,
        "pp": ones,
        "cp": ones,
        "zero_stage": ones,
        "reshard": zeros + AS_JOB,
        "placement": zeros,
    }


def assembled_fields(
    layout: Layout,
    tp: int | dict[int, int],
    dps: Sequence[int],
    splits: Sequence[Split],
    n_domains: int,
    **fields: int,
) -> dict[str, Any]:
    """The fields of a plan from its numbers; what `Plan.assemble` says holds here."""
    found = {name: np.array(value) for name, value in empty_fields(n_domains).items()}
    for name, value in fields.items():
        found[name] = np.full_like(found[name], value)
    for g, (members, dp, (layers, stages)) in enumerate(zip(layout, dps, splits, strict=True)):
        found["dp"][g] = dp
        for i, k in enumerate(members):
            found["group"][k], found["position"][k] = g, i
            found["layers"][k], found["pp"][k] = layers[i], stages[i]
            found["tp"][k] = tp[k] if isinstance(tp, dict) else tp
    return found


def described_fields(
    spec: ClusterSpec,
    job: JobSpec,
    groups: Sequence[Sequence[Domain]],
    layers: Mapping[Domain, int] | None = None,
    tp: PerDomain = 1,
    pp: PerDomain | None = None,
    cp: PerDomain = 1,
    zero_stage: PerDomain = 1,
    dp: PerGroup = 1,
    batch_share: PerGroup | None = None,
    micro_batch: PerGroup = 1,
    recompute: Named = Recompute.NONE,
    schedule: Named = Schedule.ONE_F_ONE_B,
    sync_period: int = 1,
    wire_bits: int = FULL_PRECISION_BITS,
    activation_bits: int = FULL_PRECISION_BITS,
    fragments: int = 1,
    overlap: int = 0,
    shard_groups: int = 1,
    reshard: str | Mapping[Domain, str] | None = None,
) -> dict[str, Any]:
    """The fields of a plan from a description; what `Plan.build` says holds here."""
    layout = _layout(spec, groups)

    def of_domains(said: PerDomain, key: str, low: int = 1, high: int = values.LARGEST_COUNT):
        return _by_domain(spec, layout, said, key, low, high)

    def of_groups(said: PerGroup, key: str) -> list[int]:
        return _by_group(layout, said, key, lambda x: values.count(_plain(x), f"plan: {key}"))

    def modes(said: Named, key: str, kind: type[Mode]) -> list[Mode]:
        return _by_group(layout, said, key, lambda x: kind.of(x, f"plan: {key}"))

    tps, cps = of_domains(tp, "tp"), of_domains(cp, "cp")
    zero = of_domains(zero_stage, "zero_stage", 0, 3)
    dps, sizes = of_groups(dp, "dp"), of_groups(micro_batch, "micro_batch")
    pps = None if pp is None else of_domains(pp, "pp")
    held = None if layers is None else of_domains(layers, "layers")
    splits = []
    for members, replicas in zip(layout, dps, strict=True):
        each = {k: tps[k] * cps[k] * replicas for k in members}  # GPUs that one stage takes
        stages = [_stages(spec, k, each[k], None if pps is None else pps[k]) for k in members]
        splits.append(_split(spec, job, members, stages, held, pps is not None))
    units = [size * replicas for size, replicas in zip(sizes, dps, strict=True)]
    shares = None if batch_share is None else of_groups(batch_share, "batch_share")

    fields = assembled_fields(
        layout,
        tps,
        dps,
        splits,
        spec.n_domains,
        sync_period=values.count(sync_period, "plan: sync_period"),
        wire_bits=values.count(wire_bits, "plan: wire_bits", high=WIDEST_BITS),
        activation_bits=values.count(activation_bits, "plan: activation_bits", high=WIDEST_BITS),
        fragments=values.count(fragments, "plan: fragments", high=max(sync_period, 1)),
        overlap=values.count(
            overlap, "plan: overlap", 0, high=sync_period if sync_period > 1 else 0
        ),
        shard_groups=_shard_groups(shard_groups, len(layout), sync_period),
    )
    g, used = np.arange(len(layout)), list(tps)
    fields["cp"][used], fields["zero_stage"][used] = list(cps.values()), list(zero.values())
    fields["reshard"][used] = _reshard(spec, used, reshard)
    fields["micro_batch"][g] = sizes
    fields["batch_share"][g] = _shares(job.global_batch, units, shares)
    fields["recompute"][g] = modes(recompute, "recompute", Recompute)
    fields["schedule"][g] = modes(schedule, "schedule", Schedule)
    return fields


def _shard_groups(said: int, groups: int, sync_period: int) -> int:
    """Groups that hold one copy of the model together."""
    count = values.count(said, "plan: shard_groups", high=groups)
    if groups % count:
        raise InputError(f"plan: shard_groups: {count} do not divide {groups} groups")
    if count > 1 and sync_period > 1:
        raise InputError("plan: shard_groups: expected 1 where sync_period is above 1")
    return count


def _reshard(spec: ClusterSpec, used: list[int], said: str | Mapping[Domain, str] | None) -> list:
    """Index into RESHARD of every domain in use, or AS_JOB."""
    if said is None:
        return [AS_JOB] * len(used)
    if not isinstance(said, Mapping):
        said = dict.fromkeys(used, said)
    found = {_index(spec, k, "reshard"): word for k, word in said.items()}
    return [
        RESHARD.index(values.choice(found[k], "plan: reshard", RESHARD)) if k in found else AS_JOB
        for k in used
    ]


def _plain(value: Any) -> Any:
    """NumPy's integers as Python's."""
    return int(value) if isinstance(value, np.integer) else value


def _listed(said: Any) -> bool:
    return isinstance(said, Sequence | np.ndarray) and not isinstance(said, str)


def _index(spec: ClusterSpec, said: Domain, key: str) -> int:
    """The domain's place in the cluster's order."""
    if isinstance(_plain(said), int):
        return values.count(_plain(said), f"plan: {key}: domain", 0, spec.n_domains - 1)
    return spec.domains.index(values.choice(said, f"plan: {key}", spec.domains))


def _layout(spec: ClusterSpec, groups: Sequence[Sequence[Domain]]) -> Layout:
    """The groups by index, no domain twice."""
    if not _listed(groups) or not len(groups) or not all(_listed(g) and len(g) for g in groups):
        raise InputError("plan: groups: expected at least one list of at least one domain")
    layout = tuple(tuple(_index(spec, said, "groups") for said in group) for group in groups)
    every = [k for group in layout for k in group]
    for k in every:
        if every.count(k) > 1:
            raise InputError(f"plan: groups: {spec.domains[k]} is used {every.count(k)} times")
    return layout


def _by_domain(
    spec: ClusterSpec, layout: Layout, said: PerDomain, key: str, low: int, high: int
) -> dict[int, int]:
    """{domain: number} of the domains in use, in the layout's order."""
    used = [k for group in layout for k in group]
    if not isinstance(said, Mapping):
        return dict.fromkeys(used, values.count(_plain(said), f"plan: {key}", low, high))
    found = {_index(spec, k, key): x for k, x in said.items()}
    for k in found:
        if k not in used:
            raise InputError(f"plan: {key}: {spec.domains[k]} is in none of the groups")
    for k in used:
        if k not in found:
            raise InputError(f"plan: {key}: {spec.domains[k]} is missing")
    where = {k: f"plan: {key}: {spec.domains[k]}" for k in used}
    return {k: values.count(_plain(found[k]), where[k], low, high) for k in used}


def _by_group(layout: Layout, said: Any, key: str, read: Callable[[Any], Any]) -> list:
    """One value per group, each as `read` takes it."""
    every = list(said) if _listed(said) else [said] * len(layout)
    if len(every) != len(layout):
        raise InputError(f"plan: {key}: {len(every)} values for {len(layout)} groups")
    return [read(one) for one in every]


def _stages(spec: ClusterSpec, k: int, each: int, asked: int | None) -> int:
    """Stages of a domain, each on `each` GPUs: as many as were asked for, or as there is room for."""
    gpus = spec.gpus[k]
    stages = max(gpus // each, 1) if asked is None else asked
    if stages * each > gpus:
        raise InputError(
            f"plan: {spec.domains[k]}: dp x tp x pp x cp = {stages * each} GPUs of {gpus}"
        )
    return stages


def _split(
    spec: ClusterSpec,
    job: JobSpec,
    members: Sequence[int],
    stages: list[int],
    held: dict[int, int] | None,
    asked: bool,
) -> Split:
    """Layers and stages of one group's domains; `asked`: the stages may not be fewer."""
    count, names = job.model.layers, ", ".join(spec.domains[k] for k in members)
    if held is None:
        if len(members) > count or (asked and sum(stages) > count):
            raise InputError(f"plan: pp: {sum(stages)} stages in {names} for {count} layers")
        return split_layers(count, stages)
    layers = [held[k] for k in members]
    if sum(layers) != count:
        raise InputError(f"plan: layers: {names} hold {sum(layers)} of {count} layers")
    for k, own, has in zip(members, stages, layers, strict=True):
        if asked and own > has:
            raise InputError(f"plan: pp: {spec.domains[k]}: {own} stages for {has} layers")
    return layers, [min(own, has) for own, has in zip(stages, layers, strict=True)]


def _shares(batch: int, units: list[int], shares: list[int] | None) -> list[int]:
    """Micro-batches per group, where one of each replica is `units` sequences: as given, or even."""
    sequences = " + ".join(str(unit) for unit in units)
    if shares is None:
        groups = len(units)
        # Groups alike may differ by one micro-batch; others get as many each.
        alike = len(set(units)) == 1
        count, rest = divmod(batch, units[0] if alike else sum(units))
        if rest or count < (groups if alike else 1):
            raise InputError(
                f"plan: batch_share: {batch} sequences cannot be dealt evenly to groups of dp x "
                f"micro_batch = {sequences} sequences; give batch_share, or change dp or micro_batch"
            )
        return [count // groups + (g < count % groups) if alike else count for g in range(groups)]
    total = sum(share * unit for share, unit in zip(shares, units, strict=True))
    if total != batch:
        raise InputError(
            f"plan: batch_share: {total} sequences of {batch} (dp x micro_batch = {sequences})"
        )
    return shares
