"""`hippo SUBCOMMAND ...`: the entry points as one console script."""

from __future__ import annotations

import importlib
import sys

# Name -> module with main(argv), and what it is for. Modules load when called: importing all of
# them would take seconds.
COMMANDS = {
    "train": ("experiments.train", "train Hi-PPO"),
    "evaluate": ("experiments.evaluate.__main__", "compare schedulers on the same scenarios"),
    "cluster": ("experiments.cluster", "make cluster and trace files from measurements"),
    "jobs": ("experiments.jobs", "draw a list of jobs from a trace or at random"),
    "network": ("experiments.network", "fit how measured links move, compare predictors"),
    "validate": ("experiments.validate", "compare predictions with measured runs"),
    "calibrate": ("experiments.calibrate", "fit efficiency parameters to measured runs"),
    "fidelity": ("experiments.fidelity", "where the closed form leaves the event-exact one"),
    "kpi": (
        "experiments.kpi.__main__",
        "the eight key figures, each with its target and its headroom",
    ),
    "respond": ("experiments.respond", "answer measurements with plans, line by line"),
    "bench": ("experiments.bench.__main__", "measure speed"),
    "ddp": ("experiments.ddp", "compare micro-batch schedules in real data-parallel training"),
    "report": ("analysis.report.report", "write a report from run folders"),
}


def main(argv: list[str] | None = None) -> int:
    """Dispatch; returns the exit status, 2 for an unknown subcommand."""
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] in ("-h", "--help"):
        print("usage: hippo SUBCOMMAND [--help] ...\n")
        for name, (_, text) in COMMANDS.items():
            print(f"  {name:10} {text}")
        return 0 if argv else 2
    if argv[0] not in COMMANDS:
        known = ", ".join(COMMANDS)
        print(f"error: unknown subcommand {argv[0]!r}; known: {known}", file=sys.stderr)
        return 2
    module = importlib.import_module(COMMANDS[argv[0]][0])
    return module.main(argv[1:])


if __name__ == "__main__":
    sys.exit(main())
