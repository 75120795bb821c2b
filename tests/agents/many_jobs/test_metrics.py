"""What many jobs come to, and who waits for whom: by hand, nothing is played."""

import dataclasses
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from helpers.toy_world import GPU, cluster_spec

from agents.episodes.metrics import traffic_metrics
from agents.many_jobs.mast import queueing_s
from agents.many_jobs.metrics import completion_s, jain_index, job_metrics, utilisation_alone
from agents.registry import find, jobs_names, make_for_jobs
from jaxsim.cluster import Site
from jaxsim.step_time.closed_form import StepCost


def test_where_mast_waits_for_whom():
    """A region is free when its jobs have left, in the order in which they do."""
    regions = jnp.eye(2, dtype=bool)[jnp.array([0, 0, 0, 1])]
    asked = jnp.array([1, 4, 8, 4], jnp.int32)
    free = jnp.array([2, 0], jnp.int32)
    held = jnp.array([[3, 0], [3, 2], [0, 0]], jnp.int32)
    leaves_s = jnp.array([100.0, 50.0, 10.0])
    got = queueing_s(regions, asked, free, held, leaves_s)
    np.testing.assert_array_equal(got, [0.0, 50.0, 100.0, np.inf])


def test_jain_index():
    there = jnp.array([True, True, True, False])
    np.testing.assert_allclose(jain_index(jnp.array([2.0, 2.0, 2.0, 9.0]), there), 1.0, rtol=1e-6)
    np.testing.assert_allclose(jain_index(jnp.array([5.0, 0.0, 0.0, 9.0]), there), 1 / 3, rtol=1e-6)


@pytest.mark.parametrize(
    ("budget", "done_s"),
    [
        (4.0, 4.0),  # one step a second from its arrival on
        (15.0, 10.0),  # 5 of them until the interval ends, 10 at 2 a second
        (27.0, 25.5),  # nothing goes on in the third interval; 2 of the rest at 4 a second
        (72.0, 39.0),  # 7 are left at the end of the fourth, at the mean rate of 1.75 a second
    ],
)
def test_when_a_job_alone_would_be_done(budget, done_s):
    """It arrives after 5 s of an interval of 10 s."""
    rate = jnp.array([1.0, 2.0, 0.0, 4.0])
    got = completion_s(rate, jnp.float32(5.0), jnp.float32(budget), 10.0)
    np.testing.assert_allclose(got, done_s, rtol=1e-6)


@pytest.fixture(scope="module")
def by_hand():
    """Intervals of 60 s. Job 0 trains 10 steps of 5 s after a restart of 10 s, then 4 more of 10 s:
    done after 60 + 40 s. Job 1 arrives at 90 s, trains 6 steps from 130 s on and is left with 14 of
    20. Job 2 arrives after the end."""
    progress = np.array([[10, 0, 0], [4, 0, 0], [0, 6, 0]], np.float32)
    train_s = np.array([[50, 0, 0], [60, 0, 0], [0, 50, 0]], np.float32)
    used, memory_gb = np.zeros((3, 3, 2), np.int32), np.zeros((3, 3, 2), np.float32)
    used[0, 0, 0], used[2, 1, 1] = 4, 3
    memory_gb[0, 0], memory_gb[1, 0], memory_gb[2, 1] = (40, 0), (80, 40), (0, 20)
    step_s = np.full((3, 3), 5.0, np.float32)
    step_s[1, 0], step_s[0, 1] = 10.0, np.inf
    nothing = jnp.zeros((3, 3), jnp.float32)
    cost = StepCost(**{field.name: nothing for field in dataclasses.fields(StepCost)}).replace(
        step_s=jnp.asarray(step_s),
        compute_s=nothing + 4.0,
        sync_s=nothing + 1.0,
        wan_busy_s=nothing + 2.0,
        efficiency=nothing + 1.0,
        memory_gb=jnp.asarray(memory_gb),
        gpus_used=jnp.asarray(used),
    )
    sent_gb, moved_gb = np.zeros((2, 3, 2, 2), np.float32)
    sent_gb[0, 0, 1], moved_gb[2, 1, 0] = 6.0, 4.0
    record = SimpleNamespace(
        progress=jnp.asarray(progress),
        train_s=jnp.asarray(train_s),
        cost=cost,
        wan_gb=jnp.asarray(sent_gb),
        migration_gb=jnp.asarray(moved_gb),
        egress_usd=jnp.array([0.0, 1.0, 0.0]),
        gpu_usd=jnp.array([2.0, 2.0, 2.0]),
        switched=jnp.asarray(progress > 0),
        reward_parts=SimpleNamespace(utilisation=jnp.array([0.5, 0.2, 0.1])),
    )
    jobs = SimpleNamespace(
        mask=jnp.array([True] * 3),
        arrival_s=jnp.array([0.0, 90.0, 1e4]),
        step_budget=jnp.array([14.0, 20.0, 1.0]),
        tokens_per_step=jnp.array([100.0, 1000.0, 1.0]),
    )
    gpu = SimpleNamespace(memory_gb=jnp.float32(80.0))
    cluster = SimpleNamespace(gpu=gpu)
    problem = SimpleNamespace(work=jobs, cluster=cluster)
    params = SimpleNamespace(problem=problem, interval_s=jnp.float32(60.0))
    links = jnp.tile(0.5 * (1.0 - jnp.eye(2)), (3, 1, 1))
    episode = SimpleNamespace(record=record, reward=jnp.zeros(3), bandwidth_gb_per_s=links)
    return episode, params


def test_a_job_that_never_trains_waits_to_the_end(by_hand):
    episode, params = by_hand
    still = {
        name: getattr(episode.record, name).at[:, 1].set(0.0) for name in ("progress", "train_s")
    }
    record = SimpleNamespace(**{**vars(episode.record), **still})
    idle = SimpleNamespace(**{**vars(episode), "record": record})
    got = job_metrics(idle, params, jnp.array([40.0, 100.0, 1.0]), jnp.full((3, 2), 4, jnp.int32))
    np.testing.assert_allclose(got.queueing_s, [10.0, 3 * 60.0 - 90.0, np.nan])


def test_metrics_of_an_episode_by_hand(by_hand):
    alone_s = jnp.array([40.0, 100.0, 1.0])
    got = job_metrics(*by_hand, alone_s, jnp.full((3, 2), 4, jnp.int32))
    jct_s = [100.0, 180.0 - 90.0 + 0.7 * 100.0, np.nan]
    np.testing.assert_allclose(got.jct_s, jct_s)
    np.testing.assert_allclose(got.jct_normalised, np.array(jct_s) / [40.0, 100.0, 1.0])
    np.testing.assert_allclose(got.queueing_s, [10.0, 130.0 - 90.0, np.nan])
    np.testing.assert_array_equal(got.finished, [1, 0, np.nan])
    np.testing.assert_array_equal(got.moves, [1, 0, np.nan])
    assert np.isnan(got.makespan_s) and float(got.overcommitted) == 0
    np.testing.assert_allclose(got.utilisation, (0.5 + 0.2 + 0.1) / 3, rtol=1e-6)
    # Four GPUs in one domain and three in the other, of three and two.
    short = job_metrics(*by_hand, alone_s, jnp.tile(jnp.array([3, 2], jnp.int32), (3, 1)))
    assert float(short.overcommitted) == 1


def test_the_use_of_a_cluster_that_every_job_has_to_itself_by_hand(by_hand):
    """Job 0 alone is there until 40 s, job 1 from 90 to 190 s: all three intervals of 60 s. A job that
    arrives after the end does not count. Eight GPUs of 2 TFLOP/s, of which two are missing once."""
    _, params = by_hand
    jobs = SimpleNamespace(**vars(params.problem.work), useful_tflop=jnp.array([8.0, 4.0, 1e9]))
    cluster = cluster_spec(2, gpu={**GPU, "peak_tflops": 2.0}).to_arrays()
    problem = SimpleNamespace(work=jobs, cluster=cluster)
    params = SimpleNamespace(problem=problem, interval_s=params.interval_s)
    free = jnp.array([[4, 4], [4, 4], [4, 4]], jnp.int32)
    work_tflop, alone_s = 14 * 8.0 + 20 * 4.0, jnp.array([40.0, 100.0, 1.0])
    got = utilisation_alone(params, alone_s, free)
    np.testing.assert_allclose(got, work_tflop / (180.0 * 16.0), rtol=1e-6)
    # Job 1 needs ten seconds only: the last interval can do without anybody.
    got = utilisation_alone(params, jnp.array([40.0, 10.0, 1.0]), free)
    np.testing.assert_allclose(got, work_tflop / (120.0 * 16.0), rtol=1e-6)
    # Where it comes at 130 s, the second interval can; at 180 s, the end, it does not count.
    for at_s, tflop, seconds in ((130.0, work_tflop, 120.0), (180.0, 14 * 8.0, 60.0)):
        late = SimpleNamespace(**{**vars(jobs), "arrival_s": jnp.array([0.0, at_s, 1e4])})
        other = SimpleNamespace(
            problem=SimpleNamespace(work=late, cluster=cluster), interval_s=params.interval_s
        )
        got = utilisation_alone(other, alone_s, free)
        np.testing.assert_allclose(got, tflop / (seconds * 16.0), rtol=1e-6)
    # Of two types, 1 and 3 TFLOP/s: the same peak in all.
    sites = tuple(Site({**GPU, "peak_tflops": peak}) for peak in (1.0, 3.0))
    mixed = SimpleNamespace(
        work=jobs, cluster=dataclasses.replace(cluster_spec(2), sites=sites).to_arrays()
    )
    other = SimpleNamespace(problem=mixed, interval_s=params.interval_s)
    got = utilisation_alone(other, alone_s, free)
    np.testing.assert_allclose(got, work_tflop / (180.0 * 16.0), rtol=1e-6)
    few = utilisation_alone(other, alone_s, free.at[1, 0].set(2))
    np.testing.assert_allclose(few, work_tflop / (180.0 * 14.0), rtol=1e-6)
    few = utilisation_alone(params, alone_s, free.at[1, 0].set(2))
    np.testing.assert_allclose(few, work_tflop / (180.0 * 12.0), rtol=1e-6)
    assert float(utilisation_alone(params, alone_s, free.at[:, :].set(0))) == 1.0


def test_what_steps_and_traffic_come_to_by_hand(by_hand):
    got = job_metrics(*by_hand, jnp.ones(3), jnp.full((3, 2), 4, jnp.int32))
    np.testing.assert_allclose(got.step_s, [90.0 / 14, 5.0, np.nan], rtol=1e-6)
    np.testing.assert_allclose(got.step_s_std, [2.5, 0.0, np.nan])
    # A GPU has 80 GB: half full, then full in one domain and half full in the other.
    np.testing.assert_allclose(got.memory_utilisation, [(0.5 + 0.75) / 2, 0.25, np.nan])
    np.testing.assert_allclose(got.comm_to_compute, [0.25, 0.25, np.nan])
    np.testing.assert_allclose(got.overlap, [0.5, 0.5, np.nan])
    tokens = 14 * 100.0 + 6 * 1000.0
    np.testing.assert_allclose(got.tokens_per_s, tokens / 180.0, rtol=1e-6)
    np.testing.assert_allclose(got.bandwidth_utilisation, 10.0 / (180.0 * 2 * 0.5), rtol=1e-6)
    np.testing.assert_allclose(got.wan_gb_per_step, 10.0 / 20.0, rtol=1e-6)
    np.testing.assert_allclose(got.usd_per_mtoken, 7.0 / (tokens / 1e6), rtol=1e-6)
    # Without the last interval, in which job 1 trained and something moved.
    first = traffic_metrics(*by_hand, jnp.array([True, True, False]))
    np.testing.assert_allclose(first["tokens_per_s"], 1400.0 / 120.0, rtol=1e-6)
    np.testing.assert_allclose(first["wan_gb_per_step"], 6.0 / 14.0, rtol=1e-6)
    np.testing.assert_allclose(first["bandwidth_utilisation"], 6.0 / 120.0, rtol=1e-6)
    np.testing.assert_allclose(first["usd_per_mtoken"], 5.0 / 1400e-6, rtol=1e-6)


def test_every_scheduler_but_the_clairvoyant_has_a_version_for_many_jobs():
    assert "clairvoyant" not in jobs_names() and "mast" in jobs_names()
    with pytest.raises(ValueError, match="clairvoyant"):
        make_for_jobs(find("clairvoyant"), None)
