"""Measure bandwidth and round trips between hosts, write a cluster file and a trace.

Every host runs `serve`; `run`, from anywhere, lets each measure towards each other, one pair at a time.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from experiments.common import run_command

EXAMPLES = {
    "serve": "hippo probe serve --token token.txt --bind 10.0.0.1",
    "run": "hippo probe run --token token.txt --hosts north=10.0.0.1:5410,south=10.1.0.1:5410 "
    "--gpus 16 --out two-sites.yaml --trace two-sites.csv",
    "iperf3": "hippo probe iperf3 --results iperf3-results --gpus 16 --out two-sites.yaml",
}
PORT = 5410
MOST_MBYTES, MOST_S = 2000.0, 30.0  # of one measurement, unless `serve` says otherwise


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    return run_command(lambda: _prepare(argv))


def _prepare(argv: list[str] | None) -> Callable[[], object]:
    """Read the command line, then load what the work needs."""
    from experiments.common import check_output, parse_command

    options = parse_command(*_parser(), argv)
    for option in ("out", "trace"):
        if getattr(options, option, None) is not None:
            check_output(getattr(options, option), f"--{option}")
    does = {"serve": _serve, "run": _run, "measure": _run, "iperf3": _iperf3}
    return lambda: does[options.command](options)


def _parser():
    """The parser, and those of its commands by name."""
    from experiments.common import Parser, number, whole

    parser = Parser("\n  ".join(EXAMPLES.values()), prog="hippo probe", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar=" | ".join(EXAMPLES))
    about = {
        "serve": "Answer the probes of other hosts, and measure towards them",
        "run": "Measure all pairs of hosts",
        "iperf3": "Read tests that iperf3 made",
    }
    also = {"run": ["measure"]}  # another name of it
    found = {
        name: commands.add_parser(
            name,
            aliases=also.get(name, []),
            help=text,
            description=f"{text}.",
            example=EXAMPLES[name],
        )
        for name, text in about.items()
    }

    def seconds(text: str) -> float:
        return number(text, lambda x: 0 < x <= 3600, "a number > 0 and <= 3600")

    def mbytes(text: str) -> float:
        return number(text, lambda x: 0 < x <= 1e6, "a number > 0 and <= 1e6")

    token = "file with the shared token, 16 bytes or more (default: HIPPO_PROBE_TOKEN)"
    for name in ("serve", "run"):
        found[name].add_argument("--token", metavar="FILE", help=token)
    add = found["serve"].add_argument
    add("--bind", metavar="HOST", default="127.0.0.1", help="address (default 127.0.0.1)")
    port = f"0 = any that is free (default {PORT})"
    add("--port", type=lambda t: whole(t, 0, 65535), default=PORT, help=port)
    caps = (MOST_MBYTES, MOST_S)
    limit = "a measurement that wants more is refused"
    add("--mbytes", type=mbytes, default=caps[0], help=f"MB, {limit} (default {caps[0]:g})")
    add("--seconds", type=seconds, default=caps[1], help=f"seconds, {limit} (default {caps[1]:g})")
    add = found["run"].add_argument
    hosts = "where each domain's `serve` listens, as NAME=HOST:PORT,..."
    add("--hosts", required=True, type=_hosts, metavar="LIST", help=hosts)
    add("--mbytes", type=mbytes, default=250.0, help="MB of a measurement at most (default 250)")
    add("--seconds", type=seconds, default=4.0, help="of sending at most (default 4)")
    add("--flows", type=lambda t: whole(t, 1, 16), default=4, help="TCP flows at once (default 4)")
    add("--pings", type=lambda t: whole(t, 1, 100), default=21, help="round trips (default 21)")
    add("--rounds", type=lambda t: whole(t, 1, 100_000), default=3, help="(default 3)")
    add("--every", type=seconds, default=60.0, help="seconds from round to round (default 60)")
    results = "folder with SRC--DST.json and SRC--DST--ANYTHING.json of `iperf3 -J`"
    found["iperf3"].add_argument("--results", required=True, metavar="DIR", help=results)
    for name in ("run", "iperf3"):
        _written(found[name].add_argument)
    return parser, found


def _written(add: Callable) -> None:
    """Options of what is written, and of what no probe can see."""
    from experiments.common import GPUS, number, whole

    def amount(text: str) -> float:
        return number(text, lambda x: x >= 0, "a number >= 0")

    def above_zero(text: str) -> float:
        return number(text, lambda x: x > 0, "a number > 0")

    def counts(text: str) -> list[int]:
        return [whole(part, 1, 1_000_000) for part in text.split(",")]

    add("--out", required=True, metavar="FILE", help="cluster YAML to write")
    add("--trace", metavar="CSV", help="trace of the links to write")
    about = "cluster YAML of the same domains, whose links are replaced"
    add("--cluster", metavar="FILE", help=f"{about}; without it, what follows")
    add("--gpu", choices=GPUS, default="A100-80GB", help="(default A100-80GB)")
    add("--gpus", metavar="N,N,...", type=counts, default=[8], help="one, or one each (default 8)")
    add("--usd_per_gpu_hour", type=amount, default=2.0, help="(default 2)")
    add("--egress_usd_per_gb", type=amount, default=0.02, help="of every link (default 0.02)")
    add("--intra_gbps", type=above_zero, default=400.0, help="inside a domain (default 400)")


def _hosts(text: str) -> dict[str, tuple[str, int]]:
    """NAME=HOST:PORT,... -> addresses by name."""
    from experiments.common import whole

    found: dict[str, tuple[str, int]] = {}
    for part in text.split(","):
        name, equals, where = part.strip().partition("=")
        host, colon, port = where.rpartition(":")
        if not (name and equals and host and colon) or name in found:
            wanted = "NAME=HOST:PORT,NAME=HOST:PORT,... with every name once"
            raise argparse.ArgumentTypeError(f"expected {wanted}, got {text!r}")
        found[name] = (host.strip("[]"), whole(port, 1, 65535))
    if len(found) < 2:
        raise argparse.ArgumentTypeError(f"expected two hosts or more, got {text!r}")
    return found


def _serve(options: argparse.Namespace) -> None:
    from experiments.probe.handshake import read_token
    from experiments.probe.server import serve
    from experiments.probe.wire import Address, Limits

    limits = Limits(options.mbytes, options.seconds)
    serve(Address(options.bind, options.port), read_token(options.token), limits)


def _run(options: argparse.Namespace) -> None:
    from experiments.probe.handshake import read_token
    from experiments.probe.results import base_of
    from experiments.probe.rounds import Protocol, Sample, measured, most_mbytes
    from experiments.probe.wire import Address, Limits

    hosts = {name: Address(*where) for name, where in options.hosts.items()}
    limits = Limits(options.mbytes, options.seconds)
    protocol = Protocol(limits, options.flows, options.pings, options.rounds, options.every)
    token = read_token(options.token)
    base_of(tuple(hosts), _machines(options), "")  # before anything is sent
    print(f"{most_mbytes(hosts, protocol):,g} MB will be sent at most", flush=True)

    def tell(sample: Sample) -> None:
        what = f"{sample.bandwidth_gbps:.4g} Gbit/s, {sample.rtt_ms:.4g} ms"
        print(f"{sample.t_s:8.1f} s  {sample.src} > {sample.dst}: {what}", flush=True)

    _write(options, measured(hosts, token, protocol, tell))


def _iperf3(options: argparse.Namespace) -> None:
    from experiments.probe.iperf3 import read_folder

    _write(options, read_folder(options.results))


def _write(options: argparse.Namespace, samples: list) -> None:
    from pathlib import Path

    from experiments.probe.results import write_cluster, write_trace

    spec = write_cluster(Path(options.out), samples, _machines(options))
    print(f"{options.out}: {spec.n_domains} domains, {len(samples)} measurements")
    if options.trace is not None:
        write_trace(Path(options.trace), samples, spec)
        print(f"{options.trace}: {len(samples)} rows")


def _machines(options: argparse.Namespace):
    """What no probe can see, as it was given."""
    from experiments.probe.results import Machines

    return Machines(**{name: getattr(options, name) for name in Machines.__dataclass_fields__})


if __name__ == "__main__":
    sys.exit(main())
