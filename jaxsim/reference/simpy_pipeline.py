"""A discrete-event simulator of one training step of a pipeline, the plain way.

Processes for stages, one Resource per directed link, every schedule's order of operations written
out from its paper. It shares no code with jaxsim and does not know how jaxsim computes: times are
Python floats, stages and micro-batches are counted from 0, an operation is (kind, micro-batch,
chunk) with kind F, B (gradient of the input, or the whole backward pass) or W (of the weights).
"""

from dataclasses import dataclass, field

import simpy

SCHEDULES = ("1f1b", "eager_1f1b", "gpipe", "interleaved", "zero_bubble", "greedy")


@dataclass
class Step:
    """One step; lists run over stages. Sends and latencies: [s] out of stage i to i + 1 (`next_`,
    the last entry to stage 0) and to i - 1 (`prev_`, the first entry to the last stage); a send
    has one entry per segment of time, the segments part at `changes`."""

    forward: list
    backward: list  # without the gradient of the weights
    weight: list
    next_send: list  # [S][C]
    prev_send: list
    next_latency: list
    prev_latency: list
    micro_batches: int
    schedule: str
    head: float = 0.0  # logits, forward (a third) and backward
    chunks: int = 1
    limits: list = field(default_factory=list)  # greedy
    changes: list = field(default_factory=list)

    @property
    def stages(self):
        return len(self.forward)


def order_of(step, stage):
    """Operations of one stage in the order in which it runs them."""
    m, last = step.micro_batches, step.stages - 1
    if step.schedule == "gpipe":
        return [("F", i, 0) for i in range(m)] + [("B", i, 0) for i in range(m)]
    if step.schedule == "interleaved":
        return _interleaved(step, stage)
    ahead = last - stage  # forwards before the first pair of one forward and one backward
    if step.schedule == "eager_1f1b":
        ahead *= 2
    order = [("F", i, 0) for i in range(min(ahead, m))]
    for i in range(m):
        if i + ahead < m:
            order.append(("F", i + ahead, 0))
        order.append(("B", i, 0))
        if step.schedule == "zero_bubble" and i >= stage:
            order.append(("W", i - stage, 0))
    if step.schedule == "zero_bubble":
        order += [("W", i, 0) for i in range(max(m - stage, 0), m)]
    return order


def _interleaved(step, stage):
    """Megatron-LM: rounds of S micro-batches through chunk 0, then chunk 1, ...; the last round may
    be short."""
    s, v = step.stages, step.chunks
    rounds = -(-step.micro_batches // s)
    forwards, backwards = [], []
    for r in range(rounds):
        for c in range(v):
            for i in range(r * s, (r + 1) * s):
                forwards.append(("F", i, c))
                backwards.append(("B", i, v - 1 - c))
    warm_up = min((s - stage - 1) * 2 + (v - 1) * s, len(forwards))
    order = forwards[:warm_up]
    for k in range(len(forwards)):
        order += [*forwards[warm_up + k : warm_up + k + 1], backwards[k]]
    return [op for op in order if op[1] < step.micro_batches]


class _Simulation:
    def __init__(self, step):
        self.step, self.env = step, simpy.Environment()
        self.links, self.arrived = {}, {}
        self.link_busy, self.stage_busy = {}, [0.0] * step.stages
        self.news = [self.env.event() for _ in range(step.stages)]

    def run(self):
        for stage in range(self.step.stages):
            greedy = self.step.schedule == "greedy"
            self.env.process(self.decide(stage) if greedy else self.follow(stage))
        self.env.run()
        return self.env.now_last

    def duration(self, stage, kind, chunk):
        step = self.step
        backward = step.backward[stage]
        if step.schedule != "zero_bubble":
            backward += step.weight[stage]
        base = {"F": step.forward[stage], "B": backward, "W": step.weight[stage]}[kind]
        logits = {"F": step.head / 3, "B": step.head * 2 / 3, "W": 0.0}[kind]
        top = stage == step.stages - 1 and chunk == step.chunks - 1
        return base / step.chunks + (logits if top else 0.0)

    def needed(self, stage, kind, micro, chunk):
        """What the operation waits for, as a key of `arrived`; None if it waits for nothing."""
        s, v = self.step.stages, self.step.chunks
        if kind == "F" and (stage, chunk) == (0, 0):
            return None
        if kind == "B" and (stage, chunk) == (s - 1, v - 1):
            return ("own", micro)
        return None if kind == "W" else (kind, stage, micro, chunk)

    def event(self, key):
        return self.arrived.setdefault(key, self.env.event())

    def compute(self, stage, kind, micro, chunk):
        seconds = self.duration(stage, kind, chunk)
        self.stage_busy[stage] += seconds
        yield self.env.timeout(seconds)
        self.env.now_last = self.env.now
        s, v = self.step.stages, self.step.chunks
        if kind == "F" and (stage, chunk) == (s - 1, v - 1):
            self.event(("own", micro)).succeed()
        elif kind == "F":
            to, chunk = (stage + 1, chunk) if stage < s - 1 else (0, chunk + 1)
            self.send(stage, to, True, ("F", to, micro, chunk))
        elif kind == "B" and (stage, chunk) != (0, 0):
            to, chunk = (stage - 1, chunk) if stage > 0 else (s - 1, chunk - 1)
            self.send(stage, to, False, ("B", to, micro, chunk))

    def send(self, source, to, onwards, key):
        if source == to:
            self.event(key).succeed()
            return
        # Made at once: requests queue in the order in which operations end.
        link = self.links.setdefault((source, to), simpy.Resource(self.env))
        self.env.process(self.transfer(link, link.request(), source, onwards, key))

    def transfer(self, link, request, source, onwards, key):
        step = self.step
        yield request
        began = self.env.now
        rates = (step.next_send if onwards else step.prev_send)[source]
        left = 1.0
        for segment, seconds in enumerate(rates):
            ends = step.changes[segment] if segment < len(step.changes) else float("inf")
            while left > 0 and self.env.now < ends:
                spend = min(left * seconds, ends - self.env.now)
                complete = left * seconds <= ends - self.env.now
                yield self.env.timeout(spend)
                left = 0.0 if complete else left - spend / seconds
                if not complete:
                    break
        link.release(request)
        side = "next" if onwards else "prev"
        busy = self.link_busy.get((side, source), 0.0)
        self.link_busy[side, source] = busy + self.env.now - began
        yield self.env.timeout((step.next_latency if onwards else step.prev_latency)[source])
        self.event(key).succeed()
        self.news[key[1]].succeed()
        self.news[key[1]] = self.env.event()

    def follow(self, stage):
        for kind, micro, chunk in order_of(self.step, stage):
            key = self.needed(stage, kind, micro, chunk)
            if key is not None:
                yield self.event(key)
            yield from self.compute(stage, kind, micro, chunk)

    def decide(self, stage):
        forwards = backwards = 0
        m, limit = self.step.micro_batches, self.step.limits[stage]
        while backwards < m:
            # What arrives at the very moment of a decision counts as arrived.
            yield self.env.timeout(1e-9)
            if self.here(stage, "B", backwards):
                yield from self.compute(stage, "B", backwards, 0)
                backwards += 1
            elif forwards < m and forwards - backwards < limit and self.here(stage, "F", forwards):
                yield from self.compute(stage, "F", forwards, 0)
                forwards += 1
            else:
                yield self.news[stage]

    def here(self, stage, kind, micro):
        key = self.needed(stage, kind, micro, 0)
        return key is None or self.event(key).triggered


def simulate(step):
    """(makespan, busy time per stage, busy time per link {("next" | "prev", source): seconds})."""
    simulation = _Simulation(step)
    total = simulation.run()
    return total, simulation.stage_busy, simulation.link_busy
