"""What blocks of domains may be, and their partitions: what a search of the whole space bounds with."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import NamedTuple

import numpy as np

from jaxsim.plan import Plan
from jaxsim.planning import Common, Exchange, Pipelines, partitions
from jaxsim.planning.exact.bounds import ROUNDING, Options
from jaxsim.step_time import NetworkView


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a block of domains may be, best first; [n] each."""

    order: np.ndarray  # index into the pipelines
    common: np.ndarray
    dp: np.ndarray
    choice: np.ndarray
    speed: np.ndarray  # [sequences / s] at most
    fill: np.ndarray  # [s]
    slack: np.ndarray  # [s]
    hidden: np.ndarray  # [s]
    after: np.ndarray  # [s]
    unit: np.ndarray  # [sequences] of one micro-batch of all replicas
    placed: np.ndarray  # number of the placement: which layers each domain holds
    held: np.ndarray  # number of what each domain holds, wherever in the model
    enough: np.ndarray  # bool, among those that are worth a look beside groups of one domain

    def take(self, rows) -> Settings:
        return Settings(*(getattr(self, f.name)[rows] for f in dataclasses.fields(self)))


@dataclasses.dataclass(frozen=True)
class Blocks:
    """All blocks under one network and one precision between stages; [B] each, by index of mask."""

    settings: list[Settings | None]
    speed: np.ndarray  # [sequences / s], 0 where a block cannot train
    fill: np.ndarray  # [s] at least
    slack: np.ndarray  # [s] at least
    after: np.ndarray  # [s] at least

    @staticmethod
    def of(settings: list[Settings | None]) -> Blocks:
        """With the best of each block's settings."""
        ends = [
            (s.speed.max(), s.fill.min(), s.slack.min(), s.after.min())
            if s is not None
            else (0.0, np.inf, np.inf, np.inf)
            for s in settings
        ]
        return Blocks(settings, *(np.array(x) for x in zip(*ends, strict=True)))


def needed(runs: np.ndarray, common: tuple[Common, ...]) -> np.ndarray:
    """[N, C, D, V] bool, of the options that run those that are worth a look: ZeRO 3 sends weights in
    every step, so it is left out wherever a lower stage fits with all else the same."""
    kept = runs.copy()
    for (c, own), (i, other) in itertools.product(enumerate(common), repeat=2):
        alike = other == own._replace(zero_stage=other.zero_stage)
        if own.zero_stage == 3 and other.zero_stage < 3 and alike:
            kept[:, c] &= ~runs[:, i]
    return kept


class Bounded(NamedTuple):
    """What a search begins with."""

    blocks: dict[int, Blocks]  # by the bits between stages
    fastest: np.ndarray  # [masks] [sequences / s] of each, whatever the bits
    # [N, G] blocks; are these all of them? a bound of those left out
    partitions: tuple[np.ndarray, bool, float]
    rings: tuple
    bound: np.ndarray  # [ways, N] [training steps / s]


class OfView(NamedTuple):
    """What a search remembers of a view."""

    view: NetworkView
    blocks: dict[int, Blocks]  # by the bits between stages
    partitions: dict[frozenset[int], tuple]  # and bounds of their rings, by the bits of the blocks
    bounds: dict[tuple[Exchange, frozenset[int]], np.ndarray]
    leaders: dict[tuple[Exchange, tuple[int, ...]], list[Plan]]  # by how they talk, and the blocks


def possible(
    options: Options, found, pipelines: Pipelines, micro: np.ndarray, batch: float
) -> Settings:
    """What fits with the whole batch. A part of the batch goes through a group at a higher rate than
    the whole by one filling of the pipeline at most: where messages wait for each other, micro-batches
    go in rounds, and the last round of the whole may be nearly empty. A bound beside the beat's."""
    order, common, d, choice = found
    names = ("speed", "fill", "slack", "hidden", "after")
    speed, fill, slack, hidden, after = (getattr(options, name)[found] for name in names)
    rounds_s = options.whole[found] - np.maximum(slack, 0.0) - after - fill
    speed = np.minimum(speed, (1.0 + ROUNDING) * batch / np.maximum(rounds_s, 1e-9))
    unit = pipelines.dp[d] * micro[choice]
    placed, held = placements(pipelines.members[order], pipelines.layers[order, common, d])
    enough = np.ones(len(unit), bool)
    return Settings(
        order, common, d, choice, speed, fill, slack, hidden, after, unit, placed, held, enough
    )


def placements(members: np.ndarray, layers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[n] each, numbers of pipelines [n, S] that are alike in which layers each domain holds, and in
    how many and whether the model's ends are among them: groups of one domain share all of these."""
    absent = members < 0
    last = np.cumsum(~absent, axis=1) == (~absent).sum(axis=1, keepdims=True)
    ends = (np.arange(members.shape[1])[None] == 0) | (last & ~absent)
    by_domain = np.argsort(np.where(absent, np.iinfo(members.dtype).max, members), axis=1)
    fields = [np.take_along_axis(x, by_domain, axis=1) for x in (members, layers, ends)]
    return _numbers([members, layers]), _numbers(fields)


def _numbers(fields: list[np.ndarray]) -> np.ndarray:
    rows = np.concatenate([x.astype(np.int64) for x in fields], axis=1)
    return np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1)


def undominated(settings: Settings) -> Settings:
    """Without what another is at least as good as in everything, whose unit goes into its own, and that
    holds the same layers: whatever other groups ask of the shares and over which links they sync, the
    other can then give as well. Beside groups of one domain it is `enough` that it holds as many.
    Fastest first."""
    s = settings.take(np.lexsort((settings.after, settings.fill, -settings.speed)))
    s = s.take(_undominated(s, s.placed))
    enough = np.zeros(len(s.speed), bool)
    enough[_undominated(s, s.held)] = True
    return dataclasses.replace(s, enough=enough)


def _undominated(s: Settings, alike: np.ndarray) -> np.ndarray:
    """Rows of settings, fastest first, that none which is `alike` is at least as good as."""
    costs = np.stack([s.fill, s.slack + s.hidden, -s.hidden, s.after])
    kept, open_ = [], np.arange(len(s.speed))
    while len(open_):
        # Whoever is kept is at least as fast as all that are open, so it need not be asked again.
        first, rest = open_[0], open_[1:]
        kept.append(first)
        worse = np.all(costs[:, first, None] <= costs[:, rest], axis=0)
        fits = (s.unit[rest] % s.unit[first] == 0) & (alike[rest] == alike[first])
        open_ = rest[~(worse & fits)]
    return np.array(kept, int)


@functools.lru_cache(maxsize=8)
def listed_partitions(n_domains: int, largest: int) -> tuple[tuple[int, ...], ...]:
    return tuple(partitions(n_domains, largest))


def padded(found: list[tuple[int, ...]], width: int) -> np.ndarray:
    out = np.full((max(len(found), 1), width), -1)
    for i, blocks in enumerate(found):
        out[i, : len(blocks)] = blocks
    return out
