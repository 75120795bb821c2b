"""`hippo ddp`: train under torchrun, replay the schedules, analyse, report; one command.

The trainer runs as a subprocess; nothing of it is imported here. Options of this command come
first; everything else is passed on to `python -m ddp_bench.train_ddp` (see its --help).
"""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from analysis.records import RecordError, load
from experiments.common import Parser, run_command, run_module, whole

EXAMPLE = "hippo ddp --ranks 2 --steps 50 --out outputs/ddp"
DEFAULT_CONFIG = Path(__file__).parents[1] / "ddp_bench" / "configs" / "default.yaml"
RANKS = 4


def _parser() -> Parser:
    parser = Parser(prog="hippo ddp", description=__doc__, example=EXAMPLE)
    add = parser.add_argument
    add("--ranks", type=_up_to(4096, 1), help=f"processes (default: {RANKS}, or the run's own)")
    add("--out", type=Path, help="run folder (default: outputs/ddp-<date>-<hex>)")
    add("--max_restarts", type=_up_to(1000), default=0, help="restarts of a failed job (default 0)")
    steps = "modelled steps (default 120); 0 = none"
    add("--replay_steps", type=_up_to(1_000_000), default=120, help=steps)
    return parser


def _up_to(most: int, least: int = 0) -> Callable[[str], int]:
    return lambda text: whole(text, least, most)


def _python(*arguments: str) -> int:
    """Run a module of this installation; its exit status."""
    return run_module(*arguments)


def _resumed(given: list[str]) -> Path | None:
    """The folder of --resume, if it is given."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--resume", type=Path)
    return parser.parse_known_args(given)[0].resume


def _settings(given: list[str], out: Path) -> list[str]:
    """Arguments of the trainer: the shipped configuration unless one is named, or a run goes on
    with its own."""
    if _resumed(given):
        return given
    named = any(argument.split("=")[0] == "--config" for argument in given)
    config = [] if named else ["--config", str(DEFAULT_CONFIG)]
    return [*config, *given, "--output_dir", str(out)]


def _own_ranks(folder: Path) -> int:
    """Ranks of the run in `folder`; RecordError where there is none."""
    ranks = load(folder).run["config"].get("ranks")
    if type(ranks) is not int:
        raise RecordError(f"{folder}/run.json: not a data-parallel run; allowed is one to resume")
    return ranks


def main(argv: list[str] | None = None) -> int:
    """Run everything; the first exit status that is not 0, else 0. Bad input: 2."""
    return run_command(lambda: _prepare(argv))


def _prepare(argv: list[str] | None) -> Callable[[], int]:
    options, given = _parser().parse_known_args(argv)
    resumed = _resumed(given)
    ranks = options.ranks
    if ranks is None:
        ranks = _own_ranks(resumed) if resumed else RANKS
    stamp = f"{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    out = resumed or options.out or Path("outputs") / f"ddp-{stamp}"
    settings = _settings(given, out)
    return lambda: _run(ranks, out, settings, options)


def _run(ranks: int, out: Path, settings: list[str], options: argparse.Namespace) -> int:
    """Check, train, replay, analyse; the first exit status that is not 0, else 0."""
    # torchrun turns every failure into exit status 1: bad settings are found before it starts.
    check = ("--validate_only", "--for_ranks", str(ranks))
    if status := _python("ddp_bench.train_ddp", *settings, *check):
        return status
    torchrun = ["torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
    torchrun += [f"--max_restarts={options.max_restarts}", "-m", "ddp_bench.train_ddp"]
    if status := _python(*torchrun, *settings):
        return status
    if options.replay_steps > 0:
        replay = ("--run_dir", str(out), "--steps", str(options.replay_steps))
        if status := _python("ddp_bench.replay", *replay):
            return status
    return _python("analysis.analyze_metrics", "--run_dir", str(out))


if __name__ == "__main__":
    sys.exit(main())
