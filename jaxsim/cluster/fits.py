"""Which fit serves a GPU type under a software stack, and what it says of itself."""

from __future__ import annotations

import dataclasses
import functools
import importlib.resources
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from jaxsim.cluster.band import UNKNOWN, Band, Domain, read_band, read_domain
from jaxsim.cluster.efficiency import (
    Belief,
    Calibration,
    parse_beliefs,
    prior_calibration,
    read_entries,
)
from jaxsim.cluster.gpu import GPU_PRESETS, gpu_name
from jaxsim.cluster.stack import FITTED_AS, POOLED
from jaxsim.files import InputError, listed, read_yaml

SHIPPED = "calibrations.yaml"
ANY = "any"  # GPU type of what is known of a stack wherever it runs


@dataclasses.dataclass(frozen=True)
class MachineFit:
    """What is believed of a GPU type under a stack, how far it may be off and where it holds."""

    belief: Belief
    band: Band = UNKNOWN
    domain: Domain | None = None  # None = nothing was measured: everything lies outside


@dataclasses.dataclass(frozen=True)
class EfficiencySource:
    """Where the efficiency parameters of a GPU come from.

    Attributes:
        gpu: its type, aliases resolved; None where a mapping of figures describes it
        used: the fit that is used, None = the documented priors
        why: empty where GPU type and stack have a fit of their own, else a sentence for the user
        stack: the software stack, POOLED where none is named
        file: the calibration file that holds the fit, None = it ships
    """

    gpu: str | None
    used: str | None
    why: str = ""
    stack: str = POOLED
    file: str | None = None


def load_fits(path: str | Path) -> dict[str, MachineFit]:
    """Load a calibration file: `GPU`, `GPU/STACK` or `any/STACK` -> its fit; errors: `load_beliefs`."""
    entries, fits = read_entries(path), {}
    for name, belief in parse_beliefs(entries, path).items():
        where, entry = f"{path}: calibrations.{name}", entries[name]
        band = read_band(entry["band"], f"{where}: band") if "band" in entry else UNKNOWN
        domain = read_domain(entry["domain"], f"{where}: domain") if "domain" in entry else None
        fits[name] = MachineFit(belief, band, domain)
    return fits


def load_left_out(
    path: str | Path | None = None, table: Literal["left_out", "left_out_bias"] = "left_out"
) -> list[dict[str, Any]]:
    """What was stored beside the fits of a file (None = those that ship) of groups left out: their
    errors, or biases by model size and length."""
    body = read_yaml(_shipped_file() if path is None else path, "a calibration")
    rows = body.get(table, []) if isinstance(body, Mapping) else []
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        raise InputError(f"{path}: {table}: expected a list of rows")
    return [dict(row) for row in rows]


def find_fit(fits: Mapping[str, MachineFit], gpu: str, stack: str = POOLED) -> MachineFit | None:
    """The fit for a GPU type under a stack, or the nearest one, whose domain then does not hold and
    whose band is at least that of what nobody measured; None = nothing is known."""
    name = _fitted_name(fits, gpu, stack)
    if name is None:
        return None
    found = fits[name]
    if name == _key(gpu_name(gpu), stack):
        return found
    if _serves_all(fits):
        return found
    wide = dataclasses.replace(
        found.band,
        step=max(found.band.step, UNKNOWN.step),
        memory=max(found.band.memory, UNKNOWN.memory),
    )
    return MachineFit(found.belief, wide)


def family(gpu: str) -> str:
    """The architecture of a GPU type: its name up to the dash, parts of one architecture together."""
    name = gpu_name(gpu).split("-")[0]
    return {"GH200": "H100", "H200": "H100", "H800": "H100", "A800": "A100"}.get(name, name)


def default_calibration(
    gpu: Any = None, stack: str = POOLED, file: str | None = None
) -> Calibration:
    """Return the fit that `efficiency_source` names for a GPU; the priors where there is none.

    `gpu`, `stack` and `file` are what a cluster file says: a type, an alias of one or a mapping of
    figures, or None; the software; a calibration file (None = the fits that ship).
    """
    fit = machine_fit(gpu, stack, file)
    return prior_calibration() if fit is None else fit.belief.calibration()


@functools.cache
def shipped_fit(gpu: str | None, stack: str = POOLED) -> MachineFit | None:
    """The shipped fit of a GPU type (or an alias of it) under a stack or, failing that, of its family
    (the name up to the dash)."""
    return None if gpu is None else find_fit(_shipped(), gpu, stack)


def machine_fit(gpu: Any, stack: str = POOLED, file: str | None = None) -> MachineFit | None:
    """The fit of a GPU type under a stack from a calibration file (None = as shipped).

    None for a GPU given as figures, and where nothing is known. Raises InputError as
    `load_beliefs`, and for a file that says nothing of the GPU type.
    """
    if not isinstance(gpu, str):
        return None
    if file is None:
        return shipped_fit(gpu, stack)
    fits = _fits_of(file, Path(file).stat().st_mtime_ns if Path(file).is_file() else 0)
    found = find_fit(fits, gpu, stack)
    if found is None:
        raise InputError(f"{file}: calibrations: none for {gpu}; the file has: {listed(fits)}")
    return found


def shipped_belief(gpu: str | None, stack: str = POOLED) -> Belief | None:
    """The belief of `shipped_fit`."""
    fit = shipped_fit(gpu, stack)
    return None if fit is None else fit.belief


@functools.cache
def _shipped() -> dict[str, MachineFit]:
    file = _shipped_file()
    return load_fits(file) if file.is_file() else {}


@functools.lru_cache(maxsize=8)
def _fits_of(file: str, changed_ns: int) -> dict[str, MachineFit]:
    """The fits of a file as it was at a time."""
    del changed_ns  # a file that was written again is read again
    return load_fits(file)


def _shipped_file() -> Path:
    return Path(str(importlib.resources.files("jaxsim.presets") / SHIPPED))


def efficiency_source(
    gpu: str | Mapping[str, float] | None, stack: str = POOLED, file: str | None = None
) -> EfficiencySource:
    """What `default_calibration` uses for the `gpu`, the `stack` and the calibration `file` of a
    cluster file, and why."""
    if not isinstance(gpu, str):
        why = "gpu: given as figures, without a type; the priors of efficiency are used"
        return EfficiencySource(None, None, why, stack)
    fits = _shipped() if file is None else load_fits(file)
    name, used = gpu_name(gpu), _fitted_name(fits, gpu, stack)
    return EfficiencySource(name, used, _why(fits, name, stack, used), stack, file)


def _why(fits: Mapping[str, MachineFit], gpu: str, stack: str, used: str | None) -> str:
    """What a user should know of the fit that serves a machine; empty where it is its own."""
    under = "" if stack == POOLED else f" under {stack}"
    if used is None:
        return f"gpu: {gpu}{under} {_NOT_FITTED}; the priors are used"
    if _serves_all(fits) and family(used) == family(gpu):
        return ""
    if used != _key(gpu, stack):
        return f"gpu: {gpu}{under} {_NOT_FITTED}; those of {used} are used"
    if stack == POOLED:
        return _POOLED_WHY
    if fits[used].domain is None:
        on = [k.partition("/")[0] for k, x in fits.items() if x.domain and k.endswith(f"/{stack}")]
        measured = f", those on {listed(on)} were" if on else ""
        return (
            f"stack: no run of {stack} on {gpu} was measured{measured}; what is documented is used"
        )
    return ""


def _serves_all(fits: Mapping[str, MachineFit]) -> bool:
    """A file that says nothing of stacks is its user's own: it is for all of them."""
    return not any("/" in name for name in fits)


_NOT_FITTED = "has no efficiency parameters fitted to measured runs"
_POOLED_WHY = "stack: none is named; the pooled one is used, and its wider band"


def _key(gpu: str, stack: str) -> str:
    return gpu if stack == POOLED else f"{gpu}/{stack}"


def _fitted_name(fitted: Iterable[str], gpu: str, stack: str) -> str | None:
    """The name of the fit for a GPU type under a stack: the pair's own, that of the part of the
    family whose data sheet is nearest, then the GPU type's for all stacks, its family's, the stack's
    wherever it runs."""
    wanted = gpu_name(gpu)
    pairs = [(name, *name.partition("/")[::2]) for name in fitted]
    kinds = [stack, FITTED_AS.get(stack, stack)] if stack != POOLED else []
    for kind in dict.fromkeys([*kinds, ""]):
        mine = [(name, g) for name, g, s in pairs if s == kind and g != ANY]
        for same in (
            lambda g: g == wanted,
            lambda g: gpu_name(g) == wanted,
            lambda g: family(g) == family(wanted),
        ):
            if found := [(name, g) for name, g in mine if same(g)]:
                return min(found, key=lambda pair: _unlike(pair[1], wanted))[0]
    anywhere = [f"{ANY}/{kind}" for kind in dict.fromkeys(kinds)]
    names = [name for name, *_ in pairs]
    return next((name for name in anywhere if name in names), None)


def _unlike(gpu: str, other: str) -> float:
    """How far the data sheets of two GPU types are apart: sum of logarithms; 0 = not both known."""
    one, two = (GPU_PRESETS.get(gpu_name(name)) for name in (gpu, other))
    if one is None or two is None:
        return 0.0
    pairs = zip(dataclasses.astuple(one), dataclasses.astuple(two), strict=True)
    return sum(abs(math.log(a / b)) for a, b in pairs)


def load_calibration(path: str | Path, gpu: str, stack: str = POOLED) -> Calibration:
    """The calibration of one GPU type (or its family) from a file; see `load_beliefs`."""
    return default_calibration(gpu, stack, str(path))
