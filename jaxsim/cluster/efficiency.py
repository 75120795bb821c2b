"""Efficiency parameters: what separates a data sheet from a measured step."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array
from jaxtyping import Float

from jaxsim.files import InputError, listed, meant, one_line, read_yaml, values
from jaxsim.pytree import Pytree

Z95 = 1.959964

Parameter = Float[Array, "*batch"]


@dataclasses.dataclass(frozen=True)
class Prior:
    """What is believed of a parameter before any run was measured.

    `spread` is a standard deviation on the scale where the parameter is unbounded: the logit of a
    share (0 < x < 1), the logarithm of any other positive quantity.
    """

    value: float
    spread: float
    share: bool
    about: str

    def to_free(self, value: float) -> float:
        """The parameter on its unbounded scale."""
        return math.log(value / (1.0 - value)) if self.share else math.log(value)

    def from_free(self, free: float) -> float:
        """The inverse of `to_free`."""
        return 1.0 / (1.0 + math.exp(-free)) if self.share else math.exp(free)

    @property
    def unit(self) -> str:
        """The unit that opens the description, without its brackets."""
        return self.about[1 : self.about.index("]")]


def _share(value: float, spread: float, about: str) -> Any:
    return struct.field(metadata={"prior": Prior(value, spread, True, about)})


def _positive(value: float, spread: float, about: str) -> Any:
    return struct.field(metadata={"prior": Prior(value, spread, False, about)})


# Sources of the prior values. Matrix products and collectives: Vidur's operator profiles and public
# nccl-tests logs (A100, H100). Attention: Dao 2023 (FlashAttention-2, 50-73 % of A100's peak).
# Element-wise bytes: counted from the layer of Korthikanti et al. 2022. Rings over TCP: DiLoCo and
# DDP over shaped links (0.9 and 1 / 1.25 of the measured bandwidth). Restart: Sailor (SOSP 2025),
# about 11 s at 16-20 GPUs. Everything else is an assumption, with a spread to match.
class Calibration(Pytree):
    """Scalars (float32, traced), one set per GPU type, [K] where domains have different types
    (`jaxsim.cluster.sites`); each states its prior."""

    gemm_efficiency: Parameter = _share(
        0.90, 0.15, "[share] of peak FLOP/s that a large product reaches"
    )
    gemm_tail_tiles: Parameter = _positive(
        32.0, 0.3, "[tiles] 128 x 128 results that cost half the peak"
    )
    gemm_depth: Parameter = _positive(
        33.0, 0.3, "[elements] inner dimension that costs half the peak"
    )
    batched_gemm_efficiency: Parameter = _share(0.45, 0.5, "[share] the same for unfused attention")
    flash_efficiency: Parameter = _share(
        0.60, 0.4, "[share] of peak FLOP/s of fused attention, forward"
    )
    flash_width: Parameter = _positive(
        16.0, 0.5, "[elements] head width at which fused attention has lost half of that"
    )
    flash_length: Parameter = _positive(
        250.0, 0.5, "[tokens] sequence at which fused attention has lost half of that"
    )
    memory_efficiency: Parameter = _share(0.85, 0.2, "[share] of HBM bandwidth")
    softmax_passes: Parameter = _positive(12.0, 0.4, "[values] moved per attention score, unfused")
    fallback_passes: Parameter = _positive(
        2.5, 0.5, "[factor] on them where no fused softmax exists"
    )
    eager_passes: Parameter = _positive(
        2.0, 0.4, "[factor] on element-wise traffic without a compiler"
    )
    kernel_s: Parameter = _positive(4e-6, 0.5, "[s] start and end of one kernel")
    launch_forward_s: Parameter = _positive(9e-4, 0.2, "[s] host work per layer, forward")
    launch_backward_s: Parameter = _positive(1.1e-3, 0.2, "[s] host work per layer, backward")
    fallback_launch_s: Parameter = _positive(
        4e-4, 0.7, "[s] added per layer and pass by the fallback"
    )
    head_passes: Parameter = _positive(10.0, 0.5, "[values] of 4 bytes moved per logit")
    vocabulary_efficiency: Parameter = _share(
        0.45, 0.8, "[share] logits product on one GPU against others"
    )
    accumulation_passes: Parameter = _positive(
        0.3, 1.0, "[factor] on 8 bytes a parameter and micro-batch"
    )
    micro_batch_s: Parameter = _positive(1e-3, 1.0, "[s] host work per micro-batch and stage")
    step_fixed_s: Parameter = _positive(3e-3, 1.0, "[s] host work per step")
    optimizer_bytes: Parameter = _positive(24.0, 0.7, "[B] moved per parameter and optimizer step")
    fp32_speed: Parameter = _share(0.40, 0.5, "[share] of 16-bit peak in TF32")
    float8_speed: Parameter = _positive(
        1.5, 0.2, "[factor] on matrix products in 8 bits, casts included"
    )
    nvlink_efficiency: Parameter = _share(0.78, 0.25, "[share] of NVLink bandwidth in a collective")
    collective_alpha_s: Parameter = _positive(
        4e-5, 0.7, "[s] latency of a collective per doubling of ranks"
    )
    tensor_straggler: Parameter = _positive(
        0.02, 1.2, "[share] lost to waiting in tensor-parallel groups"
    )
    async_exposed: Parameter = _share(
        0.5, 0.8, "[share] of asynchronous tensor-parallel traffic exposed"
    )
    intra_efficiency: Parameter = _share(
        0.6, 0.5, "[share] of a node's network bandwidth in a collective"
    )
    data_parallel_efficiency: Parameter = _share(0.75, 0.5, "[share] of that rate in gradient sync")
    dp_overlap: Parameter = _share(
        0.3, 0.7, "[share] of the last backward pass that hides gradient sync"
    )
    gather_efficiency: Parameter = _share(
        0.5, 0.8, "[share] of the gradient ring's rate in gathering sharded weights"
    )
    shard_overlap: Parameter = _share(
        0.6, 0.7, "[share] of the lesser that traffic of sharded weights and a pass hide"
    )
    hop_alpha_s: Parameter = _positive(4e-5, 1.0, "[s] latency between two stages of a domain")
    straggler: Parameter = _positive(0.01, 0.7, "[share] lost per doubling of nodes")
    wan_efficiency: Parameter = _share(
        0.90, 0.3, "[share] of a WAN link that point-to-point reaches"
    )
    wan_ring_efficiency: Parameter = _share(0.80, 0.3, "[share] of a WAN link that a ring reaches")
    outer_sync_efficiency: Parameter = _positive(
        1.0, 0.2, "[factor] on a WAN link for one large outer sync (local SGD, DiLoCo)"
    )
    slow_link_gbps: Parameter = _positive(
        0.01, 0.5, "[Gbit/s] bandwidth at which a WAN ring has lost half of its rate"
    )
    sync_fixed_s: Parameter = _positive(0.3, 0.7, "[s] host work of a run's outer syncs, once")
    restart_s: Parameter = _positive(11.4, 0.5, "[s] stop, rebuild process groups, warm up")
    stored_scores: Parameter = _positive(
        5.0, 0.3, "[B] kept per attention score, 16-bit and unfused"
    )
    stored_values: Parameter = _positive(1.0, 0.15, "[factor] on the published activation bytes")
    stored_logits: Parameter = _positive(1.0, 0.5, "[copies] of fp32 logits held at once")
    state_bytes: Parameter = _positive(
        18.0, 0.15, "[B] weights, gradients and Adam state of a parameter"
    )
    framework_gb: Parameter = _positive(2.0, 0.4, "[GB] CUDA context, NCCL, fragmentation")


PRIORS: dict[str, Prior] = {f.name: f.metadata["prior"] for f in dataclasses.fields(Calibration)}


ROUNDING = 1e-3  # of correlations in a file
OF_A_FIT = ("fitted_on", "correlation", "band", "domain")  # beside its parameters
FIGURES = ("value", "ci95", "spread", "identified", "told_by")  # of a parameter in a file
# What a file may hold: within these, float32 holds the parameter and its inverse.
SHARES, AMOUNTS, SPREADS = (1e-6, 1.0 - 1e-6), (1e-12, 1e12), (1e-6, 5.0)


@dataclasses.dataclass(frozen=True)
class Belief:
    """Gaussian over the parameters on their unbounded scales, in the order of PRIORS."""

    centre: np.ndarray  # [D]
    covariance: np.ndarray  # [D, D]

    @property
    def spread(self) -> Float[np.ndarray, " D"]:
        """[D] marginal standard deviations."""
        return np.sqrt(np.diag(self.covariance))

    def calibration(self, z: Float[Array, " D"] | None = None) -> Calibration:
        """Parameters at `z` [D] marginal deviations from the centre (None: at it); differentiable."""
        free = jnp.asarray(self.centre, jnp.float32)
        if z is not None:
            free = free + jnp.asarray(self.spread, jnp.float32) * z
        return from_free(free)

    def samples(self, n: int, seed: int) -> Calibration:
        """`n` draws, leaves [n]: carried through the simulator they give a prediction's interval."""
        draws = np.random.default_rng(seed).multivariate_normal(self.centre, self.covariance, n)
        return _from_each(jnp.asarray(draws, jnp.float32))

    def interval(self, name: str) -> tuple[float, float]:
        """95 % interval of a parameter."""
        i = list(PRIORS).index(name)
        ends = [self.centre[i] + sign * Z95 * self.spread[i] for sign in (-1.0, 1.0)]
        return PRIORS[name].from_free(ends[0]), PRIORS[name].from_free(ends[1])


def from_free(free: Float[Array, " D"]) -> Calibration:
    """Calibration from [D] parameters on their unbounded scales."""
    return Calibration(
        **{
            name: jax.nn.sigmoid(free[i]) if prior.share else jnp.exp(free[i])
            for i, (name, prior) in enumerate(PRIORS.items())
        }
    )


_from_each = jax.jit(jax.vmap(from_free))


def independent(centre: Float[np.ndarray, " D"], spread: Float[np.ndarray, " D"]) -> Belief:
    """A belief whose parameters are independent; [D] each."""
    return Belief(np.asarray(centre, np.float64), np.diag(np.asarray(spread, np.float64) ** 2))


def prior_calibration() -> Calibration:
    """Return the documented priors."""
    return Calibration(**{name: jnp.float32(prior.value) for name, prior in PRIORS.items()})


def prior_belief() -> Belief:
    """The documented priors as a belief."""
    priors = PRIORS.values()
    centre = np.array([p.to_free(p.value) for p in priors])
    return independent(centre, np.array([p.spread for p in priors]))


def load_beliefs(path: str | Path) -> dict[str, Belief]:
    """Load a calibration file: GPU type -> belief; a parameter that is not listed stays at its prior.

    Raises InputError with one line that names the file, the key and the allowed values.
    """
    return parse_beliefs(read_entries(path), path)


def parse_beliefs(entries: Mapping[str, Any], path: str | Path) -> dict[str, Belief]:
    """The beliefs of what `read_entries` found; `path` is what error lines name."""
    return {gpu: _entry(entry, f"{path}: calibrations.{gpu}") for gpu, entry in entries.items()}


def read_entries(path: str | Path) -> dict[str, Any]:
    """What a calibration file says of each fit, unchecked: `GPU`, `GPU/STACK` or `any/STACK` -> it."""
    body = read_yaml(path, "a calibration")
    what = "GPU type to its parameters"
    if isinstance(body, Mapping) and "calibrations" in body:
        values.mapping(body, f"{path}: the file", ("calibrations",), ("left_out", "left_out_bias"))
    body = body.get("calibrations") if isinstance(body, Mapping) else None
    entries = values.names(body, f"{path}: calibrations", what)
    return {str(name): entry for name, entry in entries.items()}


def _entry(entry: Any, where: str) -> Belief:
    parameters = entry.get("parameters") if isinstance(entry, Mapping) else None
    if not isinstance(parameters, Mapping):
        raise InputError(f"{where}: parameters: expected a mapping from parameter to its figures")
    values.mapping(entry, where, ("parameters",), OF_A_FIT)
    for name in parameters:
        if name not in PRIORS:
            near, allowed = meant(name, PRIORS), listed(PRIORS)
            key = one_line(str(name), 60)
            raise InputError(f"{where}: parameters.{key}: unknown{near}; allowed: {allowed}")
    centre = np.array([p.to_free(p.value) for p in PRIORS.values()])
    spread = np.array([p.spread for p in PRIORS.values()])
    if "domain" in entry:  # of what was measured, a parameter that is not listed was held
        spread = np.full(len(PRIORS), SPREADS[0])
    for i, (name, prior) in enumerate(PRIORS.items()):
        if name in parameters:
            place, figures = f"{where}: parameters.{name}", parameters[name]
            if isinstance(figures, Mapping):
                values.mapping(figures, place, may=FIGURES)
                if "spread" in figures:
                    spread[i] = _legal(figures["spread"], SPREADS, f"{place}.spread")
                figures = figures.get("value")
            centre[i] = prior.to_free(_legal(figures, SHARES if prior.share else AMOUNTS, place))
    correlation = np.eye(len(PRIORS))
    if entry.get("correlation") is not None:
        given = _matrix(entry["correlation"], len(parameters), f"{where}: correlation")
        places = [list(PRIORS).index(name) for name in parameters]
        correlation[np.ix_(places, places)] = given
    return Belief(centre, correlation * np.outer(spread, spread))


def _matrix(rows: Any, size: int, where: str) -> np.ndarray:
    shaped = isinstance(rows, list) and len(rows) == size
    shaped = shaped and all(isinstance(row, list) and len(row) == size for row in rows)
    flat = [x for row in rows for x in row] if shaped else [None]
    if any(isinstance(x, bool) or not isinstance(x, int | float) for x in flat):
        raise InputError(f"{where}: expected {size} rows of as many")
    words = "numbers from -1 to 1"
    most = 1.0 + ROUNDING
    given = [[values.number(x, where, -most, most, words) for x in row] for row in rows]
    matrix = np.array(given, np.float64)
    _check_correlation(matrix, where)
    return matrix


def _check_correlation(matrix: np.ndarray, where: str) -> None:
    """Raise InputError for what no random numbers have, beyond the rounding of a file."""
    if np.any(np.abs(np.diag(matrix) - 1.0) > ROUNDING):
        raise InputError(f"{where}: expected ones on the diagonal")
    if np.any(np.abs(matrix - matrix.T) > ROUNDING):
        raise InputError(f"{where}: expected a symmetric matrix")
    least = np.linalg.eigvalsh(matrix).min()
    if least < -ROUNDING * len(matrix):
        raise InputError(
            f"{where}: expected a positive semi-definite matrix, its least eigenvalue is {least:.3g}"
        )


def _legal(value: Any, limits: tuple[float, float], where: str) -> float:
    """A number above 0 that float32 can hold; of a share, below 1."""
    low, high = limits
    below = " and below 1" if limits == SHARES else ""
    top = 1.0 if limits == SHARES else math.inf
    # For a number that is only too extreme the message gives limits, else the kind of value.
    kind = isinstance(value, int | float) and not isinstance(value, bool)
    extreme = kind and 0 < value < top
    words = f"a number from {low:g} to {high:g}" if extreme else f"a number above 0{below}"
    return values.number(value, where, low, high, words)
