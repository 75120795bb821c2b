"""Local jobs: their share, their movement, replayed load files; bad load files."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.toy_world import JOB, calibration, cluster_spec, lead, make_plan

from agents.protocol import make_setup
from jaxsim.files.errors import InputError
from jaxsim.load.local_jobs import (
    Bursts,
    burst_trace,
    bursty_load,
    gpus_available,
    load_process,
    read_load_trace,
)
from jaxsim.plan import Problem
from jaxsim.plan.plan import default_lower_choices
from jaxsim.planning.table import PlanTable
from jaxsim.scenario import ScenarioSettings, World, scenario_bank
from jaxsim.trees import take
from jaxsim.workload.workload import build_workload

NAMES, GPUS = ("a", "b", "c"), np.array([8, 4, 100])
free = jax.jit(jax.vmap(gpus_available, in_axes=(None, None, 0, 0)))


def play(process, steps=512):
    keys = jax.random.split(jax.random.key(0), steps)
    return np.asarray(free(process, jnp.asarray(GPUS, jnp.int32), keys, jnp.arange(steps)))


def test_local_jobs_hold_their_share_within_its_swing():
    left = play(load_process(3, share=0.5, swing=0.2))
    held = (GPUS - left) / GPUS
    assert np.all((held[:, 2] >= 0.4) & (held[:, 2] <= 0.6))
    assert held[:, 2].min() == 0.4 and held[:, 2].max() == 0.6
    np.testing.assert_allclose(held[:, 2].mean(), 0.5, atol=0.01)
    assert abs(np.corrcoef(left[:, 0], left[:, 2])[0, 1]) < 0.2
    assert np.all(play(load_process(3)) == GPUS)


def test_free_gpus_are_never_negative_nor_more_than_there_are():
    left = play(load_process(3, share=0.9, swing=1.0))
    assert np.all((left >= 0) & (left <= GPUS)) and np.any(left == 0)


def test_a_trace_is_replayed_on_top_of_the_share():
    trace = np.array([[1, 0, 0], [8, 4, 50], [3, 2, 10]], np.float32)
    left = play(load_process(3, trace=jnp.asarray(trace), offset=1), steps=6)
    np.testing.assert_array_equal(left, (GPUS - trace[(np.arange(6) + 1) % 3]).astype(int))


def test_larger_local_jobs_make_a_burstier_load():
    gpus, rng = np.array([100, 400]), np.random.default_rng(0)
    both = (Bursts(0.5, size, 20.0) for size in (0.01, 0.2))
    calm, bursty = (bursty_load(gpus, bursts, 4000, rng) / gpus for bursts in both)
    for held in (calm, bursty):
        assert np.all((held >= 0) & (held <= 1))
    np.testing.assert_allclose(calm.mean(axis=0), 0.5, atol=0.03)
    assert np.all((bursty.mean(axis=0) > 0.25) & (bursty.mean(axis=0) < 0.5))
    assert np.all(bursty.std(axis=0) > 2 * calm.std(axis=0))
    # A job stays: the load is not redrawn in every interval.
    assert np.corrcoef(calm[:-1, 1], calm[1:, 1])[0, 1] > 0.9


def test_local_jobs_are_lost_where_they_do_not_fit_and_only_there():
    """Erlang's loss system job by job, from the same draws: who runs, for how long, who is lost."""
    gpus, share, intervals, job_share, stay = np.array([16, 5]), 0.9, 300, 0.3, 8.0
    bursts = Bursts(share, job_share, stay)
    held = bursty_load(gpus, bursts, intervals, np.random.default_rng(4))
    rng, expected, lost, last = np.random.default_rng(4), np.zeros_like(held), 0, 0
    for k, total in enumerate(gpus):
        size = job_share * total
        arrivals = rng.poisson(share * total / (size * stay), intervals)
        running = []  # (first interval without it, GPUs)
        for t in range(intervals):
            running = [job for job in running if job[0] > t]
            for _ in range(arrivals[t]):
                need = int(rng.geometric(1 / size))
                stop = t + 1 + int(rng.exponential(stay))
                fits = sum(n for _, n in running) + need <= total
                running += [(stop, need)] * int(fits)
                lost += not fits
                last += fits and stop == t + 1
            expected[t, k] = sum(n for _, n in running)
    np.testing.assert_array_equal(held, expected)
    assert np.all(held <= gpus) and np.any(held == gpus), "never overbooked, sometimes full"
    assert lost > 20 and last > 2


def test_bursts_are_drawn_around_the_share_that_is_known_ahead():
    gpus, rng, bursts = np.array([8, 40, 0]), np.random.default_rng(1), Bursts(0.5, 0.1, 20.0)
    beyond = burst_trace(gpus, bursts, 3000, rng)
    held = beyond + 0.5 * gpus
    np.testing.assert_allclose(held, np.round(held), atol=1e-4)
    assert np.all((held >= 0) & (held <= gpus + 1e-4)) and np.all(held[:, 2] == 0)
    # Under way from the start: an empty domain would fill up over the first stays.
    starts = np.stack([burst_trace(gpus, bursts, 1, rng)[0] for _ in range(300)])
    np.testing.assert_allclose(starts[:, :2].mean(0), beyond[:, :2].mean(0), atol=0.08 * 40)
    assert abs(starts[:, 0].mean() - beyond[:, 0].mean()) < 0.6  # of 8; from empty: 4 less


def one_plan_world():
    """Two domains of four GPUs and a table of one plan."""
    plans = lead(make_plan([(0,)], [(8,)], [8], dp=2, micro_batch=2))
    yes = jnp.ones(1, bool)
    table = PlanTable(plans, yes, jnp.ones(1, jnp.float32), yes, ~yes)
    parts = (build_workload([JOB]), cluster_spec().to_arrays(), calibration())
    return World(Problem(*parts, default_lower_choices()), table, plans)


@pytest.mark.slow
def test_the_scenarios_of_bursty_settings_hold_those_bursts_and_no_more():
    world = one_plan_world()
    calm = ScenarioSettings(jitter="none", horizon=64, load_share=0.5)
    bursty = dataclasses.replace(calm, load_job_share=0.5, load_stay=5.0)
    banks = [scenario_bank(world, s, range(3), "test") for s in (calm, bursty)]
    gpus = np.asarray(world.problem.cluster.gpus)
    steps, keys = jnp.arange(65), jax.random.split(jax.random.key(0), 65)
    for seed in range(3):
        one, same = (take(bank[0], seed) for bank in banks)
        left = np.asarray(free(same.load, jnp.asarray(gpus), keys, steps))
        drawn = np.asarray(same.load.trace) + 0.5 * gpus
        np.testing.assert_array_equal(left, gpus - np.round(drawn).astype(int))
        assert left.std(axis=0).max() > 0.5 and len(np.unique(left[:, 0])) > 2
        # The same world but for the load; of the load only the share is known ahead.
        for a, b in zip(jax.tree.leaves(one.network), jax.tree.leaves(same.network), strict=True):
            np.testing.assert_array_equal(a, b)
        told = [make_setup(params, world.table).prior.gpus_available for params in (one, same)]
        np.testing.assert_array_equal(*told)
    # A trace is replayed on top of the bursts, from the row that the seed says.
    trace = np.array([[0, 0], [1, 0]], np.float32)
    both, _ = scenario_bank(world, bursty, range(3), "test", load_trace=trace)
    extra = np.asarray(both.load.trace - banks[1][0].load.trace)
    np.testing.assert_allclose(np.abs(np.diff(extra[:, :, 0], axis=1)), 1.0, atol=1e-5)
    assert np.all(extra[:, :, 1] == 0)


@pytest.mark.parametrize(
    ("key", "value"), [("load_job_share", 1.5), ("load_job_share", -1.0), ("load_stay", 0.5)]
)
def test_bad_bursts_are_refused(key, value):
    with pytest.raises(ValueError, match=f"{key}: expected a number from"):
        ScenarioSettings(**{key: value})


def write(path, *rows, header="arrival_s,domain,gpus,duration_s"):
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def test_load_file_by_hand(tmp_path):
    # Domain b has 4 GPUs: the second job waits for the first; the third goes where it can start.
    path = write(tmp_path / "load.csv", "0,b,3,90", "30,b,2,60", "40,,100,30")
    held = read_load_trace(path, NAMES, GPUS, 60.0)
    b = [3 * 1.0, (3 * 30 + 2 * 30) / 60, 2 * 30 / 60]
    np.testing.assert_allclose(held[:, 1], b)
    np.testing.assert_allclose(held[:, 2], [100 * 20 / 60, 100 * 10 / 60, 0])
    assert np.all(held[:, 0] == 0)


def test_every_gpu_second_is_served_and_no_gpu_twice(tmp_path):
    rng = np.random.default_rng(0)
    jobs = [
        (rng.uniform(0, 3000), rng.choice(["a", "b", ""]), rng.integers(1, 5), rng.uniform(1, 900))
        for _ in range(60)
    ]
    path = write(tmp_path / "load.csv", *(f"{a:.3f},{d},{g},{s:.3f}" for a, d, g, s in jobs))
    held = read_load_trace(path, NAMES, GPUS, 60.0)
    assert np.all(held <= GPUS + 1e-4)
    work = sum(g * round(s, 3) for _, _, g, s in jobs)
    np.testing.assert_allclose(held.sum() * 60.0, work, rtol=1e-4)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("0,b,5,10", ["line 2", "gpus", "1 to 4", "got 5"]),
        ("0,,101,10", ["line 2", "gpus", "1 to 100", "got 101"]),
        ("0,z,1,10", ["line 2", "domain 'z'", "known: a, b, c"]),
        ("-1,a,1,10", ["line 2", "arrival_s: expected a number >= 0"]),
        ("nan,a,1,10", ["line 2", "arrival_s: expected a number >= 0"]),
        ("0,a,1,0", ["line 2", "duration_s: expected a number > 0"]),
        ("0,a,1,nan", ["line 2", "duration_s: expected a number > 0"]),
        ("0,a,many,10", ["line 2", "gpus: expected an integer", "'many'"]),
        ("0,a,1", ["line 2", "duration_s: expected a number > 0", "got ''"]),
        ("0,a,1,1e13", ["line 2", "duration_s", "seconds from 0", "1e+13", "100,000"]),
        ("1764806400,a,1,60", ["line 2", "arrival_s", "seconds from 0"]),
    ],
)
def test_bad_load_row_is_one_line_naming_file_and_key(tmp_path, row, words):
    path = write(tmp_path / "load.csv", row)
    refuse(path, words)


def test_a_job_that_waits_beyond_the_end_is_named(tmp_path):
    path = write(tmp_path / "load.csv", "0,b,4,4e6", "0,a,1,60", "0,b,4,4e6")
    refuse(path, ["line 4", "seconds from 0", "8000000"])


def test_a_domain_may_be_called_anything(tmp_path):
    path = write(tmp_path / "load.csv", "0,NA,2,60", "0,1,3,60", "0,,5,60")
    held = read_load_trace(path, ("NA", "1", "null"), np.array([4, 4, 8]), 60.0)
    np.testing.assert_allclose(held, [[2, 3, 5]])


def refuse(path, words):
    with pytest.raises(InputError) as error:
        read_load_trace(path, NAMES, GPUS, 60.0)
    text = str(error.value)
    assert "\n" not in text
    for word in [str(path), *words]:
        assert word in text, f"{word!r} is not in {text!r}"


def test_bad_load_files(tmp_path):
    refuse(tmp_path / "missing.csv", ["cannot be read"])
    refuse(write(tmp_path / "header.csv", header="arrival,domain"), ["arrival_s,domain,gpus"])
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"\xff\xfe\x00\x81")
    refuse(binary, ["cannot be read"])
