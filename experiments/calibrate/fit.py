"""Fit the efficiency parameters of all machines, write the calibration file and the record."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable

from tqdm import tqdm

from analysis.records import RunWriter
from experiments.calibrate.adapt import adapt_stack
from experiments.calibrate.config import CalibrateConfig
from experiments.calibrate.machine_file import calibrate_machine
from experiments.calibrate.microbench import is_microbench
from experiments.common import (
    check_output,
    put_result,
    write_text,
)
from jaxsim.calibration import (
    Choice,
    Fitter,
    LeftOutRow,
    Machine,
    Measurements,
    Posterior,
    by_size,
    documented_belief,
    file_entries,
    find_measurements,
    fit_machines,
    fit_name,
    leave_out,
    left_out_groups,
    left_out_table,
    merit,
    own_parameters,
    predict,
    shown_groups,
    stack_bands,
    told_by,
    unseen_band,
)
from jaxsim.cluster import GPU_ALIASES, PRIORS, Calibration, load_fits
from jaxsim.files import InputError, dump_yaml

HEADER = """\
# Efficiency parameters by GPU type and software stack, fitted by `python -m experiments.calibrate`:
# value, 95 % interval, spread on the unbounded scale, how far the data fix it (0-1) and which data
# tell; the 90 % band that left-out groups showed, and the domain of the runs. Of a machine that was
# measured (it has a domain), parameters that are not listed are held at their documented priors.
# left_out: errors of groups of runs that the fit had to do without.
"""


def chosen_runs(found: Measurements, wanted: str | None) -> Measurements:
    """What was measured on the GPU types that are asked for; InputError for one that nothing was
    measured on, and for data without runs."""
    known = sorted({r.gpu for r in found.runs})
    if wanted is not None:
        names = [GPU_ALIASES.get(n.strip(), n.strip()) for n in wanted.split(",")]
        for name in names:
            if name not in known:
                listed = ", ".join(known) or "no runs"
                raise InputError(f"gpu: nothing measured on {name!r}; the data hold: {listed}")
        runs = [r for r in found.runs if r.gpu in names]
        profiles = [p for p in found.profiles if p.gpu in names]
        found = dataclasses.replace(found, runs=runs, profiles=profiles)
    if not found.runs:
        raise InputError("data: no measured runs among it; profiles and syncs alone fit no machine")
    return found


def fit_all(found: Measurements) -> Choice:
    """One fit of everything that was measured, before its parameters are chosen."""
    syncs = [s for rows in found.syncs.values() for s in rows]
    return fit_machines(found.runs, found.profiles, syncs)


def left_out_rows(choice: Choice) -> list[LeftOutRow]:
    """Every group left out in turn, and predicted."""
    groups = left_out_groups(choice.full)
    each = leave_out(choice, groups)
    return [r for rows in tqdm(each, "leave out", len(groups), unit="group") for r in rows]


def parameter_rows(fitter: Fitter, posterior: Posterior) -> list[dict]:
    """One row per machine and parameter for the record."""
    rows = []
    told = told_by(fitter, posterior)
    for place, machine in enumerate(fitter.hierarchy.machines):
        belief, before = posterior.belief(machine), documented_belief(machine)
        for i, (name, prior) in enumerate(PRIORS.items()):
            low, high = belief.interval(name)
            prior_low, prior_high = before.interval(name)
            held = belief.spread[i] == 0.0
            shares = sorted(told[place][name].items(), key=lambda item: -item[1])
            rows.append(
                {
                    "gpu": fit_name(machine),
                    "parameter": name,
                    "unit": prior.unit,
                    "about": prior.about,
                    "prior": prior.from_free(before.centre[i]),
                    "prior_lo": prior_low,
                    "prior_hi": prior_high,
                    "value": prior.from_free(belief.centre[i]),
                    "lo": prior_low if held else low,
                    "hi": prior_high if held else high,
                    "identified": 0.0
                    if held
                    else float(max(1.0 - belief.spread[i] / before.spread[i], 0.0)),
                    "told_by": "; ".join(f"{n} {x:.2f}" for n, x in shares),
                }
            )
    return rows


def machine_calibrations(posterior: Posterior) -> Callable[[str, str], Calibration]:
    """(GPU type, stack) -> its calibration."""
    return lambda gpu, stack: posterior.calibration(Machine(gpu, stack))


def calibrate(config: CalibrateConfig) -> None:
    """Fit, write the calibration file and the record."""
    target = check_output(config.out)
    if config.json not in (None, "-"):
        check_output(config.json, "--json")
    if is_microbench(config.data):
        calibrate_machine(config, target)
        return
    found = find_measurements(config.data, config.strict)
    for line in found.left_out:
        print(f"left out: {line}", file=sys.stderr)
    found = chosen_runs(found, config.gpu)
    if config.adapt is not None:
        adapt_stack(config, found, target)
        return
    gpus = sorted({r.gpu for r in found.runs})
    settings = dataclasses.asdict(config)
    with RunWriter.create("calibrate", settings, seed=0, out=config.run) as writer:
        choice = fit_all(found)
        fitter, posterior = choice.fit()
        rows = left_out_rows(choice) if config.leave_out else []
        entries = file_entries(fitter, posterior, stack_bands(rows), unseen_band(rows))
        writer.append("metrics", parameter_rows(fitter, posterior))
        body = {"calibrations": entries, "left_out": shown_groups(left_out_table(rows))}
        body["left_out_bias"] = shown_groups(by_size(rows))
        write_text(target, HEADER + dump_yaml(body, default_flow_style=None, width=100), load_fits)
        predictions = predict(found.runs, machine_calibrations(posterior))
        datasets = {
            name: merit([p for p in predictions if p.run.dataset == name])
            for name in dict.fromkeys(r.dataset for r in found.runs)
        }
        summary = {"gpus": gpus, "datasets": datasets, "skipped": len(found.left_out)}
        summary["stacks"] = own_parameters(fitter)
        writer.finish(summary)
    if put_result(summary, config.json):
        for row in summary["stacks"]:
            own = f"{row['parameters']} parameters of its own for {row['rows']} rows"
            print(f"{row['stack']}: {own}: {row['names'] or 'none'}")
        print(f"{config.out}: {', '.join(gpus)}; record: {writer.dir}")
