"""A dry run of an evaluation or a suite: its files read, what there is to play counted."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from experiments.common import load_regions
from experiments.evaluate.config import EvaluateConfig, recorded
from experiments.evaluate.contestants import requested
from experiments.evaluate.inputs import check_inputs
from experiments.evaluate.jobs import requested_for_jobs
from experiments.evaluate.suites import checked_scenes, load_suite
from experiments.runs import tell_dry


def dry_run(config: EvaluateConfig, given: Collection[str]) -> None:
    """Check and count, and say how long runs like it took; `given` are the keys that the command line
    set. Raises InputError."""
    if config.suite is not None:
        suite = load_suite(config.suite)
        checked = checked_scenes(suite, config, list(given), check_inputs)
        kind, scenes = "suite", list(checked.values())
    else:
        check_inputs(config)
        kind, scenes = "evaluate" if config.jobs is None else "evaluate_jobs", [config]
    told = {"scenes": len(scenes)} if config.suite is not None else {}
    told |= _work(scenes)
    body = {**recorded(config), "out": config.out}
    tell_dry(kind, body, told, config.json)


def _work(scenes: list[EvaluateConfig]) -> dict[str, Any]:
    """How much there is to play, by what is counted."""
    played = [_schedulers(one) for one in scenes]
    episodes = [one.seeds * n for one, n in zip(scenes, played, strict=True)]
    intervals = [n * one.world_settings.horizon for n, one in zip(episodes, scenes, strict=True)]
    clusters = [load_regions(one.cluster, one.domains) for one in scenes]
    return {
        "domains": max(spec.n_domains for spec in clusters),
        "GPUs": max(sum(spec.gpus) for spec in clusters),
        "schedulers": max(played),
        "scenarios": max(one.seeds for one in scenes),
        "scenarios to tune on": max(one.tuning_scenarios for one in scenes),
        "intervals in all": sum(intervals),
    }


def _schedulers(config: EvaluateConfig) -> int:
    """How many play."""
    if config.jobs is not None:
        return len(requested_for_jobs(config.schedulers, config.checkpoint))
    names, _ = requested(config.schedulers, config.checkpoint)
    return len(names) + (config.plan is not None)
