"""The rooms of the sample: which files, how many errors, and the tests that stand near them.

Tests are options of pytest, the cheapest first: it stops at the first failure. Paths are from the
root of the repository.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path

STEP = "tests/jaxsim/step_time"
ENV = "tests/jaxsim/env"
HI_PPO = "tests/agents/hi_ppo"
PLANNING = "tests/jaxsim/planning"


@dataclasses.dataclass(frozen=True)
class Room:
    """Attributes:
    files: patterns of its modules; an earlier room keeps a file that several match
    count: errors that are tried
    tests: pattern in the file's path -> tests; the first pattern that fits counts
    """

    files: tuple[str, ...]
    count: int
    tests: dict[str, tuple[str, ...]]


ROOMS = {
    "reconfiguration": Room(
        ("jaxsim/step_time/reconfiguration.py",),
        10,
        {"": (f"{STEP}/test_reconfiguration.py",)},
    ),
    "observation": Room(
        ("jaxsim/env/observation.py",),
        12,
        {"": (f"{ENV}/test_observation.py", f"{ENV}/test_env.py", f"{ENV}/test_rows.py")},
    ),
    "kpi": Room(
        ("analysis/statistics/kpi.py",),
        12,
        {"": ("tests/analysis/statistics/test_kpi.py",)},
    ),
    "step_time": Room(
        ("jaxsim/step_time/*.py",),
        20,
        {
            "memory": (f"{STEP}/test_memory.py",),
            "compute": (f"{STEP}/test_layer_time.py", f"{STEP}/test_step_time.py"),
            "collectives": (f"{STEP}/test_step_time.py", f"{STEP}/test_physics.py"),
            "greedy": (f"{STEP}/test_event_exact.py",),
            "event_cost": (f"{STEP}/test_event_exact.py", f"{STEP}/test_schedules_agree.py"),
            "event_": (f"{STEP}/test_event_exact.py",),
            "pipeline": (f"{STEP}/test_step_time.py", f"{STEP}/test_schedules_agree.py"),
            "schedules": (f"{STEP}/test_event_exact.py",),
            "sharding": (f"{STEP}/test_sharding.py", f"{STEP}/test_step_time.py"),
            "sync": (f"{STEP}/test_sharding.py", f"{STEP}/test_step_time.py"),
            "": (f"{STEP}/test_step_time.py", f"{STEP}/test_physics.py", f"{STEP}/test_memory.py"),
        },
    ),
    "env": Room(
        ("jaxsim/env/*.py",),
        14,
        {
            "sharing": (f"{ENV}/test_sharing.py",),
            "resizing": (f"{ENV}/test_resizing.py", f"{ENV}/test_env.py"),
            "": (
                f"{ENV}/test_observation.py",
                f"{ENV}/test_env.py",
                f"{ENV}/test_rows.py",
                f"{ENV}/test_sharing.py",
                f"{ENV}/test_resizing.py",
            ),
        },
    ),
    "load": Room(
        ("jaxsim/load/*.py",),
        12,
        {
            "jobs_": ("tests/experiments/test_jobs_files.py",),
            "": ("tests/jaxsim/load/test_load.py",),
        },
    ),
    "planning": Room(
        ("jaxsim/planning/*.py", "jaxsim/planning/exact/*.py"),
        20,
        {
            "exact/costs": (f"{PLANNING}/exact/test_cost_table.py", f"{ENV}/test_rows.py"),
            "exact/cost_table": (f"{PLANNING}/exact/test_cost_table.py", f"{ENV}/test_rows.py"),
            "exact/step_table": (f"{ENV}/test_rows.py",),
            "exact/wide": (f"{PLANNING}/exact/test_wide.py",),
            "exact/worth": (f"{PLANNING}/exact/test_worth.py",),
            "exact/leaders": (f"{PLANNING}/exact/test_leaders.py",),
            "exact/proposals": (f"{PLANNING}/exact/test_proposals.py",),
            "exact/climb": (f"{PLANNING}/exact/test_climb.py", f"{PLANNING}/exact/test_wide.py"),
            "exact/rings": (f"{PLANNING}/exact/test_rings.py", f"{PLANNING}/exact/test_wide.py"),
            "exact/": (f"{PLANNING}/exact/test_search.py", f"{PLANNING}/exact/test_wide.py"),
            "space": (f"{PLANNING}/exact/test_wide.py",),
            "objectives": (f"{PLANNING}/test_objectives.py",),
            "cuts": (f"{PLANNING}/test_cuts.py",),
            "pairs": (f"{PLANNING}/test_pairs.py", f"{PLANNING}/test_builder.py"),
            "scoring": (f"{PLANNING}/test_scoring.py", f"{PLANNING}/test_builder.py"),
            "transfers": (f"{PLANNING}/test_transfers.py", f"{PLANNING}/test_builder.py"),
            "": (f"{PLANNING}/test_builder.py", f"{PLANNING}/exact/test_search.py"),
        },
    ),
    "hi_ppo": Room(
        ("agents/hi_ppo/*.py",),
        16,
        {
            "gae": (f"{HI_PPO}/test_gae.py",),
            "ppo.py": (f"{HI_PPO}/test_ppo.py", f"{HI_PPO}/test_ppo_probes.py"),
            "features": (f"{HI_PPO}/test_features.py", f"{HI_PPO}/test_scheduler.py"),
            "networks": (f"{HI_PPO}/test_networks.py",),
            "checkpoint": (f"{HI_PPO}/test_checkpoint.py",),
            "settings": (f"{HI_PPO}/test_settings.py", f"{HI_PPO}/test_training.py"),
            "scheduler": (f"{HI_PPO}/test_cadence.py", f"{HI_PPO}/test_scheduler.py"),
            "training": (
                f"{HI_PPO}/test_cadence.py",
                f"{HI_PPO}/test_decisions.py",
                f"{HI_PPO}/test_training.py",
                f"{HI_PPO}/test_scheduler.py",
            ),
            "": (HI_PPO,),
        },
    ),
    "metrics": Room(
        ("agents/episodes/metrics.py", "agents/many_jobs/metrics.py"),
        10,
        {
            "episodes": ("tests/agents/episodes/test_metrics.py",),
            "": ("tests/agents/many_jobs/test_metrics.py",),
        },
    ),
    "statistics": Room(
        ("analysis/statistics/*.py",),
        14,
        {
            "bootstrap": ("tests/analysis/statistics/test_bootstrap.py",),
            "pareto": ("tests/analysis/statistics/test_pareto.py",),
            "ddp": ("tests/analysis/test_ddp.py",),
            "": ("tests/analysis/statistics",),
        },
    ),
    "solver": Room(
        ("ddp_bench/scheduler/*.py",),
        14,
        {"": ("tests/ddp_bench/scheduler/test_scheduler.py",)},
    ),
    "gradients": Room(
        ("ddp_bench/training/gradients.py",),
        6,
        {"": ("tests/ddp_bench/training/test_gradients.py",)},
    ),
}


def files_of(root: Path) -> dict[str, list[str]]:
    """The modules of every room, sorted; an index computes nothing."""
    taken: set[str] = set()
    out = {}
    for name, room in ROOMS.items():
        found = {str(f.relative_to(root)) for pattern in room.files for f in root.glob(pattern)}
        out[name] = sorted(f for f in found - taken if not f.endswith("__init__.py"))
        taken |= set(out[name])
    return out


def near_tests(room: str, file: str) -> tuple[str, ...]:
    """What pytest is given for an error in a file."""
    return next(tests for pattern, tests in ROOMS[room].tests.items() if pattern in file)


def all_tests() -> Iterable[str]:
    """Every test that some room names, once."""
    return dict.fromkeys(
        t for room in ROOMS.values() for tests in room.tests.values() for t in tests
    )
