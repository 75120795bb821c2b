"""Memory per GPU against published figures and by hand."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from helpers.toy_world import (
    JOB,
    MODEL,
    base_view,
    calibration,
    cluster_spec,
    cost_of,
    make_plan,
)

from jaxsim.calibration.measured import GIB, MeasuredRun, published_split_gib
from jaxsim.plan.modes import Recompute, Schedule
from jaxsim.step_time.memory import in_flight_chunks, state_bytes_per_param
from jaxsim.step_time.pipeline import in_flight_limit
from jaxsim.workload.workload import JobSpec, ModelConfig, build_workload

WORK = build_workload([JOB]).job(0)
# As published: 18 bytes a parameter, 5 a score, nothing else than what a layer keeps.
PUBLISHED = {"state_bytes": 18.0, "stored_scores": 5.0, "stored_values": 1.0, "framework_gb": 0.0}


@pytest.mark.parametrize(
    ("stage", "expected"),
    [(0, [18, 18]), (1, [18, 6 + 12 / 8]), (2, [18, 2 + 16 / 8]), (3, [18, 18 / 8])],
)
def test_model_state_is_eighteen_bytes_and_zero_shards_it(stage, expected):
    got = state_bytes_per_param(jnp.int32(stage), jnp.array([1, 8], jnp.int32))
    np.testing.assert_allclose(got, expected, rtol=1e-6)


@pytest.mark.parametrize("zero_stage", [1, 2, 3])
def test_context_parallel_ranks_share_the_state_as_replicas_do(zero_stage):
    """They hold the same weights (Megatron-LM's distributed optimizer, FSDP): without activations,
    eight ranks hold as much each and update it as fast, whatever they are."""
    cluster = cluster_spec().to_arrays()
    view, cal = base_view(cluster), calibration(**PUBLISHED | {"stored_values": 0.0})
    cal = cal.replace(stored_logits=jnp.float32(0.0))
    costs = [
        cost_of(
            make_plan([(0,)], [(8,)], [8], dp=dp, cp=8 // dp, micro_batch=2, zero_stage=zero_stage),
            WORK,
            cluster,
            cal,
            view,
        )
        for dp in (8, 2)
    ]
    replicas, chunks = ((float(c.memory_gb[0]), float(c.optimizer_s)) for c in costs)
    np.testing.assert_allclose(chunks, replicas, rtol=1e-6)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Schedule.ONE_F_ONE_B, [4, 3, 2, 1]),
        (Schedule.EAGER_1F1B, [7, 5, 3, 1]),
        (Schedule.GPIPE, [16, 16, 16, 16]),
    ],
)
def test_micro_batches_in_flight(schedule, expected):
    depth = jnp.array([4.0, 3.0, 2.0, 1.0], jnp.float32)
    many = in_flight_limit(jnp.int32(schedule), depth, jnp.float32(16))
    np.testing.assert_array_equal(many, expected)
    few = in_flight_limit(jnp.int32(schedule), depth, jnp.float32(2))
    np.testing.assert_array_equal(few, np.minimum(expected, 2))


def test_interleaved_stages_hold_more_of_the_first_chunks():
    stages = jnp.array([1.0, 8.0, 35.0], jnp.float32)
    # Korthikanti et al. 2022, sec. 4.2.3: L (1 + (p - 1) / (p m)) layers instead of L.
    got = in_flight_chunks(stages, jnp.float32(3.0))
    np.testing.assert_allclose(got, [1, 1 + 7 / 24, 1 + 34 / 105], rtol=1e-6)
    np.testing.assert_array_equal(in_flight_chunks(stages, jnp.float32(1.0)), 1.0)


# Korthikanti et al. 2022 (MLSys 2023): configurations of table 3, memory of figure 1 [GiB].
# layers, hidden, heads, tp, pp, virtual stages, micro-batch; state; with sequence parallelism and
# selective recomputation; with tensor parallelism alone.
KORTHIKANTI = {
    "22B": ((48, 6144, 64, 8, 1, 1, 4), 45.5625, 9.5625, 59.25),
    "175B": ((96, 12288, 96, 8, 8, 3, 1), 45.5625, 12.3515625, 66.84375),
    "530B": ((105, 20480, 128, 8, 35, 3, 1), 31.640625, 23.076171875, 114.0234375),
    "1T": ((128, 25600, 160, 8, 64, 1, 1), 32.958984375, 26.5625, 131.25),
}


def korthikanti(name, recompute, sequence_parallel):
    layers, hidden, heads, tp, pp, virtual, micro_batch = KORTHIKANTI[name][0]
    return MeasuredRun(
        dataset="korthikanti",
        row_id=name,
        gpu="A100-80GB",
        n_gpus=tp * pp,
        gpus_per_node=8,
        model=ModelConfig(layers, hidden, heads, heads, 4 * hidden, 2, 51200, True),
        seq=2048,
        tp=tp,
        cp=1,
        pp=pp,
        dp=1,
        zero_stage=0,
        virtual_stages=virtual,
        micro_batch=micro_batch,
        global_batch=micro_batch * max(pp, 64),
        recompute=recompute,
        sequence_parallel=sequence_parallel,
        flash=False,
        precision="fp16",
        compiled=True,
        async_tp=False,
        step_s=None,
        peak_memory_gib=None,
        state_gib=None,
        activation_gib=None,
        source="",
        note="",
    )


@pytest.mark.parametrize("name", KORTHIKANTI)
def test_memory_published_by_korthikanti_to_the_last_digit(name):
    _, state, selective, tensor_parallel = KORTHIKANTI[name]
    modes = (("selective", True), ("none", False))
    runs = [korthikanti(name, *mode) for mode in modes]
    got = published_split_gib(runs, calibration(**PUBLISHED))
    np.testing.assert_allclose(got[:, 0], state, rtol=1e-9)
    # Seven digits, as many as float32 and the paper have.
    np.testing.assert_allclose(got[:, 1], [selective, tensor_parallel], rtol=3e-7)


def test_full_recomputation_keeps_the_input_of_every_layer():
    # Eq. 6: 2 s b h a layer; tensor parallelism alone keeps it on every GPU, sequence parallelism
    # a slice.
    runs = [korthikanti("22B", "full", shared) for shared in (False, True)]
    got = published_split_gib(runs, calibration(**PUBLISHED))[:, 1]
    whole = 48 * 2 * 2048 * 4 * 6144 / GIB
    np.testing.assert_allclose(got, [whole, whole / 8], rtol=1e-6)


def test_few_micro_batches_fill_no_pipeline():
    run = dataclasses.replace(korthikanti("1T", "none", False), global_batch=16)
    got = published_split_gib([run], calibration(**PUBLISHED))[0, 1]
    np.testing.assert_allclose(got, 131.25 * 16 / 64, rtol=3e-7)


def memory(plan, work=WORK, spec=None, **changes):
    cluster = (spec or cluster_spec(2, gpus=16)).to_arrays()
    cal = calibration(**{**PUBLISHED, "stored_logits": 1.0, **changes})
    return np.asarray(cost_of(plan, work, cluster, cal, base_view(cluster)).memory_gb)


def test_a_22b_model_on_one_node_as_in_korthikanti_2022():
    # The published split and what it leaves out: norms, embeddings, logits.
    model = ModelConfig(48, 6144, 64, 64, 4 * 6144, 2, 51200, True)
    work = build_workload([JobSpec(model, 4, 2048, flash_attention=False)]).job(0)
    got = memory(make_plan([(0,)], [(48,)], [1], tp=8, micro_batch=4, zero_stage=0), work)[0]
    s, b, h, a = 2048, 4, 6144, 64
    params = 48 * (12 * h * h + 2 * h) + 2 * 51200 * h
    activations = s * b * h * 48 / 8 * (34 + 5 * a * s / h)
    logits = 4 * s * b * 51200 / 8
    gathered = 2 * 2 * s * b * h  # a block's input and its gradient, whole over the eight
    want = 18 * params / 8 + activations + logits + gathered
    np.testing.assert_allclose(got, want / 1e9, rtol=1e-5)


def test_each_parameter_of_memory_scales_its_part():
    plan = make_plan([(0,)], [(8,)], [4], micro_batch=8, zero_stage=0)
    unfused = build_workload([dataclasses.replace(JOB, flash_attention=False)]).job(0)
    base = memory(plan, unfused)[0]
    added = {
        "state_bytes": (19.0, float(WORK.gparams)),
        "stored_scores": (6.0, 8 * 8 * 16 * 1024.0**2 / 1e9),
        # 10 h + 4 h + 4 kv, kv = h / 2, and 2 x 3 f
        "stored_values": (2.0, 8 * 8 * 1024 * (16 * 1024 + 6 * 4096) / 1e9),
        "stored_logits": (2.0, 8 * 4 * 1024 * 32000 / 1e9),
        "framework_gb": (3.0, 3.0),
    }
    for name, (value, more) in added.items():
        got = memory(plan, unfused, **{name: value})[0] - base
        np.testing.assert_allclose(got, more, rtol=1e-4, err_msg=name)


def test_tensor_and_context_parallelism_divide_activations():
    def activations(**fields):
        whole = memory(make_plan([(0,)], [(8,)], [4], micro_batch=8, zero_stage=0, **fields))[0]
        tp = fields.get("tp", 1)
        return whole - 18 * float(WORK.gparams) / tp

    one = activations()
    gathered = 2 * 8 * 2 * 1024 * 1024 / 1e9  # a block's input and its gradient, whole
    np.testing.assert_allclose(activations(tp=4), one / 4 + gathered, rtol=1e-3)
    np.testing.assert_allclose(activations(cp=4), one / 4, rtol=1e-3)


def test_fuller_schedules_and_earlier_stages_hold_more():
    def of(schedule):
        fields = {"micro_batch": 4, "pp": 2, "schedule": schedule, "zero_stage": 0}
        return memory(make_plan([(0, 1)], [(4, 4)], [8], **fields), stored_logits=0.0)

    stored = 4 * 1024 * (16 * 1024 + 6 * 4096) * 2 / 1e9  # two layers of 4 sequences
    plain, eager, gpipe = (
        of(s) for s in (Schedule.ONE_F_ONE_B, Schedule.EAGER_1F1B, Schedule.GPIPE)
    )
    # Stages from the end, counted at a domain's first stage: 4 and 2.
    np.testing.assert_allclose(eager - plain, [3 * stored, stored], rtol=1e-4)
    np.testing.assert_allclose(gpipe - plain, [4 * stored, 6 * stored], rtol=1e-4)


def test_of_the_last_domain_the_fuller_end_counts():
    def of(schedule, micro_batch, logits):
        fields = {"micro_batch": micro_batch, "pp": 2, "schedule": schedule, "zero_stage": 0}
        plan = make_plan([(0,)], [(8,)], [16 // micro_batch], **fields)
        return memory(plan, stored_logits=logits)[0]

    stored = 4 * 4 * 1024 * (16 * 1024 + 6 * 4096) / 1e9  # four layers of 4 sequences
    logits = 4 * 4 * 1024 * 32000 / 1e9
    # 1F1B: the first stage holds two micro-batches, the last stage one and the logits.
    few, many = (of(Schedule.ONE_F_ONE_B, 4, x) for x in (0.5, 8.0))
    assert 0.5 * logits < stored < 8 * logits
    np.testing.assert_allclose(many - few, 8 * logits - stored, rtol=1e-4)
    # GPipe: both hold all of them, and the last the logits as well.
    few, many = (of(Schedule.GPIPE, 4, x) for x in (0.5, 8.0))
    np.testing.assert_allclose(many - few, 7.5 * logits, rtol=1e-4)


@pytest.mark.parametrize("layers", [1, 8])
def test_a_layer_that_is_recomputed_needs_its_activations_once(layers):
    """Beside what every layer keeps: without recomputation nothing, else one layer's whole set and
    its gradients while the backward pass goes through it. To recompute one layer saves nothing."""
    work = build_workload(
        [dataclasses.replace(JOB, model=dataclasses.replace(MODEL, layers=layers))]
    )

    def of(recompute):
        fields = {"micro_batch": 8, "zero_stage": 0, "recompute": recompute}
        plan = make_plan([(0,)], [(layers,)], [4], **fields)
        return memory(plan, work.job(0), stored_logits=0.0)[0]

    none, selective, full = map(of, (Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL))
    whole = 8 * 1024 * (16 * 1024 + 6 * 4096) / 1e9  # of one layer, eight sequences
    kept = 8 * 2 * 1024 * 1024 / 1e9  # its input
    state = 18 * float(work.job(0).gparams)
    np.testing.assert_allclose(none - state, layers * whole, rtol=1e-4)
    np.testing.assert_allclose(full - state, layers * kept + 2 * whole, rtol=1e-4)
    # Flash attention leaves no scores to drop: selective recomputes every second layer.
    half = 0.5 * (whole + kept)
    np.testing.assert_allclose(selective - state, layers * half + 2 * whole, rtol=1e-4)


def test_unused_domains_hold_nothing():
    assert memory(make_plan([(1,)], [(8,)], [16], micro_batch=2))[0] == 0.0
