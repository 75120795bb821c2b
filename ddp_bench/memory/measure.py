"""Memory that a training step really asks of PyTorch's allocator, and its peak."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch._C._profiler import _EventType
from torch.profiler import ProfilerActivity, profile, record_function

from ddp_bench.memory.predict import STEPS
from ddp_bench.memory.step import PHASES, Builder, Policy, applied
from ddp_bench.memory.trace import Event, Trace

_MARK = "memory-phase:"


@dataclass(frozen=True)
class Measurement:
    """Memory of a training step [B].

    Attributes:
        peak: most that was allocated at any time.
        phases: most while building, in forward, backward and optimizer step.
        reserved: what a GPU's caching allocator held for it; None on a CPU, which caches nothing.
        trace: every allocation and release.
    """

    peak: int
    phases: dict[str, int]
    reserved: int | None
    trace: Trace


def measure(build: Builder, policy: Policy | None = None, folder: str | None = None) -> Measurement:
    """Run two training steps that `build` makes, under `policy`, with the profiler listening to the
    allocator of the device that the model is on.

    Args:
        folder: where offloaded tensors of a CPU go.

    Raises:
        OSError: when `folder` takes no more.
    """
    cuda = build.device == "cuda"
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with profile(activities=activities, profile_memory=True) as profiler:
        _mark("build")
        step = build()
        with applied(step.model, policy or {}, folder):
            for _ in range(STEPS):
                step.run(_mark)
    trace = _read(profiler.profiler.kineto_results.experimental_event_tree(), build.device)
    reserved = torch.cuda.max_memory_reserved() if cuda else None
    return Measurement(trace.peak, trace.peaks(PHASES), reserved, trace)


def _mark(name: str) -> None:
    with record_function(_MARK + name):
        pass


def _read(tree: list, device: str) -> Trace:
    """The allocator's events of a profile in the order of time; releases of what was there before
    the profile began are left out."""
    nodes, found = list(tree), []
    while nodes:
        node = nodes.pop()
        nodes.extend(node.children)
        if node.tag == _EventType.Allocation or node.name.startswith(_MARK):
            found.append(node)
    found.sort(key=lambda node: node.start_time_ns)
    trace, blocks, count = Trace(), {}, 0
    for node in found:
        if node.tag != _EventType.Allocation:
            trace.marks.append((len(trace.events), node.name.removeprefix(_MARK)))
            continue
        fields = node.extra_fields
        if fields.device.type != device:
            continue
        if fields.alloc_size > 0:
            blocks[fields.ptr] = count
            trace.events.append(Event(count, fields.alloc_size))
            count += 1
        elif fields.ptr in blocks:
            trace.events.append(Event(blocks.pop(fields.ptr), 0))
    return trace
