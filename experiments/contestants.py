"""Who plays: schedulers by name, and checkpoints with an entry for each of their policy seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from agents.hi_ppo.checkpoint import Checkpoint, load_checkpoint, load_shipped, policies
from agents.registry import LEARNED, LOW_COMMUNICATION, ORACLES, SCHEDULERS, SchedulerSettings
from experiments.evaluation import Maker, learned_maker, named_maker, tuned_value
from jaxsim.errors import InputError


class Contestant(NamedTuple):
    """One scheduler, or one policy seed of a learned one."""

    policy_seed: int | None
    maker: Maker
    policy: Any


def requested(
    schedulers: str, checkpoint: str | None = None
) -> tuple[list[str], dict[str, Checkpoint]]:
    """The names in a list separated by commas (all = every one), and the checkpoints among them;
    `checkpoint` is what the name hi_ppo means, None the one that ships.

    Raises InputError that lists the known names for what is neither.
    """
    names = [n.strip() for n in schedulers.split(",") if n.strip()]
    if names == ["all"]:
        names = [*SCHEDULERS, LEARNED, *LOW_COMMUNICATION]
    checkpoints = {}
    for name in names:
        if name == LEARNED:
            shipped = checkpoint is None
            checkpoints[name] = load_shipped() if shipped else load_checkpoint(checkpoint)
        elif name not in (*SCHEDULERS, *LOW_COMMUNICATION):
            if not Path(name).exists():
                known = ", ".join((*SCHEDULERS, LEARNED, *LOW_COMMUNICATION))
                raise InputError(
                    f"schedulers: {name!r} is neither a checkpoint nor one of: {known}"
                )
            checkpoints[name] = load_checkpoint(name)
    if not set(names) - set(LOW_COMMUNICATION):
        apart = " and ".join(LOW_COMMUNICATION)
        raise InputError(f"schedulers: expected at least one name beside {apart}")
    return list(dict.fromkeys(names)), checkpoints


def requested_without_truth(scheduler: str, key: str) -> tuple[str, dict[str, Checkpoint]]:
    """The one scheduler that option `key` asks for, and its checkpoint where it has one.

    Raises InputError for none, for several, and for the oracles.
    """
    names, checkpoints = requested(scheduler)
    if len(names) != 1 or names[0] in ORACLES:
        raise InputError(
            f"{key}: expected one that needs no truth (not {', '.join(ORACLES)}), got {scheduler!r}"
        )
    return names[0], checkpoints


def contestants(
    name: str, checkpoints: dict[str, Checkpoint], settings: SchedulerSettings
) -> list[Contestant]:
    """What plays under a name: one entry, or one for each policy seed."""
    if name not in checkpoints:
        return [Contestant(None, named_maker(name), tuned_value(name, settings))]
    meta = checkpoints[name].meta
    maker = learned_maker(meta["hidden"], meta["every"])
    seeds = zip(meta["seeds"], policies(checkpoints[name]), strict=True)
    return [Contestant(seed, maker, policy) for seed, policy in seeds]
