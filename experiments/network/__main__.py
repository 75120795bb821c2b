"""How links move: fit processes to measured paths, compare predictors of their bandwidth.

Both write a run folder, of which `hippo report` makes a page with figures.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from experiments.common import run_command

EXAMPLES = {
    "fit": "hippo network fit --traces iperf3-tests.csv --out my-links.yaml",
    "predict": "hippo network predict --traces iperf3-tests.csv --json -",
}


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    return run_command(lambda: _prepare(argv))


def _prepare(argv: list[str] | None) -> Callable[[], object]:
    """Read the command line, then load what the work needs: that takes seconds."""
    from experiments.common import parse_command

    options = parse_command(*_parser(), argv)

    from experiments.common import use_compile_cache
    from experiments.network.fit import fit
    from experiments.network.predict import predict

    use_compile_cache()
    return lambda: {"fit": fit, "predict": predict}[options.command](options)


def _parser():
    """The parser, and those of its commands by name."""
    from experiments.common import LINK_KINDS, Parser

    parser = Parser("\n  ".join(EXAMPLES.values()), prog="hippo network", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="fit | predict")
    about = "Fit processes to measured paths: a file for --jitter"
    one = commands.add_parser("fit", help=about, description=f"{about}.", example=EXAMPLES["fit"])
    _shared(one.add_argument)
    one.add_argument("--out", metavar="FILE", required=True, help="YAML file to write")
    kinds = f"what the file alone means: best (default), {', '.join(LINK_KINDS)}"
    one.add_argument(
        "--kind", choices=(*LINK_KINDS, "best"), default="best", metavar="KIND", help=kinds
    )
    share = "of each record that is fitted when the rest is checked (default 0.7)"
    one.add_argument("--fit-share", type=_share, default=0.7, help=share)
    about = "Errors of predictors of bandwidth, by horizon"
    two = commands.add_parser(
        "predict", help=about, description=f"{about}.", example=EXAMPLES["predict"]
    )
    _shared(two.add_argument, interval=20)
    two.add_argument("--json", metavar="FILE", help="result, - = standard output and nothing else")
    return parser, {"fit": one, "predict": two}


def _shared(add: Callable, interval: int = 60) -> None:
    from experiments.common import seed, whole_seconds

    files = "tests, samples or traces of paths, .gz too"
    add("--traces", metavar="CSV", nargs="+", required=True, help=files)
    seconds = f"whole seconds (default {interval})"
    add("--interval", type=whole_seconds, default=interval, help=seconds)
    add("--seed", type=seed, default=0, help="of all that is drawn (default 0)")
    add("--run-dir", metavar="DIR", help="run folder (default outputs/network-...)")


def _share(text: str) -> float:
    from experiments.common import number

    return number(text, lambda x: 0.2 <= x <= 0.9, "a number from 0.2 to 0.9")


if __name__ == "__main__":
    sys.exit(main())
