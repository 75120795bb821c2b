"""Runners-up and what must change for each to win; at which links the best plan changes; what a switch
costs and when it pays back. All of it among the plans of the pool, at the lower end of their bands: a
plan's speed is off by as much on other links."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from experiments.evaluate import probabilities_best
from experiments.plan.answer import Carried, hourly
from experiments.plan.bottleneck import bound_by
from experiments.plan.candidates import place_key
from experiments.plan.question import Question
from jaxsim.plan import Plan, Problem, describe
from jaxsim.planning.exact import finish, is_synchronous, score
from jaxsim.step_time import (
    NetworkView,
    begin_transition,
    communication,
    outer_sync_gb,
    transition_s,
)
from jaxsim.trees import stack_numpy

# Factors on bandwidth that are tried, of all links and of one.
ALL_LINKS = np.geomspace(1 / 32, 32, 31)
ONE_LINK = np.geomspace(1 / 64, 64, 13)
RUNNERS_UP = 4
LEAST_GAIN = 1e-3  # by which a plan must be faster to count as another winner


@dataclasses.dataclass(frozen=True)
class Sweep:
    """Rates of the pool while the links change."""

    what: str  # all, or the link as a:b
    factors: np.ndarray  # [F]
    rates: np.ndarray  # [F, P] [training steps / s] at the lower end of the bands


class Thresholds:
    """What else might win. `pool`: under the question's links; `best`: the plan that is asked about."""

    def __init__(self, question: Question, pool: list[Carried], best: Carried):
        self.question, self.pool, self.best = question, [one.plan for one in pool], best
        self.carried = pool
        self.stacked = stack_numpy(self.pool)
        self.sure = np.exp(
            [-one.reach for one in pool]
        )  # [P] the lower end of speed over the centre
        self.base = np.array([one.least for one in pool])
        keys = [place_key(plan) for plan in self.pool]
        own = place_key(best.plan)
        self.same = np.array([key == own for key in keys])  # [P] as the best plan stands
        first: dict[bytes, int] = {}
        for i in np.argsort(-self.base, kind="stable"):
            first.setdefault(keys[i], int(i))
        self.others = [i for key, i in first.items() if key != own and self.base[i] > 0.0]
        self.keys = keys
        self.sweeps = {"all": self._sweep("all", ALL_LINKS, None)}

    def _sweep(self, what: str, factors: np.ndarray, link: tuple[int, int] | None) -> Sweep:
        rates = []
        for factor in factors:
            scale = np.ones(self.question.view.rtt_s.shape, np.float32)
            if link is None:
                scale *= factor
            else:
                scale[link] = scale[link[::-1]] = factor
            view = self.question.scaled(scale)
            rates.append(self.sure * score(self.stacked, view, self.question.problem))
        return Sweep(what, factors, np.stack(rates))

    def link(self, src: str, dst: str) -> Sweep:
        """The sweep of one link, both directions."""
        names = self.question.spec.domains
        i, j = sorted((names.index(src), names.index(dst)))
        what = f"{names[i]}:{names[j]}"
        if what not in self.sweeps:
            self.sweeps[what] = self._sweep(what, ONE_LINK, (i, j))
        return self.sweeps[what]

    def changes(self, links: list[tuple[str, str]]) -> list[dict[str, Any]]:
        """Where the best plan changes as all links, or one of `links` alone, get slower or faster."""
        sweeps = [self.sweeps["all"], *(self.link(*at) for at in links)]
        found = []
        for sweep in {s.what: s for s in sweeps}.values():
            for side in ("slower", "faster"):
                told = self._change(sweep, side)
                if told is not None:
                    found.append(told)
        return found

    def _side(self, sweep: Sweep, side: str) -> np.ndarray:
        """Indices of factors on one side, from 1 on outwards."""
        if side == "slower":
            return np.flatnonzero(sweep.factors < 0.999)[::-1]
        return np.flatnonzero(sweep.factors > 1.001)

    def _change(self, sweep: Sweep, side: str) -> dict[str, Any] | None:
        """The first factor on a side at which another plan than the best wins."""
        before = (1.0, self._lead(self.base))
        for f in self._side(sweep, side):
            lead = self._lead(sweep.rates[f])
            if lead <= 0.0:
                at = _crossing(before, (float(sweep.factors[f]), lead))
                winner = int(np.where(self.same, 0.0, sweep.rates[f]).argmax())
                return {
                    "links": sweep.what,
                    "side": side,
                    "factor": at,
                    **self._told(winner),
                    "switch": self._switch(winner, sweep, int(f)),
                }
            before = (float(sweep.factors[f]), lead)
        return None

    def _lead(self, rates: np.ndarray) -> float:
        """Logarithm of how much faster plans that stand as the best one does are than all others."""
        mine, others = (np.where(at, rates, 0.0).max() for at in (self.same, ~self.same))
        if mine <= 0.0 or others <= 0.0:
            return 1.0 if mine > 0.0 or others <= 0.0 else -1.0
        return float(np.log(mine / others) + LEAST_GAIN)

    def _told(self, i: int) -> dict[str, Any]:
        plan = self.pool[i]
        return {"plan": describe(plan, self.question.spec.domains), "talks": talks(plan)}

    def _switch(self, i: int, sweep: Sweep, f: int) -> dict[str, Any]:
        """From the best plan to plan `i` where the links are at that factor: what it takes, and after
        how long it has paid back."""
        scale = np.ones(self.question.view.rtt_s.shape, np.float32)
        if sweep.what == "all":
            scale *= sweep.factors[f]
        else:
            a, b = (self.question.spec.domains.index(n) for n in sweep.what.split(":"))
            scale[a, b] = scale[b, a] = sweep.factors[f]
        old = float(np.where(self.same, sweep.rates[f], 0.0).max())
        asked = dataclasses.replace(self.question, view=self.question.scaled(scale))
        new, _ = finish(self.pool[i], asked.view, asked.problem)
        return switch(self.best.plan, new, asked, old, float(sweep.rates[f, i]))

    def runners_up(self, bill: str, count: int = RUNNERS_UP) -> list[dict[str, Any]]:
        """The next best places for the job, the surest first, each with what must change for it to
        win and the probability that it is the fastest of all places anyway."""
        told, chances = [], self.chances()
        for i, chance in zip(self.others[:count], chances[1:], strict=False):
            one = self.carried[i]
            tokens_per_s = float(self.question.problem.work.tokens_per_step) * one.least
            told.append(
                {
                    **self._told(i),
                    "behind_pct": 100.0 * (1.0 - one.least / self.best.least),
                    "probability_best": float(chance),
                    "effective_tokens_per_s_lo": tokens_per_s,
                    "usd_per_effective_mtoken_hi": hourly(one, self.question, bill)
                    / 3600.0
                    / tokens_per_s
                    * 1e6,
                    "step_s": float(one.cost.step_s),
                    "wins_if": self._wins_if(i, one),
                }
            )
        return told

    def chances(self) -> np.ndarray:
        """Probability of being the fastest: the best plan's, then those of the other places; each off
        by its own band, tokens at the lower end of their worth."""
        every = [self.best, *(self.carried[i] for i in self.others)]
        rate, least = (np.array([getattr(one, x) for one in every]) for x in ("rate", "least"))
        return probabilities_best(rate, least)

    def _wins_if(self, i: int, one: Carried) -> list[dict[str, Any]]:
        """Every change that was tried under which the place of plan `i` is the best of the pool, and
        which plan is the best of the others there."""
        mine = np.array([key == self.keys[i] for key in self.keys])
        sweeps = [self.sweeps["all"]]
        for cost in (one, self.best):
            link = bound_by(cost.plan, cost.cost, self.question)["link"]
            if link is not None:
                sweeps.append(self.link(link["src"], link["dst"]))
        found = []
        for sweep in {s.what: s for s in sweeps}.values():
            for side in ("slower", "faster"):
                for f in self._side(sweep, side):
                    rates, others = sweep.rates[f], np.where(mine, 0.0, sweep.rates[f])
                    if np.where(mine, rates, 0.0).max() > others.max():
                        change = {"links": sweep.what, "side": side}
                        change["factor"] = float(sweep.factors[f])
                        found.append({**change, "over": self._told(int(others.argmax()))})
                        break
        worth = self._worth(one)
        return found if worth is None else [*found, worth]

    def _worth(self, one: Carried) -> dict[str, Any] | None:
        """What a token would have to be worth for this plan to tie with the best, where that is another
        kind of training; None where no worth up to 1 does it."""
        mine, best = is_synchronous(one.plan), is_synchronous(self.best.plan)
        if mine == best:
            return None
        seldom, plain = (self.best, one) if mine else (one, self.best)
        tie = plain.least * float(seldom.cost.step_s) * float(np.exp(seldom.reach))
        if not 0.0 < tie <= 1.0:
            return None
        said = communication(jax.tree.map(jnp.asarray, seldom.plan), self.question.problem.work)
        band = self.question.problem.learning.band(said)
        return {
            "token_worth": tie,
            "side": "below" if mine else "above",
            "now": [float(band.low), float(band.centre), float(band.high)],
            "over": {
                "plan": describe(self.best.plan, self.question.spec.domains),
                "talks": talks(self.best.plan),
            },
        }


def talks(plan: Plan) -> str:
    """How the groups of a plan talk, in words."""
    several = int(np.max(plan.group)) > 0
    crosses = bool(np.any(np.asarray(plan.position)[np.asarray(plan.group) >= 0] > 0))
    words = []
    if several:
        h, bits = int(plan.sync_period), int(plan.wire_bits)
        words.append("every step" if h == 1 else f"every {h} steps")
        words.append(f"{bits} bits")
        if int(plan.overlap):
            words.append(f"streamed in {int(plan.fragments)} parts")
    if crosses:
        words.append(f"activations in {int(plan.activation_bits)} bits")
    return ", ".join(words) or "inside one domain"


def _crossing(a: tuple[float, float], b: tuple[float, float]) -> float:
    """The factor at which a lead becomes 0, straight in logarithms between two points."""
    (fa, la), (fb, lb) = a, b
    share = la / (la - lb) if la > lb else 1.0
    return float(np.exp(np.log(fa) + min(max(share, 0.0), 1.0) * (np.log(fb) - np.log(fa))))


def switch(
    old: Plan, new: Plan, question: Question, old_rate: float, new_rate: float
) -> dict[str, Any]:
    """What a switch takes, and after how long the faster plan has made up for it; rates [training
    steps / s] of both on the same links. Pay-back None: never."""
    used = np.flatnonzero(np.asarray(old.group) >= 0).tolist()
    whole = not question.gone & {question.spec.domains[k] for k in used}
    told = _switch(old, new, question.view, question.problem, jnp.float32(whole))
    seconds, moved_gb, owed_gb, usd = (float(x) for x in told)
    pays = new_rate > old_rate
    # What the old plan would have trained meanwhile, over the gain.
    return {
        "s": seconds,
        "gb": moved_gb,
        "owed_gb": owed_gb,
        "usd": usd,
        "gain_pct": 100.0 * (new_rate / old_rate - 1.0) if old_rate > 0 else None,
        "pays_back_s": seconds * new_rate / (new_rate - old_rate) if pays else None,
    }


@jax.jit
def _switch(old: Plan, new: Plan, view: NetworkView, problem: Problem, whole: Array):
    """`whole` 0: a domain of the old plan is gone, and with it the last sync of its ring."""
    owed_gb = whole * outer_sync_gb(old, problem.work)
    change = begin_transition(old, new, problem, owed_gb)
    unsynced = begin_transition(old, new, problem, jnp.zeros_like(owed_gb))
    rate = view.bandwidth_gb_per_s * problem.calibration.wan_efficiency
    usd = (change.bytes_gb * problem.cluster.egress_usd_per_gb).sum()
    owed_gb = (change.bytes_gb - unsynced.bytes_gb).sum()
    return transition_s(change, rate), change.bytes_gb.sum(), owed_gb, usd
