"""A made-up machine: what `hippo microbench --json` would say of it if the simulator were right."""

import dataclasses

import jax.numpy as jnp

from experiments.calibrate.machine import FALLS, HELD, RISES, predict
from experiments.calibrate.microbench import ADAMW_BYTES, Bench, Step
from jaxsim.cluster import GpuSpec, prior_calibration
from jaxsim.step_time import flash_alone_s, gemm_alone_s
from jaxsim.workload import ModelConfig

MODELS = {
    "tiny": ModelConfig(4, 64, 4, 2, 176, 3, 256),
    "wide": ModelConfig(4, 256, 8, 4, 704, 3, 1024),
    "deep": ModelConfig(12, 96, 4, 4, 256, 3, 512),
}
SHEET = GpuSpec(peak_tflops=0.1, memory_gb=1e6, memory_gb_per_s=20.0, nvlink_gb_per_s=2.0)
RANKS, SHARE = 2, 0.55
PRODUCTS = [(128, 128, 128), (512, 512, 512), (1024, 1024, 1024), (32, 1024, 1024)]
ATTENTIONS = [(2, 4, 128, 32), (2, 4, 256, 64), (1, 8, 512, 64)]
SIZES = [2**n for n in range(16, 24)]
TRUE = {
    **{"gemm_efficiency": 0.9, "gemm_tail_tiles": 0.2, "gemm_depth": 20.0},
    **{"flash_efficiency": 0.5, "flash_width": 8.0, "flash_length": 100.0},
    **{"memory_efficiency": 0.6, "optimizer_bytes": 90.0, "eager_passes": 3.0},
    **{"kernel_s": 2e-5, "head_passes": 20.0, "step_fixed_s": 1e-3},
}
OF_RANKS = {"nvlink_efficiency": 0.5, "collective_alpha_s": 2e-4, "dp_overlap": 0.02}


def calibrations():
    """Number of ranks -> the made-up parameters."""
    alone = HELD | TRUE
    shared = alone | {k: alone[k] * SHARE for k in FALLS} | {k: alone[k] / SHARE for k in RISES}
    sets = {1: alone, RANKS: shared | OF_RANKS}
    base = prior_calibration()
    return {n: base.replace(**{k: jnp.float32(v) for k, v in x.items()}) for n, x in sets.items()}


def seconds_of_steps(steps):
    """What the simulator says of them; a step beside a message is one of data parallelism."""
    bench = Bench("made-up", 2, SHEET, *[None] * 3, 0.0, None, MODELS, 4, 128, tuple(steps))
    return predict(bench, steps, calibrations()).tolist()


def body():
    """The result of the made-up machine."""
    true, sheet = calibrations()[1], SHEET.to_arrays()
    m, n, k = (jnp.array(x, jnp.float32) for x in zip(*PRODUCTS, strict=True))
    batch, heads, seq, width = (jnp.array(x, jnp.float32) for x in zip(*ATTENTIONS, strict=True))
    products = gemm_alone_s(sheet, true, m, n, k, wide=True).tolist()
    attentions = flash_alone_s(sheet, true, batch * heads, seq, width, wide=True).tolist()
    rate = SHEET.memory_gb_per_s * TRUE["memory_efficiency"]
    copies = [(2.0 * mib * 2**20, 2e-9 * mib * 2**20 / rate + TRUE["kernel_s"]) for mib in (1, 64)]
    alone = [Step(name, 1, "none", 0.0, (0.0, 0.0)) for name in MODELS]
    talks = [
        Step(name, RANKS, talk, 0.0, (0.0, 0.0)) for name in MODELS for talk in ("none", "ddp")
    ]
    steps = [*alone, *talks]
    table = [
        (s.model, s.ranks, s.talk, t) for s, t in zip(steps, seconds_of_steps(steps), strict=True)
    ]
    table += [
        (s.model, s.ranks, "beside", t)
        for (*_, t), s in zip(table, steps, strict=True)
        if s.talk == "ddp"
    ]
    table += [(name, RANKS, "message", sum_s(4.0 * shape.params)) for name, shape in MODELS.items()]
    return {
        "device": "cpu",
        "cores": 2,
        "collective_models": [],
        "collectives": [
            {
                "collective": "all_reduce",
                "ranks": RANKS,
                "size_bytes": size,
                "median_s": sum_s(size),
            }
            for size in SIZES
        ],
        "gemm": [
            {"name": "x".join(map(str, size)) + " float32", "median_s": t}
            for size, t in zip(PRODUCTS, products, strict=True)
        ],
        "attention": [
            {"name": "x".join(map(str, size)) + " flash forward", "median_s": t}
            for size, t in zip(ATTENTIONS, attentions, strict=True)
        ],
        "copy": [{"name": "x", "median_s": t, "gb_per_s": 1e-9 * size / t} for size, t in copies],
        "optimizer": [
            {
                "name": "adamw loop",
                "median_s": 1e-3,
                "gb_per_s": ADAMW_BYTES * rate / TRUE["optimizer_bytes"],
            }
        ],
        "steps": [
            {"model": m, "ranks": n, "talk": talk, "median_s": t, "ci95_s": [0.9 * t, 1.1 * t]}
            for m, n, talk, t in table
        ],
        "models": {name: shape_of(shape) for name, shape in MODELS.items()},
        "batch": {"rows": 4, "length": 128},
    }


def shape_of(model):
    """A model in the words of `ddp_bench`."""
    own = dataclasses.asdict(model)
    named = {"width": "hidden", "hidden": "ffn"}
    same = ("layers", "heads", "kv_heads", "vocab")
    return {k: own[named.get(k, k)] for k in (*same, *named)}


def sum_s(size):
    """[s] of an all-reduce of `size` bytes over RANKS ranks: two passes."""
    rate = 1e9 * SHEET.nvlink_gb_per_s * OF_RANKS["nvlink_efficiency"]
    return 2.0 * OF_RANKS["collective_alpha_s"] + 2.0 * (RANKS - 1) / RANKS * size / rate
