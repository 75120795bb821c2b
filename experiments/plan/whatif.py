"""Questions of the kind "what if this link were half as fast": read, checked, put into a cluster."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from jaxsim.files import InputError, listed, meant, shown

if TYPE_CHECKING:
    from jaxsim.cluster import ClusterSpec

EVERY = "all"
LINK_KEYS, DOMAIN_KEYS = ("factor", "gbps", "rtt_ms"), ("gpus", "usd_per_gpu_hour", "gpu")
FORM = (
    "link=a:b,factor=0.5 (or gbps=, rtt_ms=; link=all) or domain=c,gpus=0 (or usd_per_gpu_hour=, "
    "gpu=)"
)
MOST = 1e9  # of any figure


@dataclasses.dataclass(frozen=True)
class Change:
    """One change: what it is of (a link by its two ends in either direction, all of them, a domain) and
    the new figures."""

    text: str
    ends: tuple[str, str] | None  # None: a domain, or every link
    domain: str | None
    figures: Mapping[str, float]
    gpu: str | None = None  # the new type of a domain's GPUs


def parse_changes(text: str | None) -> tuple[Change, ...]:
    """The changes in a text, separated by semicolons. Raises InputError that says what was expected."""
    parts = [part.strip() for part in (text or "").split(";")]
    return tuple(_change(part) for part in parts if part)


def joined(argv: list[str], option: str = "what-if") -> list[str]:
    """A command line on which `option` stands once, its values separated by semicolons."""
    rest, values = [], []
    words = iter(argv)
    for word in words:
        name, equals, value = word.replace("_", "-").partition("=")
        if name != f"--{option}":
            rest.append(word)
        elif equals:
            values.append(word.partition("=")[2])
        else:
            value = next(words, None)
            if value is None:
                return argv  # the parser says that it is missing
            values.append(value)
    return [*rest, f"--{option}", ";".join(values)] if values else rest


def _change(text: str) -> Change:
    pairs = [part.partition("=") for part in text.split(",")]
    if not all(equals and key.strip() and value.strip() for key, equals, value in pairs):
        raise InputError(f"what_if: expected {FORM}, got {shown(text)}")
    (kind, _, of), *figures = [(k.strip(), e, v.strip()) for k, e, v in pairs]
    if kind not in ("link", "domain") or not figures:
        raise InputError(f"what_if: expected {FORM}, got {shown(text)}")
    known = LINK_KEYS if kind == "link" else DOMAIN_KEYS
    found, gpu = {}, None
    for key, _, value in figures:
        if key in found or (key == "gpu" and gpu is not None):
            raise InputError(f"what_if: {kind}: {key} stands twice in {shown(text)}")
        if key not in known:
            near = meant(key, known)
            raise InputError(f"what_if: {kind}: unknown {shown(key)}{near}; known: {listed(known)}")
        if key == "gpu":
            gpu = _gpu(value)
        else:
            found[key] = _number(value, key)
    if kind == "domain":
        return Change(text, None, of, found, gpu)
    if of == EVERY:
        return Change(text, None, None, found)
    a, colon, b = of.partition(":")
    if not colon or not a or not b or a == b:
        raise InputError(f"what_if: link: expected two domains as a:b, or all, got {shown(of)}")
    return Change(text, (a, b), None, found)


def _number(text: str, key: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    whole = key == "gpus"
    least = 0.0 if key in ("gpus", "rtt_ms", "usd_per_gpu_hour") else 1e-6
    if not least <= value <= MOST or (whole and value != int(value)):
        kind = "a whole number" if whole else "a number"
        raise InputError(f"what_if: {key}: expected {kind} >= {least:g}, got {shown(text)}")
    return value


def _gpu(text: str) -> str:
    from jaxsim.cluster import parse_gpu  # JAX, which a command line that asks for help needs not

    return str(parse_gpu(text, "what_if"))


def changed(spec: ClusterSpec, changes: tuple[Change, ...]) -> tuple[ClusterSpec, frozenset[str]]:
    """The cluster with the changes, and the domains that have no GPUs left (in the cluster they keep
    theirs: who builds arrays from it leaves them out). Raises InputError for unknown domains."""
    gone: set[str] = set()
    for change in changes:
        if change.domain is None:
            spec = _links(spec, change)
        else:
            spec = _domain(spec, change)
            if change.figures.get("gpus") == 0:
                gone.add(change.domain)
    if len(gone) == spec.n_domains:
        raise InputError("what_if: no domain has GPUs left")
    return spec, frozenset(gone)


def _links(spec: ClusterSpec, change: Change) -> ClusterSpec:
    places = [
        (i, j)
        for i in range(spec.n_domains)
        for j in range(spec.n_domains)
        if i != j and _is_of(change, spec.domains[i], spec.domains[j], spec)
    ]

    def write(matrix, new: Callable[[float], float]):
        out = matrix.copy()
        for at in places:
            out[at] = new(out[at])
        return out

    figures, fields = change.figures, {}
    if "rtt_ms" in figures:
        fields["rtt_ms"] = write(spec.rtt_ms, lambda _: figures["rtt_ms"])
    rates = spec.bandwidth_gbps
    if "gbps" in figures:
        rates = write(rates, lambda _: figures["gbps"])
    if "factor" in figures:
        rates = write(rates, lambda x: x * figures["factor"])
    return dataclasses.replace(spec, bandwidth_gbps=rates, **fields)


def _is_of(change: Change, a: str, b: str, spec: ClusterSpec) -> bool:
    if change.ends is None:
        return True
    for end in change.ends:
        _place(spec, end)
    return change.ends in ((a, b), (b, a))


def _domain(spec: ClusterSpec, change: Change) -> ClusterSpec:
    k = _place(spec, change.domain or "")

    def put(values: tuple, value) -> tuple:
        return (*values[:k], value, *values[k + 1 :])

    figures, fields = change.figures, {}
    if figures.get("gpus", 0) > 0:
        gpus = int(figures["gpus"])
        fields["gpus"] = put(spec.gpus, gpus)
        fields["gpus_per_node"] = put(spec.gpus_per_node, min(spec.gpus_per_node[k], gpus))
    if "usd_per_gpu_hour" in figures:
        fields["usd_per_gpu_hour"] = put(spec.usd_per_gpu_hour, figures["usd_per_gpu_hour"])
    if change.gpu is not None:
        from jaxsim.cluster import Site

        sites = spec.sites or (Site(),) * spec.n_domains
        own = dataclasses.replace(sites[k], gpu=change.gpu)
        fields["sites"] = put(sites, own)
    return dataclasses.replace(spec, **fields)


def _place(spec: ClusterSpec, name: str) -> int:
    if name not in spec.domains:
        near = meant(name, spec.domains)
        known = listed(spec.domains)
        raise InputError(f"what_if: {shown(name)} is no domain{near}; known: {known}")
    return spec.domains.index(name)
