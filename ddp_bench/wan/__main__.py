"""Emulated wide-area networks, from a resolved JSON file.

    python -m ddp_bench.wan up FILE [--owner PID]   bring the network of FILE up, in the background
    python -m ddp_bench.wan serve FILE        the same in the foreground, until Ctrl-C
    python -m ddp_bench.wan link --name N --src A --dst B [--rate_mbps X] ...
    python -m ddp_bench.wan counters --name N
    python -m ddp_bench.wan follow --name N --every S [--seconds S] [--rewind]   links as lines of JSON
    python -m ddp_bench.wan down --name N | --all
    python -m ddp_bench.wan capability        print what is missing here; nothing if nothing
    python -m ddp_bench.wan check [--json FILE]   measure the emulator itself

`hippo wan` writes FILE from a cluster's YAML and a trace's CSV.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import NoReturn

from ddp_bench.errors import ConfigError
from ddp_bench.wan import check as checking
from ddp_bench.wan import lifecycle
from ddp_bench.wan.capability import missing
from ddp_bench.wan.control import ask
from ddp_bench.wan.network import MATRICES, read_network

LEAST_GBPS = 1e-6  # `hippo watch` takes no 0: what a link that is down is said to carry


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"command line: {message}")


def _parser() -> argparse.ArgumentParser:
    form = argparse.RawDescriptionHelpFormatter
    parser = _Parser(
        prog="python -m ddp_bench.wan",
        description=__doc__,
        formatter_class=form,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", required=True, parser_class=_Parser)
    for name in ("up", "serve"):
        command = commands.add_parser(name)
        command.add_argument("file", type=Path, help="resolved network")
        command.add_argument("--owner", type=int, help="process with which the network ends")
    link = commands.add_parser("link")
    for option in ("--name", "--src", "--dst"):
        link.add_argument(option, required=True)
    for key in MATRICES:
        link.add_argument(f"--{key}", type=float)
    follow = "let its rate follow the trace, or the file, again"
    link.add_argument("--follow", action="store_true", help=follow)
    commands.add_parser("counters").add_argument("--name", required=True)
    follow_links = commands.add_parser("follow")
    follow_links.add_argument("--name", required=True)
    follow_links.add_argument("--every", type=float, required=True, help="[s]")
    follow_links.add_argument("--seconds", type=float, help="[s] after which it ends")
    follow_links.add_argument("--rewind", action="store_true", help="the trace begins anew")
    ending = commands.add_parser("down").add_mutually_exclusive_group(required=True)
    ending.add_argument("--name", help="network")
    ending.add_argument("--all", action="store_true", help="every network, dead ones too")
    commands.add_parser("capability")
    checking.add_options(commands.add_parser("check"))
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run one command; the exit status, 2 with one line for bad input."""
    try:
        return _run(_parser().parse_args(argv))
    except ConfigError as error:
        print(f"wan: {' '.join(str(error).split())}", file=sys.stderr)
        return 2


def _run(options: argparse.Namespace) -> int:
    match options.command:
        case "up":
            network = lifecycle.up(options.file, options.owner)
            print(f"network {network.name}: {len(network.domains)} domains are up")
        case "serve":
            lifecycle.serve(read_network(options.file), options.owner)
        case "link":
            print(json.dumps(_change(options)))
        case "counters":
            where = lifecycle.socket_of(options.name)
            print(json.dumps(ask(where, options.name, do="counters"), indent=1))
        case "follow":
            _follow(options)
        case "down":
            _down(options)
        case "capability":
            print(missing())
        case "check":
            return checking.run(options)
    return 0


def _change(options: argparse.Namespace) -> dict:
    given = {key: value for key in MATRICES if (value := getattr(options, key)) is not None}
    if options.follow:
        given["rate_mbps"] = None
    if not given:
        raise ConfigError(f"link: nothing to change; allowed --{', --'.join(MATRICES)}, --follow")
    where = lifecycle.socket_of(options.name)
    return ask(where, options.name, do="link", src=options.src, dst=options.dst, **given)


def _follow(options: argparse.Namespace) -> None:
    """Print what every link carries at most, as `hippo watch` reads it, again and again."""
    where, name = lifecycle.socket_of(options.name), options.name
    if options.rewind:
        ask(where, name, do="rewind")
    begun, turn = time.monotonic(), 0
    while options.seconds is None or turn * options.every < options.seconds:
        for link in ask(where, name, do="counters")["links"]:
            gbps = max(link["rate_mbps"] / 1e3, LEAST_GBPS)
            line = {"time": round(turn * options.every, 3), "src": link["src"], "dst": link["dst"]}
            print(json.dumps({**line, "bandwidth_gbps": gbps}))
        sys.stdout.flush()
        turn += 1
        time.sleep(max(begun + turn * options.every - time.monotonic(), 0.0))


def _down(options: argparse.Namespace) -> None:
    lifecycle.require_capability()
    names = lifecycle.known() if options.all else [options.name]
    taken = [name for name in names if lifecycle.down(name)]
    print(f"taken down: {', '.join(taken)}" if taken else "nothing to take down")


if __name__ == "__main__":
    sys.exit(main())
