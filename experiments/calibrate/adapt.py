"""Adapt one software stack to a user's own runs, and show what changed."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from analysis.records import RunWriter
from experiments.calibrate.config import CalibrateConfig
from experiments.common import put_result, write_text
from jaxsim.calibration import (
    Machine,
    Measurements,
    adapt,
    adapted_entries,
    documented_belief,
    merit,
    predict,
)
from jaxsim.cluster import (
    PRIORS,
    Belief,
    find_fit,
    known_stack,
    load_fits,
    shipped_fit,
)
from jaxsim.files import dump_yaml

HEADER = """\
# A software stack adapted to runs of it by `python -m experiments.calibrate --adapt`: its own
# parameters moved, and of the hardware's the share of peak of matrix products.
"""


def adapt_stack(config: CalibrateConfig, found: Measurements, target: Path) -> None:
    """Fit the stack's parameters, write its entries, and show the runs before and after."""
    stack = known_stack(config.adapt, "adapt")
    fits = None if config.base is None else load_fits(config.base)

    def belief_of(machine: Machine) -> Belief:
        """What was believed before, or what is documented."""
        before = (
            shipped_fit(machine.gpu, machine.stack)
            if fits is None
            else find_fit(fits, machine.gpu, machine.stack)
        )
        return documented_belief(machine) if before is None else before.belief

    runs = [dataclasses.replace(run, stack=stack) for run in found.runs]
    with RunWriter.create("calibrate", dataclasses.asdict(config), 0, out=config.run) as writer:
        fitter, posterior = adapt(runs, stack, belief_of)
        before = predict(runs, lambda gpu, s: belief_of(Machine(gpu, s)).calibration())
        after = predict(runs, lambda gpu, s: posterior.calibration(Machine(gpu, s)))
        entries = adapted_entries(fitter, posterior)
        write_text(
            target,
            HEADER + dump_yaml({"calibrations": entries}, default_flow_style=None, width=100),
            load_fits,
        )
        summary = {
            "gpus": sorted({r.gpu for r in runs}),
            "adapted": stack,
            "datasets": {"before": merit(before), "after": merit(after)},
            "moved": _moved(posterior),
            "skipped": len(found.left_out),
        }
        writer.finish(summary)
    if put_result(summary, config.json):
        for name, row in summary["datasets"].items():
            memory = row["memory_mape_pct"]
            more = "" if memory is None else f", memory {memory:.1f} %"
            print(
                f"{stack} {name}: {row['n']} runs, mean error {row['mape_pct']:.1f} %, "
                f"bias {row['bias_pct']:+.1f} %{more}"
            )
        for name, was, now in summary["moved"]:
            print(f"  {name}: {was:.4g} -> {now:.4g}")
        print(f"{config.out}: {', '.join(entries)}; record: {writer.dir}")


def _moved(posterior) -> list[tuple[str, float, float]]:
    """The parameters that moved by half a documented spread or more: before, after."""
    hierarchy = posterior.hierarchy
    now, moved = posterior.free()[0], []
    for i, (name, prior) in enumerate(PRIORS.items()):
        step = now[i] - hierarchy.centre[0][i]
        if np.abs(step) > 0.5 * prior.spread:
            was = prior.from_free(hierarchy.centre[0][i])
            moved.append((name, was, prior.from_free(now[i])))
    return moved
