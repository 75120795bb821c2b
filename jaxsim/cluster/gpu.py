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
    """One accelerator; every field is a float32 scalar and may be traced."""

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
}
# Names under which published tables list the same part.
GPU_ALIASES = {"GH-96": "GH200-96GB", "H100": "H100-80GB", "A100": "A100-80GB"}


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
