"""Efficiency parameters: what separates a data sheet from a measured step."""

from __future__ import annotations

import dataclasses
import functools
import importlib.resources
import math
from collections.abc import Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import yaml
from flax import struct
from jax import Array

from jaxsim.files import InputError, load_yaml

Z95 = 1.959964


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


def _share(value: float, spread: float, about: str) -> Array:
    return struct.field(metadata={"prior": Prior(value, spread, True, about)})


def _positive(value: float, spread: float, about: str) -> Array:
    return struct.field(metadata={"prior": Prior(value, spread, False, about)})


# Sources of the prior values. Matrix products and collectives: Vidur's operator profiles and public
# nccl-tests logs (A100, H100). Attention: Dao 2023 (FlashAttention-2, 50-73 % of A100's peak).
# Element-wise bytes: counted from the layer of Korthikanti et al. 2022. Rings over TCP: DiLoCo and
# DDP over shaped links (0.9 and 1 / 1.25 of the measured bandwidth). Restart: Sailor (SOSP 2025),
# about 11 s at 16-20 GPUs. Everything else is an assumption, with a spread to match.
@struct.dataclass
class Calibration:
    """Scalars (float32, traced), one set per GPU type; each states its prior."""

    gemm_efficiency: Array = _share(
        0.90, 0.15, "[share] of peak FLOP/s that a large product reaches"
    )
    gemm_tail_tiles: Array = _positive(
        32.0, 0.3, "[tiles] 128 x 128 results that cost half the peak"
    )
    gemm_depth: Array = _positive(33.0, 0.3, "[elements] inner dimension that costs half the peak")
    batched_gemm_efficiency: Array = _share(0.45, 0.5, "[share] the same for unfused attention")
    flash_efficiency: Array = _share(
        0.60, 0.4, "[share] of peak FLOP/s of fused attention, forward"
    )
    memory_efficiency: Array = _share(0.85, 0.2, "[share] of HBM bandwidth")
    softmax_passes: Array = _positive(12.0, 0.4, "[values] moved per attention score, unfused")
    fallback_passes: Array = _positive(2.5, 0.5, "[factor] on them where no fused softmax exists")
    eager_passes: Array = _positive(2.0, 0.4, "[factor] on element-wise traffic without a compiler")
    kernel_s: Array = _positive(4e-6, 0.5, "[s] start and end of one kernel")
    launch_forward_s: Array = _positive(9e-4, 0.2, "[s] host work per layer, forward")
    launch_backward_s: Array = _positive(1.1e-3, 0.2, "[s] host work per layer, backward")
    fallback_launch_s: Array = _positive(4e-4, 0.7, "[s] added per layer and pass by the fallback")
    head_passes: Array = _positive(10.0, 0.5, "[values] of 4 bytes moved per logit")
    vocabulary_efficiency: Array = _share(
        0.45, 0.8, "[share] logits product on one GPU against sliced"
    )
    accumulation_passes: Array = _positive(
        0.3, 1.0, "[factor] on 8 bytes a parameter and micro-batch"
    )
    micro_batch_s: Array = _positive(1e-3, 1.0, "[s] host work per micro-batch and stage")
    step_fixed_s: Array = _positive(3e-3, 1.0, "[s] host work per step")
    optimizer_bytes: Array = _positive(24.0, 0.7, "[B] moved per parameter and optimizer step")
    fp32_speed: Array = _share(0.40, 0.5, "[share] of 16-bit peak in TF32")
    float8_speed: Array = _positive(
        1.5, 0.2, "[factor] on matrix products in 8 bits, casts included"
    )
    nvlink_efficiency: Array = _share(0.78, 0.25, "[share] of NVLink bandwidth in a collective")
    collective_alpha_s: Array = _positive(
        4e-5, 0.7, "[s] latency of a collective per doubling of ranks"
    )
    tensor_straggler: Array = _positive(
        0.02, 1.2, "[share] lost to waiting in tensor-parallel groups"
    )
    async_exposed: Array = _share(
        0.5, 0.8, "[share] of asynchronous tensor-parallel traffic exposed"
    )
    intra_efficiency: Array = _share(
        0.6, 0.5, "[share] of a node's network bandwidth in a collective"
    )
    data_parallel_efficiency: Array = _share(0.75, 0.5, "[share] of that rate in gradient sync")
    dp_overlap: Array = _share(
        0.3, 0.7, "[share] of the last backward pass that hides gradient sync"
    )
    gather_efficiency: Array = _share(
        0.5, 0.8, "[share] of the gradient ring's rate in gathering sharded weights"
    )
    shard_overlap: Array = _share(
        0.85, 0.7, "[share] of a pass that hides traffic of sharded weights"
    )
    hop_alpha_s: Array = _positive(4e-5, 1.0, "[s] latency between two stages of a domain")
    straggler: Array = _positive(0.01, 0.7, "[share] lost per doubling of nodes")
    wan_efficiency: Array = _share(0.90, 0.3, "[share] of a WAN link that point-to-point reaches")
    wan_ring_efficiency: Array = _share(0.80, 0.3, "[share] of a WAN link that a ring reaches")
    outer_sync_efficiency: Array = _positive(
        1.0, 0.2, "[factor] on a WAN link for one large outer sync (local SGD, DiLoCo)"
    )
    slow_link_gbps: Array = _positive(
        0.01, 0.5, "[Gbit/s] bandwidth at which a WAN ring has lost half of its rate"
    )
    sync_fixed_s: Array = _positive(0.3, 0.7, "[s] host work of a run's outer syncs, once")
    restart_s: Array = _positive(11.4, 0.5, "[s] stop, rebuild process groups, warm up")
    stored_scores: Array = _positive(5.0, 0.3, "[B] kept per attention score, 16-bit and unfused")
    stored_values: Array = _positive(1.0, 0.15, "[factor] on the published activation bytes")
    stored_logits: Array = _positive(1.0, 0.5, "[copies] of fp32 logits held at once")
    state_bytes: Array = _positive(
        18.0, 0.15, "[B] weights, gradients and Adam state of a parameter"
    )
    framework_gb: Array = _positive(2.0, 0.4, "[GB] CUDA context, NCCL, fragmentation")


PRIORS: dict[str, Prior] = {f.name: f.metadata["prior"] for f in dataclasses.fields(Calibration)}


SHIPPED = "calibrations.yaml"
ROUNDING = 1e-3  # of correlations in a file


@dataclasses.dataclass(frozen=True)
class Belief:
    """Gaussian over the parameters on their unbounded scales, in the order of PRIORS."""

    centre: np.ndarray  # [D]
    covariance: np.ndarray  # [D, D]

    @property
    def spread(self) -> np.ndarray:
        """[D] marginal standard deviations."""
        return np.sqrt(np.diag(self.covariance))

    def calibration(self, z: Array | None = None) -> Calibration:
        """Parameters at `z` [D] marginal deviations from the centre (None: at it); differentiable."""
        free = jnp.asarray(self.centre, jnp.float32)
        if z is not None:
            free = free + jnp.asarray(self.spread, jnp.float32) * z
        return from_free(free)

    def samples(self, n: int, seed: int) -> Calibration:
        """`n` draws, leaves [n]: carried through the simulator they give a prediction's interval."""
        draws = np.random.default_rng(seed).multivariate_normal(self.centre, self.covariance, n)
        return jax.vmap(from_free)(jnp.asarray(draws, jnp.float32))

    def interval(self, name: str) -> tuple[float, float]:
        """95 % interval of a parameter."""
        i = list(PRIORS).index(name)
        ends = [self.centre[i] + sign * Z95 * self.spread[i] for sign in (-1.0, 1.0)]
        return PRIORS[name].from_free(ends[0]), PRIORS[name].from_free(ends[1])


def from_free(free: Array) -> Calibration:
    """Calibration from [D] parameters on their unbounded scales."""
    return Calibration(
        **{
            name: jax.nn.sigmoid(free[i]) if prior.share else jnp.exp(free[i])
            for i, (name, prior) in enumerate(PRIORS.items())
        }
    )


def independent(centre: np.ndarray, spread: np.ndarray) -> Belief:
    """A belief whose parameters are independent; [D] each."""
    return Belief(np.asarray(centre, np.float64), np.diag(np.asarray(spread, np.float64) ** 2))


def prior_calibration() -> Calibration:
    """Return the documented priors."""
    return Calibration(**{name: jnp.float32(prior.value) for name, prior in PRIORS.items()})


def default_calibration(gpu: str | None = None) -> Calibration:
    """Return the fit that ships for a GPU type or its family; the priors where none does."""
    belief = shipped_belief(gpu)
    return prior_calibration() if belief is None else belief.calibration()


@functools.cache
def shipped_belief(gpu: str | None) -> Belief | None:
    """The shipped fit of a GPU type or, failing that, of its family (the name up to the dash)."""
    file = importlib.resources.files("jaxsim.presets") / SHIPPED
    if gpu is None or not file.is_file():
        return None
    return _of_gpu(load_beliefs(Path(str(file))), gpu)


def _of_gpu(beliefs: dict[str, Belief], gpu: str) -> Belief | None:
    family = [b for name, b in beliefs.items() if name.split("-")[0] == gpu.split("-")[0]]
    return beliefs.get(gpu, family[0] if family else None)


def load_beliefs(path: str | Path) -> dict[str, Belief]:
    """Load a calibration file: GPU type -> belief; a parameter that is not listed stays at its prior.

    Raises InputError with one line that names the file, the key and the allowed values.
    """
    try:
        body = load_yaml(Path(path).read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        line = " ".join(str(error).split())
        raise InputError(f"{path}: cannot be read as a calibration: {line}") from None
    entries = body.get("calibrations") if isinstance(body, Mapping) else None
    if not isinstance(entries, Mapping) or not entries:
        raise InputError(
            f"{path}: calibrations: expected a mapping from GPU type to its parameters"
        )
    return {
        str(gpu): _entry(entry, f"{path}: calibrations.{gpu}") for gpu, entry in entries.items()
    }


def _entry(entry: object, where: str) -> Belief:
    parameters = entry.get("parameters") if isinstance(entry, Mapping) else None
    if not isinstance(parameters, Mapping):
        raise InputError(f"{where}: parameters: expected a mapping from parameter to its figures")
    unknown = [name for name in parameters if name not in PRIORS]
    if unknown:
        raise InputError(f"{where}: parameters.{unknown[0]}: unknown; allowed: {', '.join(PRIORS)}")
    centre = np.array([p.to_free(p.value) for p in PRIORS.values()])
    spread = np.array([p.spread for p in PRIORS.values()])
    for i, (name, prior) in enumerate(PRIORS.items()):
        if name in parameters:
            figures = parameters[name]
            value = figures.get("value") if isinstance(figures, Mapping) else figures
            centre[i] = prior.to_free(_legal(value, prior, f"{where}: parameters.{name}"))
            if isinstance(figures, Mapping) and "spread" in figures:
                spread[i] = _legal(figures["spread"], None, f"{where}: parameters.{name}.spread")
    correlation = np.eye(len(PRIORS))
    rows = entry.get("correlation")
    if rows is not None:
        names = list(parameters)
        try:
            given = np.array(rows, np.float64).reshape(len(names), len(names))
        except (ValueError, TypeError):
            raise InputError(
                f"{where}: correlation: expected {len(names)} rows of as many"
            ) from None
        _check_correlation(given, f"{where}: correlation")
        places = [list(PRIORS).index(name) for name in names]
        correlation[np.ix_(places, places)] = given
    return Belief(centre, correlation * np.outer(spread, spread))


def _check_correlation(matrix: np.ndarray, where: str) -> None:
    """Raise InputError for what no random numbers have, beyond the rounding of a file."""
    if not np.all(np.abs(matrix) <= 1.0 + ROUNDING):
        worst = matrix.flat[np.argmax(np.where(np.isnan(matrix), np.inf, np.abs(matrix)))]
        raise InputError(f"{where}: expected numbers from -1 to 1, got {worst:g}")
    if np.any(np.abs(np.diag(matrix) - 1.0) > ROUNDING):
        raise InputError(f"{where}: expected ones on the diagonal")
    if np.any(np.abs(matrix - matrix.T) > ROUNDING):
        raise InputError(f"{where}: expected a symmetric matrix")
    least = np.linalg.eigvalsh(matrix).min()
    if least < -ROUNDING * len(matrix):
        raise InputError(
            f"{where}: expected a positive semi-definite matrix, its least eigenvalue is {least:.3g}"
        )


def _legal(number: object, prior: Prior | None, where: str) -> float:
    top = 1.0 if prior is not None and prior.share else math.inf
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number < top:
        below = "" if math.isinf(top) else " and below 1"
        raise InputError(f"{where}: expected a number above 0{below}, got {number!r}")
    return float(number)


def load_calibration(path: str | Path, gpu: str) -> Calibration:
    """The calibration of one GPU type (or its family) from a file; see `load_beliefs`."""
    beliefs = load_beliefs(path)
    belief = _of_gpu(beliefs, gpu)
    if belief is None:
        raise InputError(
            f"{path}: calibrations: none for {gpu}; the file has: {', '.join(beliefs)}"
        )
    return belief.calibration()
