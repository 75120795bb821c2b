"""`hippo SUBCOMMAND ...`: the entry points as one console script."""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable

from experiments.common import run_command

# Name -> module with main(argv), and what it is for. Modules load when called: importing all of
# them would take seconds.
COMMANDS = {
    "plan": ("experiments.plan.__main__", "the plan with which a model trains fastest, in seconds"),
    "train": ("experiments.train.__main__", "train Hi-PPO"),
    "evaluate": ("experiments.evaluate.__main__", "compare schedulers on the same scenarios"),
    "cluster": ("experiments.cluster.__main__", "make cluster and trace files from measurements"),
    "jobs": ("experiments.jobs.__main__", "draw a list of jobs from a trace or at random"),
    "network": (
        "experiments.network.__main__",
        "fit how measured links move, compare predictors",
    ),
    "validate": ("experiments.validate.__main__", "compare predictions with measured runs"),
    "calibrate": (
        "experiments.calibrate.__main__",
        "fit efficiency parameters to measured runs",
    ),
    "fidelity": (
        "experiments.fidelity.__main__",
        "where the closed form leaves the event-exact one",
    ),
    "kpi": (
        "experiments.kpi.__main__",
        "the eight key figures, each with its target and its headroom",
    ),
    "foresight": (
        "experiments.foresight.__main__",
        "what re-planners lose, and what of it is foresight",
    ),
    "sweep": ("experiments.sweep.__main__", "compare schedulers over a designed range of worlds"),
    "respond": ("experiments.respond.__main__", "answer measurements with plans, line by line"),
    "watch": (
        "experiments.watch.__main__",
        "follow live measurements, say when the plan should change",
    ),
    "probe": ("experiments.probe.__main__", "measure links between hosts, write a cluster file"),
    "bench": ("experiments.bench.__main__", "measure speed"),
    "wan": ("experiments.wan.__main__", "a wide-area network on one machine, for real training"),
    "ddp": ("experiments.ddp", "compare micro-batch schedules in real data-parallel training"),
    "doctor": (
        "experiments.doctor.__main__",
        "what is installed here, and what is missing for what",
    ),
    "runs": ("experiments.runs.__main__", "list run folders, compare two of them"),
    "parallel": (
        "experiments.parallel",
        "choose how ranks share a model, and change it in training",
    ),
    "memory": ("experiments.memory", "predict training's memory, choose what to recompute"),
    "microbench": ("experiments.microbench", "measure messages, operators and whole steps"),
    "communication": ("experiments.communication", "compare how gradients are sent"),
    "comparative": ("experiments.comparative", "compare frameworks that train the same model"),
    "report": ("analysis.report.__main__", "write a report from run folders"),
}
EXAMPLES = """\
examples:
  hippo plan --cluster three-sites.yaml --model llama-13b
  hippo evaluate --schedulers hysteresis,best_static --seeds 8 --out outputs/first
  hippo report outputs/first
  hippo evaluate --help"""


def main(argv: list[str] | None = None) -> int:
    """Dispatch; returns the exit status, 2 for an unknown subcommand."""
    if "_ARGCOMPLETE" in os.environ:
        from experiments.completion import complete

        complete(COMMANDS)
        return 0
    return run_command(lambda: _prepare(sys.argv[1:] if argv is None else argv))


def _prepare(arguments: list[str]) -> Callable[[], object]:
    if not arguments or arguments[0] not in COMMANDS:
        return functools.partial(_without_command, arguments)
    command = importlib.import_module(COMMANDS[arguments[0]][0]).main
    return functools.partial(command, arguments[1:])


def _without_command(arguments: list[str]) -> int:
    """What `hippo` says where no subcommand is named. Raises InputError for one that is unknown."""
    if arguments and arguments[0] in ("-V", "--version"):
        from importlib.metadata import version

        print(f"hippo {version('hippo-sched')}")
    elif arguments and arguments[0] not in ("-h", "--help"):
        from experiments.common import did_you_mean
        from jaxsim.files import InputError

        close = did_you_mean(arguments[0], COMMANDS)
        known = ", ".join(COMMANDS)
        raise InputError(f"unknown subcommand {arguments[0]!r}; known: {known}{close}")
    else:
        print("usage: hippo SUBCOMMAND [--help] ...\n       hippo --version\n")
        for name, (_, text) in COMMANDS.items():
            print(f"  {name:13} {text}")
        print(f"\n{EXAMPLES}")
    return 0 if arguments else 2


if __name__ == "__main__":
    sys.exit(main())
