"""What the planners among the rivals share: orders of domains, layer splits, stage costs by hand.

Host side, NumPy. A planner searches pipelines with an objective of its own; whether a plan fits is
for the simulator to say, with the same memory model for everyone. Its objective chooses what it
proposes, for each of several networks. What of that is played, the simulator chooses: the fastest
in the mean over the states to be expected (`static.StaticPlan`), or, for who plans again, that at
first and later as measured (`replanning.Replanning`); and in every interval anew the micro-batch,
recomputation and schedule.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator

import jax
import numpy as np

from jaxsim.plan import Plan, split_layers
from jaxsim.planning import TableBuilder, base_view, one_view
from jaxsim.step_time import layer_time, tensor_reduce_s

ALL_ORDERS_UP_TO = 5  # domains; beyond, an order grows along the fastest link
NODE_LIMIT = 8  # tensor parallelism stays inside a node (Narayanan et al., SC 2021, takeaway 1)


def domain_orders(builder: TableBuilder, at_least: int = 1) -> list[tuple[int, ...]]:
    """Orders of `at_least` domains and more, of as many as there are where there are fewer: every one
    of them in a small cluster, else chains that grow from each domain along the fastest link at base,
    and their beginnings."""
    n = builder.spec.n_domains
    at_least = min(at_least, n)
    if n <= ALL_ORDERS_UP_TO:
        sizes = range(at_least, n + 1)
        return [order for m in sizes for order in itertools.permutations(range(n), m)]
    rate = np.minimum(builder.spec.bandwidth_gbps, np.transpose(builder.spec.bandwidth_gbps))
    chains = []
    for start in range(n):
        chain = [start]
        while len(chain) < n:
            rest = [k for k in range(n) if k not in chain]
            chain.append(max(rest, key=lambda k: rate[chain[-1], k]))
        chains += [tuple(chain[:m]) for m in range(at_least, n + 1)]
    return list(dict.fromkeys(chains))


def tensor_sizes(builder: TableBuilder, domains: Iterable[int]) -> list[int]:
    """Powers of two up to a node, and to NODE_LIMIT, of every one of the domains."""
    room = min(min(int(builder.per_node[k]), int(builder.gpus[k])) for k in domains)
    return [2**i for i in range(min(room, NODE_LIMIT).bit_length())]


def largest_dps(rooms: list[int], batch: int) -> tuple[int, ...]:
    """dp of each group, at most `rooms`, that uses the most GPUs: every dp divides the largest, and
    that one the global batch."""
    options = []
    for largest in (d for d in range(1, max(rooms) + 1) if batch % d == 0):
        divisors = [d for d in range(1, largest + 1) if largest % d == 0]
        options.append(tuple(max(d for d in divisors if d <= room) for room in rooms))
    return max(options, key=sum)


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """A pipeline over domains, in order: `stages` and `layers` of each."""

    order: tuple[int, ...]
    tp: int
    dp: int
    stages: tuple[int, ...]
    layers: tuple[int, ...]

    def plan(self, builder: TableBuilder) -> Plan:
        splits = [(list(self.layers), list(self.stages))]
        return Plan.assemble((self.order,), self.tp, (self.dp,), splits, builder.n_domains)


class StageCosts:
    """What planners know of a job on a cluster: profiled layers, links at base; [V] = the menu.

    Layer times are the simulator's for a GPU that waits for nobody; times are [s] and for one
    micro-batch. Layers are split for the `allowed` choices [V] bool.
    """

    def __init__(self, builder: TableBuilder, allowed: np.ndarray):
        self.builder, self.allowed = builder, allowed
        self.layers = int(builder.problem.work.layers)
        self.batch = int(builder.problem.work.global_batch)
        self.micro_batch = np.asarray(builder.problem.choices.micro_batch)
        host_s = np.asarray(builder.problem.calibration.micro_batch_s, np.float64)
        self.alone_s = np.broadcast_to(host_s, (builder.n_domains,))  # [K] of a micro-batch
        self.rtt_s = np.asarray(builder.problem.cluster.rtt_s)
        rate = np.asarray(builder.problem.cluster.bandwidth_gb_per_s)
        self.gb_per_s = np.maximum(rate * float(builder.problem.calibration.wan_efficiency), 1e-9)
        self._by_tp: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._balanced: dict[tuple[Pipeline, bool], list[Pipeline]] = {}

    def layer_and_head_s(self, tp: int) -> tuple[np.ndarray, np.ndarray]:
        """[V, K] each: a layer forward and backward, and the logits."""
        if tp not in self._by_tp:
            layer, head = _profile(self.builder, tp)
            self._by_tp[tp] = (np.asarray(layer), np.asarray(head))
        return self._by_tp[tp]

    def stage_s(self, pipe: Pipeline) -> np.ndarray:
        """[V, n]: the slowest stage of each domain of the pipeline."""
        layer_s, head_s = self.layer_and_head_s(pipe.tp)
        each = -(-np.array(pipe.layers) // np.array(pipe.stages))
        at = list(pipe.order)
        last = np.arange(len(at)) == len(at) - 1
        return each * layer_s[:, at] + self.alone_s[at] + last * head_s[:, at]

    def hops_s(self, pipe: Pipeline) -> tuple[np.ndarray, np.ndarray]:
        """[V, n] each: to the next domain and back, and what of it holds the busier link; 0 for the
        last domain."""
        gb = float(self.builder.problem.work.boundary_gb) * self.micro_batch * pipe.dp
        there, back = list(pipe.order[:-1]), list(pipe.order[1:])
        forward = gb[:, None] / self.gb_per_s[there, back]
        backward = gb[:, None] / self.gb_per_s[back, there]
        latency = 0.5 * (self.rtt_s[there, back] + self.rtt_s[back, there])
        nothing = np.zeros((len(gb), 1))
        both = np.concatenate([forward + backward + latency, nothing], axis=1)
        return both, np.concatenate([np.maximum(forward, backward), nothing], axis=1)

    def micro_batches(self, pipe: Pipeline) -> np.ndarray:
        """[V] per replica and step."""
        return self.batch / (self.micro_batch * pipe.dp)

    def balanced(
        self,
        order: tuple[int, ...],
        tp: int,
        dp: int,
        stages: list[int],
        hops: bool = False,
    ) -> list[Pipeline]:
        """The pipelines whose slowest stage is fastest, its hop included where `hops` says so, under
        any of the allowed choices: as many stages as given, at most."""
        _, stages = split_layers(self.layers, stages)
        bare = Pipeline(order, tp, dp, tuple(stages), tuple(stages))
        if (bare, hops) not in self._balanced:
            splits = _min_max_splits(self.layers, bare.stages, self._cases(bare, hops).tobytes())
            self._balanced[bare, hops] = [dataclasses.replace(bare, layers=x) for x in splits]
        return self._balanced[bare, hops]

    def _cases(self, pipe: Pipeline, hops: bool) -> np.ndarray:
        """[V, 2 n] float64 under each allowed choice: the time of a layer in each domain, and what its
        stages take beside."""
        layer_s, head_s = (times[:, list(pipe.order)] for times in self.layer_and_head_s(pipe.tp))
        extra_s = np.where(np.arange(len(pipe.order)) == len(pipe.order) - 1, head_s, 0.0)
        extra_s = extra_s + (self.alone_s - self.alone_s.min())[list(pipe.order)]
        if hops:
            extra_s = extra_s + self.hops_s(pipe)[0]
        return np.concatenate([layer_s, extra_s], axis=1)[self.allowed].astype(np.float64)


@jax.jit
def _layer_times(work, cluster, calibration, micro_batch, recompute, tp):
    """[V, K] seconds of a layer, both ways, and of the logits."""

    def one(size, mode):
        full = (jax.numpy.full_like(tp, size), jax.numpy.full_like(tp, mode))
        ones = jax.numpy.ones_like(tp)
        reduce_s = tensor_reduce_s(work, cluster, calibration, full[0], tp, ones)
        layer = layer_time(work, cluster.gpu, calibration, *full, tp, ones, reduce_s)
        return layer.forward_s + layer.backward_s + layer.tensor_s, layer.head_s

    return jax.vmap(one)(micro_batch, recompute)


def _profile(builder: TableBuilder, tp: int):
    menu, sizes = builder.problem.choices, jax.numpy.full((builder.n_domains,), tp, jax.numpy.int32)
    args = (builder.problem.work, builder.problem.cluster, builder.problem.calibration)
    return _layer_times(*args, menu.micro_batch, menu.recompute, sizes)


# Most cases do not depend on links: rivals and networks ask for the same splits again.
@functools.lru_cache(maxsize=1 << 16)
def _min_max_splits(
    n_layers: int, stages: tuple[int, ...], cases: bytes
) -> tuple[tuple[int, ...], ...]:
    """`min_max_layers` for every case, each split once; `cases` [V, 2 n] float64."""
    each = np.unique(np.frombuffer(cases).reshape(-1, 2 * len(stages)), axis=0)
    splits = (min_max_layers(n_layers, list(stages), *np.split(case, 2)) for case in each)
    return tuple(dict.fromkeys(map(tuple, splits)))


def min_max_layers(
    n_layers: int, stages: list[int], layer_s: np.ndarray, extra_s: np.ndarray
) -> list[int]:
    """Layers of each domain so that the slowest stage is as fast as it can be.

    A stage of domain k takes `layer_s[k]` per layer and `extra_s[k]` beside. The bound on the
    slowest stage goes through the values that it can take, as t_max does in Alpa; layers are alike, so
    for a given bound every stage simply takes what it can, and no programme over ranges is needed.
    """
    bounds = np.unique(np.arange(1, n_layers + 1)[:, None] * layer_s + extra_s)[:, None]
    taken = np.floor((bounds * (1 + 1e-9) - extra_s) / layer_s).astype(int)
    enough = (taken.min(axis=1) >= 1) & (taken @ np.array(stages) >= n_layers)
    each = taken[enough.argmax()]
    layers = [int(n) * s for n, s in zip(each, stages, strict=True)]
    for k, least in enumerate(stages):  # the head holds the most micro-batches: it gives first
        layers[k] -= min(sum(layers) - n_layers, layers[k] - least)
    return layers


def full_pipelines(
    costs: StageCosts, orders: list[tuple[int, ...]], gpus: np.ndarray
) -> Iterator[Pipeline]:
    """Pipelines that use every GPU that dp and tp can, with the fastest slowest stage."""
    for order in orders:
        for tp in tensor_sizes(costs.builder, order):
            most = min(int(gpus[k]) for k in order) // tp
            for dp in (d for d in range(1, most + 1) if costs.batch % d == 0):
                stages = [int(gpus[k]) // (tp * dp) for k in order]
                if len(order) <= costs.layers:
                    yield from costs.balanced(order, tp, dp, stages)


def fitting(
    builder: TableBuilder,
    pipes: list[Pipeline],
    allowed: np.ndarray,
    gpus: np.ndarray | None = None,
) -> np.ndarray:
    """[P, V] bool: allowed choices under which a pipeline fits, with `gpus` [K] free (None: all)."""
    view = base_view(builder.problem.cluster)
    if gpus is not None:
        view = view.replace(gpus_available=jax.numpy.asarray(gpus, jax.numpy.int32))
    if not pipes:
        return np.zeros((0, len(allowed)), bool)
    plans = [pipe.plan(builder) for pipe in pipes]
    return (builder.choice_rates(plans, one_view(view))[0] > 0) & allowed


def cheapest(
    builder: TableBuilder,
    pipes: list[Pipeline],
    fits: np.ndarray,
    objective: Callable[[Pipeline], np.ndarray],
) -> list[Plan]:
    """The plan with the least objective [V] where it fits [P, V]; none where none does."""
    if not fits.any():
        return []
    some = np.flatnonzero(fits.any(axis=1))
    cost = np.where(fits[some], [objective(pipes[i]) for i in some], np.inf).min(axis=1)
    return [pipes[some[cost.argmin()]].plan(builder)]


def fastest(
    builder: TableBuilder, plans: list[Plan], allowed: np.ndarray, count: int
) -> list[Plan]:
    """The `count` fastest plans at base by the simulator, over allowed choices."""
    if not plans:
        return []
    rates = (builder.base_rates(plans) * allowed).max(axis=1)
    return [plans[i] for i in np.argsort(-rates, kind="stable")[:count] if rates[i] > 0]
