"""Fit the efficiency parameters of GPU types, write the calibration file and the record."""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter

from tqdm import tqdm

from analysis.records import RunWriter
from experiments.calibrate.config import CalibrateConfig
from experiments.common import (
    check_output,
    put_result,
    write_text,
)
from jaxsim.calibration import (
    Fit,
    Measurements,
    Profile,
    find_measurements,
    fit_in_stages,
    merit,
    predict,
    prior_belief,
)
from jaxsim.cluster import GPU_ALIASES, PRIORS, load_beliefs
from jaxsim.files import InputError, dump_yaml

HEADER = """\
# Efficiency parameters by GPU type, fitted by `python -m experiments.calibrate`: value, 95 % interval,
# spread on the unbounded scale, how far the data fix it (0-1) and which data tell. Parameters that
# are not listed stay at their documented priors.
"""


def profiles_for(gpu: str, profiles: list[Profile]) -> list[Profile]:
    """Profiles of the GPU's family; where the part differs only their shape carries over."""
    family = gpu.split("-")[0]
    near = [p for p in profiles if p.gpu.split("-")[0] == family]
    return [
        p if p.gpu == gpu else p._replace(shape_only=p.shape_only or p.kind == "operators")
        for p in near
    ]


def fit_gpu(gpu: str, found: Measurements) -> tuple[Fit, dict[str, int]]:
    """Fit one GPU type; returns the fit and how many rows of what it rests on."""
    runs = [r for r in found.runs if r.gpu == gpu]
    syncs = [s for rows in found.syncs.values() for s in rows]
    near = profiles_for(gpu, found.profiles)
    counts = Counter(r.dataset for r in runs)
    counts.update({p.name: len(p.measured_s) for p in near})
    counts.update({name: len(rows) for name, rows in found.syncs.items()})
    return fit_in_stages(runs, near, syncs, prior_belief(gpu)), dict(counts)


def gpu_types(found: Measurements, wanted: str | None) -> list[str]:
    """The GPU types to fit; InputError for one that nothing was measured on."""
    known = sorted({r.gpu for r in found.runs} | {p.gpu for p in found.profiles})
    if wanted is None:
        return known
    names = [GPU_ALIASES.get(n.strip(), n.strip()) for n in wanted.split(",")]
    for name in names:
        if name not in known:
            raise InputError(
                f"gpu: nothing measured on {name!r}; the data hold: {', '.join(known)}"
            )
    return names


def parameter_rows(gpu: str, fit: Fit) -> list[dict]:
    """One row per parameter for the record."""
    rows = []
    for i, (name, prior) in enumerate(PRIORS.items()):
        low, high = fit.belief.interval(name)
        prior_low, prior_high = fit.prior.interval(name)
        shares = sorted(fit.told_by[name].items(), key=lambda item: -item[1])
        rows.append(
            {
                "gpu": gpu,
                "parameter": name,
                "unit": prior.unit,
                "about": prior.about,
                "prior": prior.from_free(fit.prior.centre[i]),
                "prior_lo": prior_low,
                "prior_hi": prior_high,
                "value": prior.from_free(fit.belief.centre[i]),
                "lo": low,
                "hi": high,
                "identified": fit.identified(name),
                "told_by": "; ".join(f"{n} {x:.2f}" for n, x in shares if x >= 0.05),
            }
        )
    return rows


def calibrate(config: CalibrateConfig) -> None:
    """Fit, write the calibration file and the record."""
    target = check_output(config.out)
    if config.json not in (None, "-"):
        check_output(config.json, "--json")
    found = find_measurements(config.data, config.strict)
    for line in found.left_out:
        print(f"left out: {line}", file=sys.stderr)
    gpus = gpu_types(found, config.gpu)
    settings = dataclasses.asdict(config)
    with RunWriter.create("calibrate", settings, seed=0, out=config.run) as writer:
        fits: dict[str, Fit] = {}
        entries = {}
        for gpu in tqdm(gpus, desc="calibrate", unit="GPU type"):
            fits[gpu], counts = fit_gpu(gpu, found)
            entries[gpu] = fits[gpu].to_mapping(counts)
            writer.append("metrics", parameter_rows(gpu, fits[gpu]))
        body = dump_yaml({"calibrations": entries}, width=100)
        write_text(target, HEADER + body, load_beliefs)
        runs = [r for r in found.runs if r.gpu in fits]
        predictions = predict(runs, lambda gpu: fits[gpu].calibration)
        datasets = {
            name: merit([p for p in predictions if p.run.dataset == name])
            for name in dict.fromkeys(r.dataset for r in runs)
        }
        summary = {"gpus": gpus, "datasets": datasets, "skipped": len(found.left_out)}
        writer.finish(summary)
    if put_result(summary, config.json):
        print(f"{config.out}: {', '.join(gpus)}; record: {writer.dir}")
