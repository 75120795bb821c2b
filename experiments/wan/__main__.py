"""A wide-area network on one machine: namespaces joined by emulated links.

Needs root (CAP_NET_ADMIN, CAP_SYS_ADMIN) and /dev/net/tun. The host's routes stay as they are.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from experiments.common import run_command

EXAMPLES = {
    "up": "hippo wan up --cluster four-aws-regions --scale 0.1",
    "run": "hippo wan run --scale 0.1 --steps 10 --out outputs/first-wan",
    "study": "hippo wan study --out outputs/sim-to-real",
    "efficiency": "hippo wan efficiency --out outputs/token-efficiency",
    "end-to-end": "hippo wan end-to-end --trace trace.csv --out outputs/steered",
    "link": "hippo wan link --name four-aws-regions --src ohio --dst oregon --rate_mbps 50",
    "counters": "hippo wan counters --name four-aws-regions",
    "down": "hippo wan down --all",
    "check": "hippo wan check --quick",
}


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    return run_command(lambda: _prepare(argv))


def _prepare(argv: list[str] | None) -> Callable[[], object]:
    """Read the command line, then load what the work needs: that takes seconds."""
    from experiments.common import parse_command

    options = parse_command(*_parser(), argv)
    own = {"up": _up, "run": _run, "study": _study, "efficiency": _efficiency}
    own["end-to-end"] = _end_to_end
    if options.command in own:
        return lambda: own[options.command](options)
    words = _words(options)
    from experiments.wan.start import python

    return lambda: python("ddp_bench.wan", *words)


def _parser():
    """The parser, and those of its commands by name."""
    from experiments.common import Parser

    parser = Parser("\n  ".join(EXAMPLES.values()), prog="hippo wan", description=__doc__)
    metavar = " | ".join(EXAMPLES)
    commands = parser.add_subparsers(dest="command", required=True, metavar=metavar)
    found = {}
    about = {
        "up": "Bring a cluster's network up; it stays until `down`",
        "run": "Bring a network up, train a small model over it by a plan, take it down",
        "study": "Sim-to-real: calibrate jaxsim on a few conditions, predict others, measure them",
        "efficiency": "What a token is worth where replicas talk seldom or in few bits, at this scale",
        "end-to-end": "A recorded trace replayed while `hippo watch` steers training, and predictions",
        "link": "Change one directed link of a network that is up",
        "counters": "Print what passed over every link, and what the emulator took",
        "down": "Take networks down, and clear away what killed ones left",
        "check": "Measure the emulator: round trips, rates, changes, independence",
    }
    for name, text in about.items():
        found[name] = commands.add_parser(
            name, help=text, description=f"{text}.", example=EXAMPLES[name]
        )
    for name in ("up", "run"):
        _network(found[name].add_argument)
    _training(found["run"].add_argument)
    found["up"].add_argument("--write", metavar="FILE", help="only write the resolved network here")
    protocol = "protocol, YAML (default: the one that ships)"
    found["study"].add_argument("--config", metavar="FILE", help=protocol)
    found["study"].add_argument(
        "--out", metavar="DIR", help="run folder (default outputs/wan_study-...)"
    )
    found["efficiency"].add_argument("--config", metavar="FILE", help=protocol)
    found["efficiency"].add_argument(
        "--out", metavar="DIR", help="run folder (default outputs/wan_efficiency-...)"
    )
    _scene(found["end-to-end"].add_argument)
    _link(found["link"].add_argument)
    found["counters"].add_argument("--name", required=True, help="of the network")
    ending = found["down"].add_mutually_exclusive_group(required=True)
    ending.add_argument("--name", help="of the network")
    ending.add_argument("--all", action="store_true", help="every network, dead ones too")
    found["check"].add_argument("--quick", action="store_true", help="a few conditions only")
    found["check"].add_argument("--json", metavar="FILE", help="result")
    return parser, found


def _network(add: Callable) -> None:
    """The options that say which network is emulated."""
    from experiments.common import number, whole, whole_seconds

    def above_zero(text: str) -> float:
        return number(text, lambda x: 0 < x <= 1000, "a number > 0 and <= 1000")

    def share(text: str) -> float:
        return number(text, lambda x: 0 <= x <= 0.99, "a number from 0 to 0.99")

    add("--cluster", metavar="FILE", help="cluster YAML (default: the embedded four regions)")
    add("--trace", metavar="CSV", help="trace of its links, replayed again and again")
    add(
        "--interval",
        type=whole_seconds,
        default=60,
        help="of the trace: whole seconds (default 60)",
    )
    scale = "links have X times their rate, and a second of the trace takes X seconds (default 1)"
    add("--scale", metavar="X", type=above_zero, default=1.0, help=scale)
    add("--time_scale", metavar="X", type=above_zero, help="of the trace's seconds alone")
    add("--name", help="of the network and its namespaces (default: the cluster's)")
    add(
        "--loss", type=share, default=0.0, help="share of packets that every link loses (default 0)"
    )
    control = ("bbr", "reno", "cubic")
    about = "congestion control inside the namespaces (default bbr)"
    add("--congestion", choices=control, default="bbr", help=about)
    largest = "largest packet [B] (default 9000)"
    add("--mtu", type=lambda text: whole(text, 1280, 65535), default=9000, help=largest)


def _scene(add: Callable) -> None:
    from experiments.common import whole_seconds

    add("--trace", metavar="CSV", required=True, help="trace of links between the scene's domains")
    rows = "of the trace: whole seconds (default 60)"
    add("--interval", type=whole_seconds, default=60, help=rows)
    add("--config", metavar="FILE", help="scene, YAML (default: the one that ships)")
    study = (
        "run folder of `hippo wan study` on this machine: predictions wait for messages as it found"
    )
    add("--study", metavar="DIR", help=f"{study} (default: jaxsim's own form)")
    add("--out", metavar="DIR", help="run folder (default outputs/wan_end_to_end-...)")


def _training(add: Callable) -> None:
    from experiments.common import number, seed, whole

    def count(text: str) -> int:
        return whole(text, 1, 1_000_000)

    add("--plan", metavar="FILE", help="plan file, JSON (default: every domain is a replica)")
    add("--model", metavar="FILE", help="model YAML (default: the small Llama that ships)")
    add("--global_batch", type=count, help="sequences of a step (default 16)")
    add("--seq", type=count, help="tokens of a sequence (default 64)")
    add("--steps", type=count, help="training steps (default 20)")
    add("--seed", type=seed, help="of weights and texts (default 0)")
    ranks = "processes in every domain, for plans to come (default: as the plan needs)"
    add("--ranks_per_domain", type=count, help=ranks)
    add(
        "--watch",
        metavar="FILE",
        help="a plan written here is put into force while training goes on",
    )
    patience = "a message that takes longer ends the run [s] (default 120)"
    add("--timeout_s", type=lambda t: number(t, lambda x: x > 0, "a number > 0"), help=patience)
    add("--out", metavar="DIR", help="run folder (default outputs/wan-...)")


def _link(add: Callable) -> None:
    from experiments.common import number

    def positive(text: str) -> float:
        return number(text, lambda x: x >= 0, "a number >= 0")

    add("--name", required=True, help="of the network")
    add("--src", required=True, help="domain that sends")
    add("--dst", required=True, help="domain that receives")
    add("--rate_mbps", type=positive, help="0 = an outage [Mbit/s]")
    add("--delay_ms", type=positive, help="one way [ms]")
    add("--loss", type=positive, help="share of packets lost at random")
    add("--queue_kb", type=positive, help="most that waits for the link [kB]")
    add("--follow", action="store_true", help="let the rate follow the trace, or the file, again")


def _words(options: argparse.Namespace) -> list[str]:
    """The same command for `ddp_bench.wan`."""
    words = [options.command]
    for key, value in vars(options).items():
        if value is True:
            words.append(f"--{key}")
        elif key != "command" and value is not None and value is not False:
            words += [f"--{key}", str(value)]
    return words


def _up(options: argparse.Namespace) -> int:
    from experiments.wan import start

    network = _resolved(options)
    if options.write:
        start.write(network, options.write)
        return 0
    return start.up(network)


def _resolved(options: argparse.Namespace) -> dict:
    from experiments.wan.resolve import NetworkOptions, resolve

    given = {k: v for k, v in vars(options).items() if k in NetworkOptions.__dataclass_fields__}
    return resolve(NetworkOptions(**given, interval_s=float(options.interval)))


def _run(options: argparse.Namespace) -> int:
    from analysis.records import RunWriter
    from experiments.common import load_regions
    from experiments.wan import start
    from experiments.wan.training import TrainingOptions, job_spec, read_plan, resolved_job

    RunWriter.check("wan", options.out)
    fields = TrainingOptions.__dataclass_fields__
    given = {k: v for k, v in vars(options).items() if k in fields and v is not None}
    chosen, spec = TrainingOptions(**given), load_regions(options.cluster)
    network, job = _resolved(options), job_spec(chosen)
    _, plan = read_plan(chosen.plan, spec, job)
    return start.train(network, resolved_job(chosen, spec, job, plan, network["name"]), options.out)


def _study(options: argparse.Namespace) -> int:
    from experiments.common import use_compile_cache
    from experiments.wan.protocol import SHIPPED
    from experiments.wan.start import reason_missing
    from experiments.wan.study import study

    if reason := reason_missing():
        print(f"skipped: {reason}")
        return 0
    use_compile_cache()
    return study(options.config or str(SHIPPED), options.out)


def _efficiency(options: argparse.Namespace) -> int:
    from experiments.wan.efficiency import SHIPPED, efficiency

    return efficiency(options.config or str(SHIPPED), options.out)


def _end_to_end(options: argparse.Namespace) -> int:
    from experiments.common import compile_for_evaluation
    from experiments.wan.start import reason_missing

    if reason := reason_missing():
        print(f"skipped: {reason}")
        return 0
    compile_for_evaluation()
    from experiments.wan.endtoend import end_to_end
    from experiments.wan.scene import SHIPPED

    config = options.config or str(SHIPPED)
    return end_to_end(config, options.trace, options.interval, options.out, options.study)


if __name__ == "__main__":
    sys.exit(main())
