"""What jaxsim says of real runs over an emulated network, and what is fitted to a few of them.

Fitted are the time that a layer takes for a micro-batch, once of ranks that compute in turn (CPU time)
and once of ranks that compute at once and share the machine's cores (wall time), and two numbers for
each kind of traffic: the share of a link that it fills, and the round trips that a message waits for.

A pipeline's message takes trips RTT + S / B for S bytes: gloo sends when the receiver has asked, and
torch's schedules ask for one message at a time. A stage asks for a micro-batch when it is about to
compute it, and waits: the message adds to the time of the stage that receives it, and no link is a
bottleneck of its own. A ring's step moves each
rank's part as two segments that are under way at once (gloo's ring has two at least): while one waits
the other is sent. It takes trips RTT + S / (2 B), and at least S / B. So links have no latency here,
and the rates that these times come to.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from scipy.optimize import least_squares

from jaxsim.cluster import ClusterSpec
from jaxsim.plan import FULL_PRECISION_BITS, Plan, Problem, Schedule, n_groups, per_domain
from jaxsim.step_time import (
    NetworkView,
    begin_transition,
    job_step_cost,
    ring_bytes_gb,
    topology,
    transition_s,
)
from jaxsim.workload import MOVED_STATE_BYTES, JobSpec, build_workload

SHARE, TRIPS = (0.05, 1.5), (0.2, 12.0)  # a fit looks within these
# Parameters of jaxsim that describe a GPU's host and have no meaning here.
NONE = ("micro_batch_s", "step_fixed_s", "sync_fixed_s", "dp_overlap", "slow_link_gbps")
TINY = 1e-9
NO_LIMIT = 1e6  # [GB/s]
SEGMENTS = 2.0  # of a rank's part that gloo's ring has under way at once
# Kinds of traffic over the WAN. What a message of a pipeline waits for is its schedule's affair.
RINGS, OUTER = "rings", "outer syncs"
MESSAGES = {mode: f"messages of {mode.word}" for mode in Schedule}
PRIOR = (0.8, 2.0)
TRAINED_STATE_BYTES = 12.0  # that a change of plan moves of a parameter
Pair = tuple[float, float]  # share of a link's rate, round trips of a message


@dataclasses.dataclass(frozen=True)
class Fit:
    """What is calibrated: layer times, link share and round trips by kind of traffic."""

    layer_s: float  # [s] forward and backward of one layer for one micro-batch
    at_once_s: float  # [s] the same where all ranks compute at once
    share: Mapping[str, float]
    trips: Mapping[str, float]

    def of(self, case: Case) -> float:
        """[s] that a layer takes in a case."""
        return self.at_once_s if case.at_once else self.layer_s

    def pair(self, kind: str) -> Pair:
        """(share, trips) of a kind of traffic; PRIOR where nothing told."""
        return (self.share[kind], self.trips[kind]) if kind in self.share else PRIOR


@dataclasses.dataclass(frozen=True)
class Case:
    """One plan under one condition; `measured_s` is None where it is to be predicted."""

    plan: Plan
    cluster: ClusterSpec
    measured_s: float | None = None
    # [R, K, K] on the rates of links, in turn; None = they are steady
    factors: Float[np.ndarray, "R K K"] | None = None

    @property
    def at_once(self) -> bool:
        """Whether all ranks compute at the same time: every domain is a replica."""
        used = np.asarray(self.plan.group)[np.asarray(self.plan.group) >= 0]
        return len(used) > 1 and len(set(used)) == len(used)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of traffic that the plan sends over the WAN: inside pipelines, between them."""
        group = np.asarray(self.plan.group)
        sizes = [int((group == g).sum()) for g in range(group.max() + 1)]
        between = OUTER if int(self.plan.sync_period) > 1 else RINGS
        inside = MESSAGES[Schedule(int(self.plan.schedule[int(np.argmax(sizes))]))]
        return (inside,) * (max(sizes) > 1) + (between,) * (len(sizes) > 1)


@jax.jit
def _plain_step_s(plan: Plan, problem: Problem, view: NetworkView) -> Float[Array, ""]:
    return job_step_cost(plan, problem, view).step_s


def plain_step_s(
    plan: Plan, spec: ClusterSpec, job: JobSpec, view: NetworkView | None = None
) -> float:
    """[s] of a step as the simulator has it for the cluster file and its calibration; `view`: links as
    measured, None = as the file states them."""
    cluster = spec.to_arrays()
    problem = Problem(build_workload([job]).job(0), cluster, spec.calibration)
    if view is None:
        view = NetworkView(cluster.bandwidth_gb_per_s, cluster.rtt_s, cluster.gpus)
    return float(_plain_step_s(plan, problem, view))


class Predictor:
    """Step times of one job [s], by jaxsim's closed form."""

    def __init__(self, job: JobSpec) -> None:
        self._job = job
        self._step_s = jax.jit(self._cost)

    def _cost(
        self, plan, cluster, calibration, factors, layer_s, inside, between
    ) -> Float[Array, ""]:
        """`inside` and `between` pipelines: (share, trips). Rows of `factors` last equally long: the
        mean is over steps, of which a slow row sees few."""
        shares = ("wan_efficiency", "wan_ring_efficiency", "outer_sync_efficiency")
        calibration = calibration.replace(
            **{name: jnp.float32(TINY) for name in NONE},
            **{name: jnp.float32(1.0) for name in shares},
        )
        work = build_workload([self._job]).job(0)
        bits = plan.activation_bits.astype(jnp.float32) / FULL_PRECISION_BITS
        size = per_domain(plan, plan.micro_batch).astype(jnp.float32)
        message_gb = jnp.maximum(work.boundary_gb * size * bits, TINY)[:, None]
        topo, layers = topology(plan), jnp.maximum(plan.layers.astype(jnp.float32), 1.0)
        steps = jnp.maximum(2.0 * (n_groups(plan).astype(jnp.float32) - 1.0), 1.0)
        fragments = plan.fragments.astype(jnp.float32)  # each is a sum of its own, and waits as one
        part_gb = jnp.maximum(ring_bytes_gb(work, plan, topo) / steps / fragments, TINY)

        def step_s(factor: Float[Array, "K K"]) -> Float[Array, ""]:
            rate = jnp.maximum(cluster.bandwidth_gb_per_s * factor, TINY)
            message_s = inside[1] * cluster.rtt_s + message_gb / (inside[0] * rate)
            # gloo's ring turns the other way: rank r sends to r - 1, jaxsim's group g to g + 1.
            sent_s = part_gb / (between[0] * rate.T)
            part_s = jnp.maximum(between[1] * cluster.rtt_s.T + sent_s / SEGMENTS, sent_s)
            rates = jnp.where(topo.together, NO_LIMIT, part_gb / part_s)

            def fetched_s(link: Bool[Array, "K K"]) -> Float[Array, " K"]:
                waited_s = jnp.where(link, message_s, 0.0).sum(axis=0)  # by the receiver
                return waited_s / layers

            paid = calibration.replace(
                launch_forward_s=layer_s / 3.0 + fetched_s(topo.to_next),
                launch_backward_s=2.0 * layer_s / 3.0 + fetched_s(topo.to_previous),
            )
            view = NetworkView(rates, jnp.zeros_like(rates), cluster.gpus)
            return job_step_cost(plan, Problem(work, cluster, paid), view).step_s

        return 1.0 / jnp.mean(1.0 / jax.vmap(step_s)(factors))

    def step_s(self, case: Case, layer_s: float, inside: Pair, between: Pair) -> float:
        """[s] of a step."""
        pairs = (tuple(jnp.float32(x) for x in pair) for pair in (inside, between))
        spec = case.cluster
        steady = np.ones((1, spec.n_domains, spec.n_domains), np.float32)
        factors = steady if case.factors is None else np.asarray(case.factors, np.float32)
        arrays = (case.plan, spec.to_arrays(), spec.calibration, factors, jnp.float32(layer_s))
        return float(self._step_s(*arrays, *pairs))

    def predict(self, case: Case, fit: Fit) -> float:
        """[s] of a step, as calibrated."""
        inside = [kind for kind in case.kinds if kind in MESSAGES.values()]
        between = [kind for kind in case.kinds if kind in (RINGS, OUTER)]
        pairs = (fit.pair(kinds[0]) if kinds else PRIOR for kinds in (inside, between))
        return self.step_s(case, fit.of(case), *pairs)

    def transition_s(
        self, old: Plan, new: Plan, spec: ClusterSpec, restart_s: float, trips: float = 0.0
    ) -> float:
        """[s] that a change of plan stops training for: a restart, then the bytes that must move, for
        which domains wait as many round trips."""
        cluster, work = spec.to_arrays(), build_workload([self._job]).job(0)
        calibration = spec.calibration.replace(restart_s=jnp.float32(restart_s))
        change = begin_transition(old, new, Problem(work, cluster, calibration))
        # This trainer moves weights and both moments in 32 bits.
        moved = change.replace(bytes_gb=change.bytes_gb * (TRAINED_STATE_BYTES / MOVED_STATE_BYTES))
        moved_s = float(transition_s(moved, cluster.bandwidth_gb_per_s))
        on_link = np.asarray(change.bytes_gb) > 0
        return moved_s + trips * float(np.where(on_link, np.asarray(cluster.rtt_s), 0.0).max())

    def fit(self, cases: Sequence[Case], layer_s: float, at_once_s: float) -> Fit:
        """Share and trips of every kind of traffic, by least squares on the logarithm of step times
        of plans that send no other kind. What no such plan tells keeps PRIOR."""
        share, trips = {}, {}
        times = Fit(layer_s, at_once_s, {}, {})
        for kind in sorted({kind for case in cases for kind in case.kinds}):
            own = [case for case in cases if case.kinds == (kind,)]
            share[kind], trips[kind] = self._fit_kind(own, times) if own else PRIOR
        return Fit(layer_s, at_once_s, share, trips)

    def _fit_kind(self, cases: Sequence[Case], times: Fit) -> Pair:
        measured = np.log([case.measured_s for case in cases])

        def errors(x: np.ndarray) -> np.ndarray:
            pair = tuple(np.exp(x))
            found = [self.step_s(case, times.of(case), pair, pair) for case in cases]
            return np.log(found) - measured

        low, high = np.log(np.array([SHARE, TRIPS])).T
        # One run that other work disturbed must not bend the fit. Inside is float32: differences over
        # a tenth of a per cent are still exact enough.
        settings = {"loss": "soft_l1", "f_scale": 0.1, "diff_step": 1e-3}
        best = least_squares(errors, np.log(PRIOR), bounds=(low, high), **settings)
        return tuple(float(x) for x in np.exp(best.x))
