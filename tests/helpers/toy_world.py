"""Small worlds with round numbers, made by hand: what the tests of jaxsim and agents compute with.

Two real domains of four GPUs each, or four of eight; efficiencies all different, so that a test
notices when one stands where another should.
"""

import jax
import jax.numpy as jnp
import numpy as np

from jaxsim.cluster.cluster import ClusterSpec
from jaxsim.cluster.efficiency import Calibration
from jaxsim.env.env import reset, step
from jaxsim.env.types import EnvParams
from jaxsim.load.local_jobs import load_process
from jaxsim.network.process import network_process
from jaxsim.plan import Problem
from jaxsim.plan.plan import Plan, default_lower_choices, empty_plan
from jaxsim.planning.table import PlanTable
from jaxsim.scenario import World
from jaxsim.step_time.closed_form import NetworkView, job_step_cost
from jaxsim.trees import stack
from jaxsim.workload.workload import JobSpec, ModelConfig, build_workload

GPU = {"peak_tflops": 100.0, "memory_gb": 80.0, "memory_gb_per_s": 2000.0, "nvlink_gb_per_s": 100.0}
MODEL = ModelConfig(
    layers=8, hidden=1024, heads=16, kv_heads=8, ffn=4096, ffn_matrices=3, vocab=32000
)
JOB = JobSpec(MODEL, global_batch=32, seq=1024)


# Every parameter apart from its prior, and no two alike.
EFFICIENCIES = {
    "gemm_efficiency": 0.5,
    "gemm_tail_tiles": 24.0,
    "gemm_depth": 40.0,
    "batched_gemm_efficiency": 0.35,
    "flash_efficiency": 0.25,
    "flash_width": 14.0,
    "flash_length": 210.0,
    "memory_efficiency": 0.8,
    "softmax_passes": 11.0,
    "fallback_passes": 2.6,
    "eager_passes": 1.9,
    "kernel_s": 3e-6,
    "launch_forward_s": 1e-4,
    "launch_backward_s": 1.3e-4,
    "fallback_launch_s": 7e-5,
    "head_passes": 9.0,
    "vocabulary_efficiency": 0.46,
    "accumulation_passes": 0.31,
    "micro_batch_s": 2e-4,
    "step_fixed_s": 5e-4,
    "optimizer_bytes": 22.0,
    "fp32_speed": 0.42,
    "float8_speed": 1.6,
    "nvlink_efficiency": 0.75,
    "collective_alpha_s": 1e-5,
    "tensor_straggler": 0.03,
    "async_exposed": 0.55,
    "intra_efficiency": 0.6,
    "data_parallel_efficiency": 0.65,
    "dp_overlap": 0.2,
    "shard_overlap": 0.15,
    "gather_efficiency": 0.66,
    "hop_alpha_s": 4e-5,
    "straggler": 0.02,
    "wan_efficiency": 0.9,
    "wan_ring_efficiency": 0.7,
    "outer_sync_efficiency": 0.95,
    "slow_link_gbps": 0.012,
    "sync_fixed_s": 0.33,
    "restart_s": 10.0,
    "stored_scores": 4.8,
    "stored_values": 1.05,
    "stored_logits": 1.2,
    "state_bytes": 17.0,
    "framework_gb": 1.1,
}


def calibration(**changes):
    """EFFICIENCIES as the simulator takes them, with changes."""
    return Calibration(**{k: jnp.float32(v) for k, v in {**EFFICIENCIES, **changes}.items()})


def cluster_spec(n_domains=2, gpus=4, gbps=8.0, rtt_ms=40.0, gpu=None):
    """Domains alike; links differ a little, so that a transposed matrix does not go unnoticed."""
    i, j = np.indices((n_domains, n_domains))
    apart = i != j
    return ClusterSpec(
        name="toy",
        gpu=GPU if gpu is None else gpu,
        domains=tuple("abcdefgh"[:n_domains]),
        gpus=(gpus,) * n_domains,
        gpus_per_node=(gpus,) * n_domains,
        usd_per_gpu_hour=tuple(1.0 + 0.5 * k for k in range(n_domains)),
        intra_bandwidth_gbps=80.0,
        intra_rtt_ms=0.1,
        bandwidth_gbps=np.where(apart, gbps * (1 + 0.1 * i + 0.05 * j), 0.0),
        rtt_ms=np.where(apart, rtt_ms * (1 + 0.1 * (i + j)), 0.0),
        egress_usd_per_gb=np.where(apart, 0.01 * (1 + i + 2 * j), 0.0),
    )


def make_plan(groups, layers, shares, n_domains=2, **fields):
    """A plan from groups of domains in pipeline order, e.g. ([(0, 1)], [(3, 5)], [4]).

    Fields are given per group or per domain as the plan has them; a number fills the used entries.
    """
    splits = [(held, [1] * len(held)) for held in layers]
    plan = Plan.assemble(groups, 1, [1] * len(groups), splits, n_domains)
    values = {k: getattr(plan, k) for k in Plan.__dataclass_fields__}
    values["batch_share"][: len(shares)] = shares
    for name, value in fields.items():
        values[name] = np.broadcast_to(np.asarray(value, np.int32), values[name].shape)
    return Plan(**{k: jnp.asarray(v, jnp.int32) for k, v in values.items()})


def pad_plan(plan, n_domains):
    """The same plan on a padded cluster (one job)."""
    empty = empty_plan(n_domains)

    def grow(value, filler):
        filler = np.array(filler)
        if filler.ndim:
            filler[: value.shape[0]] = np.asarray(value)
            return jnp.asarray(filler)
        return value

    return jax.tree.map(grow, plan, empty)


def lead(tree):
    """Give every leaf a leading axis of one."""
    return jax.tree.map(lambda x: jnp.asarray(x)[None], tree)


def base_view(cluster):
    """The cluster's own links, all GPUs free."""
    return NetworkView(cluster.bandwidth_gb_per_s, cluster.rtt_s, cluster.gpus)


@jax.jit
def cost_of(plan, work, cluster, efficiency, view):
    """`job_step_cost` of a complete plan."""
    return job_step_cost(plan, Problem(work, cluster, efficiency), view)


def env_params(
    spec,
    job,
    plan,
    pad_domains=None,
    pad_jobs=1,
    network=None,
    load=None,
    efficiency=None,
    **changes,
):
    """One scenario; `plan` (no job axis) is in force at reset, padded jobs are idle."""
    cluster = spec.to_arrays(pad_domains)
    k = cluster.mask.shape[0]
    plans = [pad_plan(plan, k)] + [jax.tree.map(jnp.asarray, empty_plan(k))] * (pad_jobs - 1)
    values = {
        "problem": Problem(
            build_workload([job], pad_to=pad_jobs),
            cluster,
            efficiency or calibration(),
            default_lower_choices(),
        ),
        "network": network_process(k, **(network or {})),
        "load": load_process(k, **(load or {})),
        "initial_plan": stack(plans),
        "progress_ref": jnp.full((pad_jobs,), 100.0, jnp.float32),
        "weights": jnp.array([1.0, 0.0, 0.0, 0.0], jnp.float32),
        "interval_s": jnp.float32(60.0),
        "horizon": jnp.int32(8),
    }
    return EnvParams(**{**values, **changes})


@jax.jit
def play(params, key, actions):
    """Play actions [T, J, ...]; returns the states and time steps, leaves [T, ...]."""
    state, _ = reset(key, params)

    def body(state, action):
        state, timestep = step(key, state, action, params)
        return state, (state, timestep)

    _, out = jax.lax.scan(body, state, actions)
    return out


def two_sites_yaml(there_gbps: float, back_gbps: float) -> str:
    """A cluster file: north and south, one node of 4 A100 each."""
    return f"""
name: two-sites
gpu: A100-80GB
domains:
  - {{name: north, gpus: 4, gpus_per_node: 4, usd_per_gpu_hour: 2.0}}
  - {{name: south, gpus: 4, gpus_per_node: 4, usd_per_gpu_hour: 2.0}}
intra_domain: {{bandwidth_gbps: 400, rtt_ms: 0.05}}
wan:
  bandwidth_gbps: [[0, {there_gbps}], [{back_gbps}, 0]]
  rtt_ms: [[0, 30], [30, 0]]
  egress_usd_per_gb: [[0, 0.02], [0.02, 0]]
"""


def one_job_world(*plans):
    """JOB on the toy cluster, with these plans as its table."""
    plans = stack(plans)
    yes = jnp.ones(plans.dp.shape[0], bool)
    table = PlanTable(plans, yes, jnp.ones(len(yes), jnp.float32), yes, ~yes)
    parts = (build_workload([JOB]), cluster_spec().to_arrays(), calibration())
    return World(Problem(*parts, default_lower_choices()), table, plans)
