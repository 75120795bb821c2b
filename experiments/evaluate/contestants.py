"""Who plays: schedulers by name, and checkpoints with an entry for each of their policy seeds."""

from __future__ import annotations

from typing import NamedTuple

from agents import registry
from agents.foresight import Rollout
from agents.hi_ppo import Checkpoint, GuidedSearch, load_trained, schedulers
from agents.protocol import Scheduler
from agents.registry import Settings
from experiments.common import SEARCH
from jaxsim.files import InputError, is_there
from jaxsim.scenario import World

PLAN = "plan"  # who plays the plan of --plan
HERE = "@here"  # ends the name of a rival that was tuned on the world it plays in


class Contestant(NamedTuple):
    """One scheduler, or one policy seed of a learned one."""

    policy_seed: int | None
    scheduler: Scheduler  # not bound to a setup


def named(name: str, world: World, settings: Settings) -> Scheduler:
    """A scheduler that is not learned, not bound to a setup.

    Raises ValueError for one whose plans were not added to the world's table.
    """
    entry = registry.find(rival_of(name))
    return entry.make(world.table, world.problem.choices.size, **entry.values(settings))


def rival_of(name: str) -> str:
    """The registered name behind NAME@here."""
    return name.removesuffix(HERE)


def mixture_of(checkpoints: dict[str, Checkpoint]) -> dict[str, float]:
    """Settings of rivals, tuned on the worlds that a policy learned from, as the first checkpoint that
    brings any says them."""
    found = (one.meta.get("rivals") for one in checkpoints.values())
    return dict(next((settings for settings in found if settings), {}))


def with_tuned_here(names: list[str], mixture: dict[str, float]) -> list[str]:
    """The names, and NAME@here behind those whose settings the mixture says."""

    def both(name: str) -> list[str]:
        known = name in registry.names()
        keys = {t.key for t in registry.find(name).tunables if t.grid} if known else set()
        return [name, f"{name}{HERE}"] if keys and keys <= set(mixture) else [name]

    return [one for name in names for one in both(name)]


def requested(
    schedulers: str, checkpoint: str | None = None
) -> tuple[list[str], dict[str, Checkpoint]]:
    """The names in a list separated by commas (all = every one), and the checkpoints among them.
    `checkpoint` is what the name hi_ppo means, None the one that ships.

    Raises InputError that lists the known names for what is neither.
    """
    names = [n.strip() for n in schedulers.split(",") if n.strip()]
    if names == ["all"]:
        names = list(registry.names())
    checkpoints = {}
    for name in names:
        found = checkpoint_of(name, registry.names(), checkpoint)
        if found is not None:
            checkpoints[name] = found
    apart = registry.names(low_communication=True)
    if not set(names) - set(apart):
        raise InputError(f"schedulers: expected at least one name beside {' and '.join(apart)}")
    return list(dict.fromkeys(names)), checkpoints


def checkpoint_of(name: str, known: tuple[str, ...], checkpoint: str | None) -> Checkpoint | None:
    """The checkpoint that a name or a path stands for, or either with SEARCH behind it; None for a
    scheduler that is not learned.

    Raises InputError for what is neither a path nor `known`.
    """
    bare = name.removesuffix(SEARCH)
    if bare in registry.names(learned=True):
        return load_trained(checkpoint)
    if name in known:
        return None
    path = name if is_there(name) else bare
    if not is_there(path):
        raise InputError(
            registry.unknown("schedulers: neither a checkpoint nor a name:", name, known)
        )
    return load_trained(path)


def requested_without_truth(scheduler: str, key: str) -> tuple[str, dict[str, Checkpoint]]:
    """The one scheduler that option `key` asks for, and its checkpoint where it has one.

    Raises InputError for none, for several, and for the oracles.
    """
    names, checkpoints = requested(scheduler)
    oracles = registry.names(oracle=True)
    if len(names) != 1 or names[0] in oracles:
        raise InputError(
            f"{key}: expected one that needs no truth (not {', '.join(oracles)}), got {scheduler!r}"
        )
    return names[0], checkpoints


def contestants(
    name: str, checkpoints: dict[str, Checkpoint], settings: Settings, world: World
) -> list[Contestant]:
    """What plays under a name in a world: one entry, or one for each policy seed."""
    if name not in checkpoints:
        return [Contestant(None, named(name, world, settings))]
    seeds, policies = checkpoints[name].meta["seeds"], schedulers(checkpoints[name])
    if name.endswith(SEARCH):
        policies = [GuidedSearch(policy, Rollout()) for policy in policies]
    return [Contestant(*x) for x in zip(seeds, policies, strict=True)]
