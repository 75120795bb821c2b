"""Every reader of files: a good file for it, how it is read, and what holds of all that it accepts."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from agents.hi_ppo.checkpoint import load_checkpoint, policies, restore, save_checkpoint
from agents.hi_ppo.scheduler import PolicyParams
from analysis.records import RecordError, load
from ddp_bench import train_ddp
from ddp_bench.config import parse_settings
from ddp_bench.errors import ConfigError
from experiments.common.options import parse
from experiments.evaluate.config import EvaluateConfig
from experiments.evaluate.suites import load_suite, scene_configs
from experiments.train.config import TrainConfig
from jaxsim.calibration.measured import load_measured, run_arrays
from jaxsim.calibration.profiles import UnknownModel, load_profile
from jaxsim.calibration.shaped_links import COLUMNS, load_sync_runs
from jaxsim.cluster.cluster import load_cluster, parse_cluster
from jaxsim.cluster.efficiency import load_beliefs, prior_calibration
from jaxsim.cluster.grids import COST, LATENCY, THROUGHPUT, read_grid
from jaxsim.files import InputError
from jaxsim.load.jobs_drawn import TRACE_COLUMNS, JobMix, jobs_from_trace
from jaxsim.load.jobs_file import read_jobs
from jaxsim.load.local_jobs import read_load_trace
from jaxsim.network.fitted_links import KINDS, draw_links, load_link_processes, process_of_links
from jaxsim.network.replay import read_measurements, relative_movement
from jaxsim.network.trace import read_network_trace
from jaxsim.workload.workload import JobSpec, build_workload, load_model

LARGEST = 1e30  # float32 can still multiply by it


@dataclasses.dataclass(frozen=True)
class Reader:
    """What is tried on it.

    Attributes:
        file: name of its file
        good: content that it accepts
        read: path -> what it makes of the file; one that holds of it is checked on the way
        refuses: the one error it may raise
        share: of the inputs, relative to the other readers
    """

    file: str
    good: bytes
    read: Callable[[Path], Any]
    refuses: tuple[type[Exception], ...] = (InputError,)
    share: float = 1.0


def check_finite(value: Any, where: str = "") -> None:
    """Every number in a tree of whatever readers return is finite, and none is beyond LARGEST."""
    if isinstance(value, Mapping):
        for key, one in value.items():
            assert isinstance(key, str) and len(key) <= 200 and key.isprintable(), (where, key)
            check_finite(one, f"{where}.{key}")
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            check_finite(getattr(value, field.name), f"{where}.{field.name}")
    elif isinstance(value, int):
        assert abs(value) <= LARGEST, where
    elif isinstance(value, str):
        assert len(value) <= 10_000 and not any(c < " " and c not in "\t\n" for c in value), where
    elif isinstance(value, pd.DataFrame):
        check_finite({c: value[c].to_numpy() for c in value}, where)
    elif isinstance(value, list | tuple):
        for i, one in enumerate(value):
            check_finite(one, f"{where}[{i}]")
    elif value is not None and not callable(value) and not isinstance(value, Path):
        array = np.asarray(value)
        if array.dtype == object:
            check_finite(array.tolist(), where)
        elif array.dtype.kind in "fiu":
            assert np.isfinite(array).all() and (np.abs(array) <= LARGEST).all(), where
        else:
            assert array.dtype.kind in "bU", (where, array.dtype)


def everywhere_positive(*arrays: Any) -> None:
    for array in arrays:
        assert (np.asarray(array) > 0).all()


CLUSTER = b"""name: two
gpu: A100-80GB
domains:
- {name: east, gpus: 16, gpus_per_node: 8, usd_per_gpu_hour: 2.0}
- {name: west, gpus: 8, gpus_per_node: 4, usd_per_gpu_hour: 1.5}
intra_domain: {bandwidth_gbps: 400, rtt_ms: 0.05}
wan:
  bandwidth_gbps: [[0, 4.0], [2.0, 0]]
  rtt_ms: [[0, 60.0], [62.0, 0]]
  egress_usd_per_gb: [[0, 0.02], [0.08, 0]]
"""


def cluster(path: Path) -> Any:
    spec = load_cluster(path)
    arrays = spec.to_arrays()
    off = ~np.eye(spec.n_domains, dtype=bool)
    everywhere_positive(arrays.gpus, arrays.gpus_per_node, arrays.intra_gb_per_s)
    everywhere_positive(arrays.bandwidth_gb_per_s[off], *jax.tree.leaves(arrays.gpu))
    assert (np.asarray(arrays.gpus_per_node) <= np.asarray(arrays.gpus)).all()
    assert (arrays.rtt_s >= 0).all() and (arrays.egress_usd_per_gb >= 0).all()
    return spec, arrays


MODEL = b"""layers: 12
hidden: 768
heads: 12
kv_heads: 12
ffn: 3072
ffn_matrices: 2
vocab: 50257
tied_embeddings: true
"""


def model(path: Path) -> Any:
    shape = load_model(str(path))
    work = build_workload([JobSpec(shape, 2**20, 2**20)])
    everywhere_positive(work.layers, work.hidden, work.heads, work.ffn, work.vocab, work.gparams)
    everywhere_positive(work.useful_tflop, work.layer_gparams, work.boundary_gb, work.kv_gb)
    return shape, dataclasses.replace(work, step_budget=jnp.zeros(1))


CALIBRATION = b"""calibrations:
  A100-80GB:
    fitted_on: {korthikanti: 12}
    parameters:
      gemm_efficiency: {value: 0.98, ci95: [0.97, 0.99], spread: 0.14, told_by: {a: 0.3}}
      kernel_s: {value: 4.0e-6, spread: 0.5}
      straggler: 0.01
    correlation: [[1, 0.2, 0], [0.2, 1, 0.1], [0, 0.1, 1]]
  H100-80GB:
    parameters: {restart_s: 11.4}
"""


def calibration(path: Path) -> Any:
    beliefs = load_beliefs(path)
    for belief in beliefs.values():
        at_centre = belief.calibration()
        everywhere_positive(*jax.tree.leaves(at_centre), belief.spread)
        check_finite(at_centre)
        check_finite(belief.calibration(2.0 * jnp.ones(len(belief.centre))))
    return beliefs


LINKS = b"""interval_s: 60.0
source: two paths
kind: heavy
processes:
  uniform:
  - {path: a>b, weight: 65, uniform: {amplitude: 0.05}}
  ou:
  - {path: a>b, weight: 65, drift: {sigma: 0.1, tau_s: 3600}}
  heavy:
  - path: a>b
    weight: 89
    body: {centre: 1.0, dip_scale: 0.1, dip_tail: 0.1, peak_scale: 0.1, peak_tail: 0,
      white: 0.5, tau_s: 600}
    rtt: {dip_scale: 0.07, dip_tail: 0.1, peak_scale: 0.07, peak_tail: 0.1}
  outage:
  - path: a>b
    weight: 8
    body: {centre: 1.0, dip_scale: 0.1, dip_tail: 0.1, peak_scale: 0.1, peak_tail: 0,
      white: 0.5, tau_s: 600}
    outage: {level: 0.05, rtt: 1.5, share: 0.02, stay_s: 120}
"""


def links(path: Path) -> Any:
    file = load_link_processes(path)
    assert file.kind in file.processes and set(file.processes) <= set(KINDS)
    for kind in file.processes.values():
        rows = draw_links(kind, 3, np.random.default_rng(0))
        check_finite(vars(process_of_links(kind, rows, file.interval_s)))
    return file


SUITES = b"""defaults: &all {schedulers: random, model: llama-7b, scenario: {base_spread: 0.25}}
scenes:
  steady: {jitter: none, seeds: 4}
  drift: {<<: *all, jitter: ou, scenario: {load_share: 0.5, load_swing: 0.2}}
suites:
  both: [steady, drift]
"""


def suite(path: Path) -> Any:
    whole = load_suite(str(path))
    assert whole.scenes
    try:
        return list(scene_configs(whole, EvaluateConfig(), []).values())
    except InputError as error:  # which names the suite and the scene
        raise InputError(f"{path}: {error}") from None


TRAIN = b"""model: llama-7b
global_batch: 1024
seq: 4096
scenario:
  jitter: ou
  base_spread: 0.25
  white: [0.0, 0.1]
seeds: [0, 1, 2]
epochs: 30
weights: [1.0, 0, 0, 0]
train: {shaping: 0.5, upper: {learning_rate: 1.0e-3}}
"""
EVALUATE = b"""model: llama-7b
schedulers: random,hysteresis
weights: 1,0,0,0
jitter: ou
seeds: 4
steps: 30
scenario: {base_spread: 0.25, horizon: 60, interval_s: 60.0}
threshold_pct: 0.5
cluster: null
"""


def config(kind: type) -> Callable[[Path], Any]:
    def read(path: Path) -> Any:
        found = parse(kind, ["--config", str(path)], "fuzz")
        try:
            load_model(found.model)
            found.scenario.links()
        except InputError as error:  # which names another file, and the key
            raise InputError(f"{path}: {error}") from None
        return found

    return read


DDP = b"""mode: compare
arms: static,dynamic
dataset: synthetic
model: small
steps: 150
learning_rate: 1.0e-4
global_batch: 32
capacity_margin: 0.9
check_gradients: true
seed: 0
"""


def ddp(path: Path) -> Any:
    """The trainer shortens its refusals where it prints them."""
    with contextlib.redirect_stderr(io.StringIO()) as said, contextlib.redirect_stdout(said):
        status = train_ddp.main(["--config", str(path), "--validate_only"])
    if status:
        raise ConfigError(said.getvalue().rstrip("\n"))
    return parse_settings(["--config", str(path)])


TRACE = b"t_s,src,dst,factor\n" + b"".join(
    b"%d,east,west,0.%d\n%d,west,east,1.%d\n" % (60 * t, t + 1, 60 * t, t) for t in range(6)
)


def trace(path: Path) -> Any:
    factors = read_network_trace(path, parse_cluster(CLUSTER.decode(), "good"), 60.0)
    everywhere_positive(factors)
    return factors


LOAD = b"""arrival_s,domain,gpus,duration_s
0,east,4,600
60,,8,1200.5
3600,west,8,60
"""


def load_trace(path: Path) -> Any:
    held = read_load_trace(path, ("east", "west"), np.array([16, 8]), 60.0)
    assert (held >= 0).all() and (held <= np.array([16, 8]) + 1e-3).all()
    return held


JOBS = b"""arrival_s,model,global_batch,seq,tokens,data_gb,data_at
0.000,llama-7b,256,4096,31338471,200,east
917.637,llama-13b,256,4096,39362173,0,
2000,llama-7b,512,2048,1e9,10,east;west
"""


def submitted(jobs: Any) -> Any:
    work = build_workload([job.spec for job in jobs])
    everywhere_positive(work.global_batch, work.seq, work.step_budget, work.useful_tflop)
    assert (work.arrival_s >= 0).all()
    check_finite(work)
    return jobs


PHILLY = (
    ",".join(TRACE_COLUMNS).encode()
    + b"\n"
    + b"".join(
        b"v%d,%d,%d,ResNet-50,1000,%d\n" % (i % 2, 100 * i, 2**i, 600 * i + 60) for i in range(4)
    )
)


def drawn(path: Path) -> Any:
    return submitted(jobs_from_trace(path, 3, JobMix(), np.random.default_rng(0)))


MEASURED = b"""row_id,gpu,n_gpus,gpus_per_node,layers,hidden,heads,kv_heads,ffn,ffn_matrices,\
vocab,seq,tp,cp,pp,dp,zero_stage,interleave,micro_batch,global_batch,recompute,sequence_parallel,\
attention,precision,step_s,peak_memory_gib,source,note
a,A100-80GB,2,8,24,64,8,8,256,2,512,128,1,1,1,2,0,1,16,512,full,0,unfused,fp16,3.5,40,,param_opt_GiB 9
b,GH-96,64,4,30,3072,32,32,12288,2,51200,2048,2,1,2,16,1,2,16,512,none,1,flash,bf16,3.697,,x,
"""


def measured(path: Path) -> Any:
    runs, _ = load_measured(path)
    if runs:
        plans, works, clusters, _ = run_arrays(runs)
        check_finite([plans, clusters, dataclasses.replace(works, step_budget=jnp.zeros(1))])
        everywhere_positive(plans.batch_share, works.layers, clusters.gpus, clusters.gpus_per_node)
        assert all(r.step_s is None or 0 < np.float32(r.step_s) < 1e10 for r in runs)
    return runs


SYNCS = (
    ",".join(COLUMNS).encode()
    + b"""
a,diloco,10,4,0.5,105,30.8,4,12.5
b,ddp,1,4,0.1,105,30.8,4,125
c,localsgd,5,2,1,105,30.8,2,3
"""
)


def syncs(path: Path) -> Any:
    runs, _ = load_sync_runs(path)
    for run in runs:
        everywhere_positive(*(np.float32(getattr(run, n)) for n in ("gb", "sync_s", "steps")))
        assert run.world >= 2 and run.sync_period >= 1
    return runs


def grid_text(of: Any) -> bytes:
    head = ",".join(of.columns)
    rows = [
        f"{a},PREMIUM,{b},premium,{v}"
        for a, b, v in (("x", "y", 1.5), ("y", "x", 2), ("x", "y", 3))
    ]
    return "\n".join([head, *rows, "x,STANDARD,z,STANDARD,9", ""]).encode()


def grid(of: Any) -> Callable[[Path], Any]:
    def read(path: Path) -> Any:
        found = read_grid(path, of)
        matrix, notes = found.matrix(["x", "y"])
        assert (matrix >= 0).all()
        return matrix, notes, found.regions

    return read


MEASUREMENTS = b"path,unix_s,received_mbps\n" + b"".join(
    b"a>b,%d,%d\nb>a,%d,%d.5\n" % (60 * t, 100 + t, 60 * t, 90 - t) for t in range(7)
)


def measurements(path: Path) -> Any:
    frame = read_measurements(path)
    movement = relative_movement(frame, 60)
    for factors in movement.factors.values():
        everywhere_positive(factors)
    return frame, list(movement.factors.values())


LAYERS = json.dumps(
    {m: {t: {str(i): [0.003, 0.006, 5e-4] for i in range(3)} for t in "12"} for m in "24"}
).encode()
OPERATORS = (
    b"num_tensor_parallel_workers,num_tokens,n_embd,n_expanded_embd,n_head,n_kv_head,use_gated_mlp,"
    b"ms_attn_pre_proj,ms_attn_post_proj,ms_mlp_up_proj,ms_mlp_down_proj\n"
    + b"2,1024,4096,11008,32,8,True,1.0,2.0,3.0,4.0\n" * 4
    + b"1,2048,4096,11008,32,8,False,1.0,2.0,3.0,4.0\n" * 4
)
ALL_REDUCES = (
    b"num_workers,size,collective,devices_per_node,max_devices_per_node,ms_median\n"
    b"2,2000000,all_reduce,2,4,0.5\n4,4000000,all_reduce,4,4,1.5\n"
)
NCCL = (
    b"log,coll,ranks,bytes,time_us\n"
    b"run_N1_a,all_reduce_perf,8,2000000,500\nrun_N1_b,all_reduce_perf,4,4000000,900\n"
)


def profile(path: Path) -> Any:
    found = load_profile(path)
    if found is not None:
        everywhere_positive(found.measured_s)
        assert found.kind in ("operators", "layers", "collectives") and len(found.measured_s)
        predicted = np.asarray(found.predict(prior_calibration()))
        check_finite(predicted)
        everywhere_positive(predicted)
    return None if found is None else found.measured_s


def _tree() -> dict:
    weights = jnp.arange(12, dtype=jnp.float32).reshape(2, 3, 2) / 7.0
    upper = {"params": {"Dense_0": {"kernel": weights, "bias": weights[:, 0]}}}
    lower = {"params": {"prior_scale": jnp.array([0.1, 0.2], jnp.float32)}}
    return {"policy": PolicyParams(upper, lower), "epoch": jnp.array([4, 4], jnp.int32)}


def good_checkpoint(folder: Path) -> bytes:
    meta = {"hidden": 8, "every": 2, "seeds": [3, 5], "epoch": 4, "config": {"model": "toy"}}
    save_checkpoint(folder / "good.msgpack", _tree(), meta)
    return (folder / "good.msgpack").read_bytes()


def checkpoint(path: Path) -> Any:
    found = load_checkpoint(path)
    meta = found.meta
    assert 1 <= meta["hidden"] <= 4096 and meta["every"] >= 1 and len(set(meta["seeds"])) == 2
    assert len(policies(found)) == len(meta["seeds"])
    state = restore(found, jax.tree.map(jnp.zeros_like, _tree()))
    assert jax.tree.map(jnp.shape, state) == jax.tree.map(jnp.shape, _tree())
    return jax.tree.leaves(state)


RUN = b"""{
 "schema_version": 1, "run_id": "r", "kind": "evaluate", "status": "finished", "seed": [0, 1],
 "config": {"model": "llama-7b", "seeds": 4, "weights": [1.0, 0, 0, 0], "scenario": {"jitter": "ou"}}
}
"""


def run_folder(path: Path) -> Any:
    record = load(path.parent)
    assert record.run["schema_version"] == 1 and isinstance(record.run["config"], dict)
    json.dumps(record.run, allow_nan=False, ensure_ascii=False).encode()
    return None


TABLE = b"scheduler,epoch,regret\nrandom,0,1.5\nNA,1,\nhysteresis,2,3e-3\n"


def run_table(path: Path) -> Any:
    (path.parent / "run.json").write_bytes(RUN)
    record = load(path.parent)
    return None if record.table("metrics", ["scheduler"]).empty else record.tables()


def all_readers(folder: Path) -> dict[str, Reader]:
    """Name -> reader; `folder` is for making a checkpoint."""
    run = (RecordError,)
    profiles = (InputError, UnknownModel)
    return {
        "cluster": Reader("c.yaml", CLUSTER, cluster, share=2),
        "model": Reader("m.yaml", MODEL, model),
        "calibration": Reader("k.yaml", CALIBRATION, calibration, share=2),
        "fitted links": Reader("l.yaml", LINKS, links, share=2),
        "suites": Reader("s.yaml", SUITES, suite, share=1.5),
        "train config": Reader("t.yaml", TRAIN, config(TrainConfig), share=0.7),
        "evaluate config": Reader("e.yaml", EVALUATE, config(EvaluateConfig), share=0.7),
        "ddp config": Reader("d.yaml", DDP, ddp, (ConfigError,)),
        "trace": Reader("trace.csv", TRACE, trace),
        "load": Reader("load.csv", LOAD, load_trace),
        "jobs": Reader("jobs.csv", JOBS, lambda p: submitted(read_jobs(p))),
        "cluster jobs": Reader("philly.csv", PHILLY, drawn),
        "cluster jobs, packed": Reader("philly.csv.gz", gzip.compress(PHILLY), drawn, share=0.5),
        "measured runs": Reader("measured.csv", MEASURED, measured),
        "syncs": Reader("syncs.csv", SYNCS, syncs),
        "throughput grid": Reader("grid.csv", grid_text(THROUGHPUT), grid(THROUGHPUT), share=0.5),
        "latency grid": Reader("grid.csv", grid_text(LATENCY), grid(LATENCY), share=0.5),
        "cost grid": Reader("grid.csv", grid_text(COST), grid(COST), share=0.5),
        "measurements": Reader("paths.csv", MEASUREMENTS, measurements),
        "measurements, packed": Reader(
            "paths.csv.gz", gzip.compress(MEASUREMENTS), measurements, share=0.5
        ),
        "layer profile": Reader("profile_OPT-350_GH-96.json", LAYERS, profile, profiles),
        "operator profile": Reader("ops_a100_toy.csv", OPERATORS, profile, profiles, share=0.7),
        "all-reduce profile": Reader("h100_reduce.csv", ALL_REDUCES, profile, profiles, share=0.7),
        "nccl profile": Reader("nccl_h100.csv", NCCL, profile, profiles, share=0.7),
        "checkpoint": Reader("checkpoint.msgpack", good_checkpoint(folder), checkpoint, share=1.5),
        "run": Reader("run.json", RUN, run_folder, run),
        "run's table": Reader("metrics.csv", TABLE, run_table, run, share=0.5),
    }
