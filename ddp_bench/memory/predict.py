"""Peak memory of a training step, predicted without running it.

The step runs under FakeTensorMode: tensors have sizes and no data. PyTorch's MemTracker sees every
storage that is made and released, and what it is for.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker

from ddp_bench.memory.step import PHASES, Builder, Policy, applied, units_of
from ddp_bench.memory.trace import Event, Trace

# MemTracker's words -> ours.
KINDS = {
    "Parameter": "parameters",
    "Buffer": "parameters",
    "Gradient": "gradients",
    "Activation": "activations",
    "Temp": "temporaries",
    "Optstate": "optimizer",
    "Other": "batch",
}
STEPS = 2  # the optimizer's state is there from the second step on


@dataclass(frozen=True)
class Prediction:
    """Memory of a training step [B].

    Attributes:
        peak: most at any time.
        phases: most while building, in forward, backward and optimizer step.
        kinds: what the peak consists of.
        units: most while each unit of the model runs, forward and backward.
        trace: every allocation; its marks are phases and, as `forward:UNIT`, `backward:UNIT`, units.
    """

    peak: int
    phases: dict[str, int]
    kinds: dict[str, int]
    units: dict[str, dict[str, int]]
    trace: Trace


class _Recorder(MemTracker):
    """A MemTracker that writes down every change instead of only the peak."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self._device = device
        self.trace = Trace()
        self._blocks: dict[int, tuple[int, int]] = {}  # id of a record -> (block, index of event)
        self._count = 0

    def _update_snap(self, u_type, winfo, old_mem_consumed=None, old_reftype=None) -> None:
        super()._update_snap(u_type, winfo, old_mem_consumed, old_reftype)
        if winfo.device.type != self._device:
            return
        change, kind = u_type.name, KINDS[winfo.reftype.value]
        if change in ("DEL", "SIZE"):
            block, _ = self._blocks.pop(id(winfo))
            self.trace.events.append(Event(block, 0))
        if change in ("ADD", "SIZE") and winfo.mem_consumed > 0:
            self._blocks[id(winfo)] = (self._count, len(self.trace.events))
            self.trace.events.append(Event(self._count, winfo.mem_consumed, kind))
            self._count += 1
        if change == "REF" and id(winfo) in self._blocks:
            # What it is for may become known after it was made: a parameter, a gradient.
            block, at = self._blocks[id(winfo)]
            self.trace.events[at] = Event(block, self.trace.events[at].size, kind)

    def _update_peak_stats(self, peak_state) -> None:
        """Nothing: peaks are read off the trace. The original costs half of the time."""

    def mark(self, name: str) -> None:
        """A part of the step begins."""
        self.trace.marks.append((len(self.trace.events), name))


def predict(build: Builder, policy: Policy | None = None) -> Prediction:
    """Memory of the second of two training steps that `build` makes, under `policy`."""
    recorder = _Recorder(build.device)
    with warnings.catch_warnings(), FakeTensorMode():
        warnings.simplefilter("ignore")  # hooks on outputs that are gone by then
        with recorder:
            recorder.mark("build")
            step = build()
            recorder.track_external(step.model, step.inputs, step.targets)
            with applied(step.model, policy or {}), unit_marks(step.model, recorder.mark):
                for _ in range(STEPS):
                    recorder.reset_mod_stats()
                    step.run(recorder.mark)
    return _summary(recorder.trace, list(units_of(step.model)))


def _summary(trace: Trace, units: list[str]) -> Prediction:
    live = trace.live()
    peak = max(live)
    at = live.index(peak)
    parts = [(part, unit) for unit in units for part in ("forward", "backward")]
    by_unit = trace.peaks(f"{part}:{unit}" for part, unit in parts)
    return Prediction(
        peak=peak,
        phases=_phase_peaks(trace),
        kinds={kind: values[at] for kind, values in trace.live_by_kind().items()},
        units={
            unit: {part: by_unit[f"{part}:{unit}"] for part in ("forward", "backward")}
            for unit in units
        },
        trace=trace,
    )


def _phase_peaks(trace: Trace) -> dict[str, int]:
    """Peaks of whole phases, whose marks units' marks lie between."""
    phases = Trace(trace.events, [mark for mark in trace.marks if mark[1] in PHASES])
    return phases.peaks(PHASES)


@contextmanager
def unit_marks(model: nn.Module, mark: Callable[[str], None]) -> Iterator[None]:
    """Within this block `mark` hears when a unit's forward begins and ends, and when the gradient
    of its output is there, which is where its backward begins."""

    def after(name: str) -> Callable:
        def hook(module: nn.Module, args: tuple, output: Tensor) -> None:
            mark(f"after:{name}")
            if output.requires_grad:
                output.register_hook(lambda gradient: mark(f"backward:{name}"))

        return hook

    def before(name: str) -> Callable:
        return lambda module, args: mark(f"forward:{name}")

    handles = []
    for name, unit in units_of(model).items():
        handles.append(unit.register_forward_pre_hook(before(name)))
        handles.append(unit.register_forward_hook(after(name)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
