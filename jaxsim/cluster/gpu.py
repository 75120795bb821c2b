"""GPU presets: what one accelerator can do, from vendor data sheets."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from jaxsim.files import InputError, listed, meant, shown, values
from jaxsim.pytree import Pytree

SMALLEST_FIGURE = 1e-6  # of a GPU, whatever its unit: float32 divides by it


class Gpu(Pytree):
    """One accelerator; every field is a float32 scalar, [K] where domains differ, and may be traced."""

    peak_tflops: Float[Array, "*batch"]  # [TFLOP/s] dense bf16
    memory_gb: Float[Array, "*batch"]  # [GB] = 1e9 bytes
    memory_gb_per_s: Float[Array, "*batch"]  # [GB/s] HBM
    nvlink_gb_per_s: Float[Array, "*batch"]  # [GB/s] per direction, inside a node


@dataclasses.dataclass(frozen=True)
class GpuSpec:
    """The same figures on the host, as a user writes them."""

    peak_tflops: float
    memory_gb: float
    memory_gb_per_s: float
    nvlink_gb_per_s: float

    def to_arrays(self) -> Gpu:
        """Return the pytree that the simulator computes with."""
        return Gpu(**{k: jnp.float32(v) for k, v in dataclasses.asdict(self).items()})


# Sources: NVIDIA data sheets (A100 2021, H100 2023, GH200 2023, V100 2020); NVLink is half of the
# advertised bidirectional figure. 80 GiB = 85.9 GB.
GPU_PRESETS: dict[str, GpuSpec] = {
    "V100-32GB": GpuSpec(125.0, 34.36, 900.0, 150.0),
    "A100-40GB": GpuSpec(312.0, 42.95, 1555.0, 300.0),
    "A100-80GB": GpuSpec(312.0, 85.90, 2039.0, 300.0),
    "H100-80GB": GpuSpec(989.4, 85.90, 3352.0, 450.0),
    "GH200-96GB": GpuSpec(989.4, 103.08, 4000.0, 450.0),
    # Meta's part with HBM2e, limited to 500 W (torchtitan's published benchmarks).
    "H100-96GB-500W": GpuSpec(989.4, 103.08, 2400.0, 450.0),
    # A100 for export: NVLink at 400 of 600 GB/s (NVIDIA 2022).
    "A800-80GB": GpuSpec(312.0, 85.90, 2039.0, 200.0),
    # NVIDIA H200 data sheet 2023; DGX B200 data sheet 2024 (72 PFLOP/s sparse FP8 over eight, dense
    # bf16 a quarter; 1,440 GB, 64 TB/s); L40S data sheet 2023 (no NVLink: PCIe 4.0 x16).
    "H200-141GB": GpuSpec(989.4, 141.0, 4800.0, 450.0),
    "B200-180GB": GpuSpec(2250.0, 180.0, 8000.0, 900.0),
    "L40S-48GB": GpuSpec(362.1, 48.0, 864.0, 32.0),
    # AMD Instinct MI300X data sheet 2023: 1,307 TFLOP/s dense bf16; seven links of 64 GB/s.
    "MI300X-192GB": GpuSpec(1307.4, 192.0, 5300.0, 448.0),
}
# Names under which published tables list the same part.
GPU_ALIASES = {"GH-96": "GH200-96GB", "H100": "H100-80GB", "A100": "A100-80GB"}
GPU_ALIASES |= {"H200": "H200-141GB", "B200": "B200-180GB", "L40S": "L40S-48GB"}
GPU_ALIASES |= {"MI300X": "MI300X-192GB"}
# Networks of one node, (Gbit/s per direction, round trip [ms]). Bandwidths as their makers state them:
# eight HDR or NDR InfiniBand ports (DGX A100 and H100 data sheets), eight 200 Gbit/s RoCE ports
# (llm-foundry's A100 clusters), EFA of AWS p4d and p5, eight 200 Gbit/s ports of GCP A3, four
# Slingshot-11 ports (Alps). Round trips are rounded from microbenchmarks of each kind (assumptions).
FABRICS: dict[str, tuple[float, float]] = {
    "infiniband-hdr-x8": (1600.0, 0.004),
    "infiniband-ndr-x8": (3200.0, 0.004),
    "roce-200g-x8": (1600.0, 0.008),
    "efa-p4d": (400.0, 0.03),
    "efa-p5": (3200.0, 0.03),
    "gcp-a3": (1600.0, 0.04),
    "slingshot-11-x4": (800.0, 0.005),
    "ethernet-100g": (100.0, 0.05),
}


def gpu_spec(value: str | Mapping, source: str) -> GpuSpec:
    """Resolve the `gpu` key of a cluster file: a preset's name or a mapping of its figures.

    Raises InputError that names `source`, the key and the allowed values.
    """
    if isinstance(value, str):
        if gpu_name(value) not in GPU_PRESETS:
            known = (*GPU_PRESETS, *GPU_ALIASES)
            near = meant(value, known)
            presets = listed(GPU_PRESETS)
            raise InputError(f"{source}: gpu: unknown {shown(value)}{near}; known: {presets}")
        return GPU_PRESETS[gpu_name(value)]
    fields = [f.name for f in dataclasses.fields(GpuSpec)]
    if not isinstance(value, Mapping) or set(value) != set(fields):
        raise InputError(f"{source}: gpu: expected a preset or a mapping with {', '.join(fields)}")
    words = f"a number > 0 (at least {SMALLEST_FIGURE:g}) and at most {values.LARGEST:g}"
    figures = {
        key: values.number(value[key], f"{source}: gpu.{key}", SMALLEST_FIGURE, allowed=words)
        for key in fields
    }
    return GpuSpec(**figures)


def gpu_name(value: str) -> str:
    """The name of a GPU type in GPU_PRESETS, from that name or an alias of it."""
    return GPU_ALIASES.get(value, value)
