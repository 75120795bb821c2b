"""Efficiency parameters: what separates a data sheet from a measured step."""

from __future__ import annotations

import dataclasses
import importlib.resources
import math
from collections.abc import Mapping
from pathlib import Path

import jax.numpy as jnp
import yaml
from flax import struct
from jax import Array

from jaxsim.errors import InputError


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


def prior_calibration() -> Calibration:
    """Return the documented priors."""
    return Calibration(**{name: jnp.float32(prior.value) for name, prior in PRIORS.items()})


def default_calibration(gpu: str | None = None) -> Calibration:
    """Return the fit that ships for a GPU type; the priors where none does (or `gpu` is None)."""
    shipped = shipped_calibrations()
    return load_calibration(shipped[gpu]) if gpu in shipped else prior_calibration()


def shipped_calibrations() -> dict[str, Path]:
    """Fits that ship with the package, by the name of the GPU type in measured runs."""
    folder = importlib.resources.files("jaxsim.presets") / "calibrations"
    found = {}
    for file in sorted(Path(str(folder)).glob("*.yaml")):
        for name in yaml.safe_load(file.read_text())["gpus"]:
            found[name] = file
    return found


def load_calibration(path: str | Path) -> Calibration:
    """Load a calibration file; a parameter that it does not list stays at its prior.

    Raises InputError with one line that names the file, the key and the allowed values.
    """
    try:
        body = yaml.safe_load(Path(path).read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        line = str(error).replace("\n", " ")
        raise InputError(f"{path}: cannot be read as a calibration: {line}") from None
    if not isinstance(body, Mapping) or not isinstance(body.get("parameters"), Mapping):
        raise InputError(f"{path}: parameters: expected a mapping from parameter to its figures")
    values = {name: prior.value for name, prior in PRIORS.items()}
    for name, entry in body["parameters"].items():
        if name not in PRIORS:
            raise InputError(f"{path}: parameters.{name}: unknown; allowed: {', '.join(PRIORS)}")
        number = entry.get("value") if isinstance(entry, Mapping) else entry
        top = 1.0 if PRIORS[name].share else math.inf
        if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number < top:
            below = " and below 1" if PRIORS[name].share else ""
            raise InputError(
                f"{path}: parameters.{name}: expected a number above 0{below}, got {number!r}"
            )
        values[name] = float(number)
    return Calibration(**{name: jnp.float32(value) for name, value in values.items()})
