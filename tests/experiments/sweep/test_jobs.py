"""Sweeps over numbers of jobs: lists that are drawn, rows of a scenario, the command as it is."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
from helpers.toy_world import two_sites_yaml

from agents.many_jobs import JobMetrics
from experiments.sweep import __main__ as command
from experiments.sweep.batches import make_batches
from experiments.sweep.config import SweepConfig
from experiments.sweep.design import design_points
from experiments.sweep.jobs import JobsPlayer, figures
from experiments.sweep.sweeping import check_inputs
from jaxsim.cluster import load_cluster
from jaxsim.files import InputError

SMALL = {
    "model": ["gpt2-medium"],
    "global_batch": 64,
    "seq": 1024,
    "table_size": 8,
    "layout_limit": 30,
    "steps": 24,
}


def test_a_scenario_s_jobs_are_the_same_at_every_point_and_others_in_another_scenario():
    config = SweepConfig(**SMALL, jobs=[3], strength=[0.1, 0.3], scenarios=12)
    points = design_points(config)
    player, batches = JobsPlayer(config, points), make_batches(config, points)
    assert [batch.count for batch in batches] == [8, 8, 8], "a batch is soon done"
    (group,) = {batch.group for batch in batches}
    lists = [player.submitted(group, seed) for seed in range(40)]
    assert lists[7] == player.submitted(group, 7) != lists[8]
    half_s = 0.5 * 24 * 60.0
    assert all(jobs[0].spec.arrival_s == 0.0 for jobs in lists)
    last_s = np.array([jobs[-1].spec.arrival_s for jobs in lists])
    assert last_s.mean() == pytest.approx(half_s * 2 / 3, rel=0.3), "two gaps of a third each"
    # 6 FLOPs per parameter and token, at two fifths of the peak: half as much again as the half holds.
    params = lists[0][0].spec.model.params
    brought = [6e-12 * params * 64 * 1024 * sum(j.spec.step_budget for j in jobs) for jobs in lists]
    held = 0.4 * load_cluster(None).peak_tflops * half_s
    assert np.mean(brought) / held == pytest.approx(1.5, rel=0.3)


def test_a_row_is_the_mean_over_the_jobs_that_arrive():
    nan = np.nan
    each = dict.fromkeys(JobMetrics.__dataclass_fields__, np.array([1.0, 3.0, nan], np.float32))
    whole = ("makespan_s", "utilisation", "tokens_per_s", "bandwidth_utilisation", "fairness")
    each |= dict.fromkeys((*whole, "wan_gb_per_step", "usd_per_mtoken"), np.float32(0.5))
    each |= {"overlap": np.full(3, nan, np.float32), "overcommitted": np.int32(0)}
    row = figures(JobMetrics(**each))
    assert row["jct_normalised"] == 2.0 and row["achieved"] == 0.5 and row["replans"] == 2.0
    assert row["utilisation"] == 0.5 and row["overcommitted"] == 0.0 and np.isnan(row["overlap"])
    assert "moves" not in row


def test_who_cannot_plan_for_many_jobs_is_refused():
    config = SweepConfig(jobs=[2], schedulers="mast,clairvoyant", dry_run=True)
    with pytest.raises(InputError, match="clairvoyant"):
        check_inputs(config)
    with pytest.raises(InputError, match=r"searches for one job; expected it without \+search"):
        check_inputs(dataclasses.replace(config, schedulers="mast,hi_ppo+search"))
    with pytest.raises(InputError, match="expected names separated by commas, got all"):
        check_inputs(dataclasses.replace(config, schedulers="all"))
    config = dataclasses.replace(config, schedulers="mast,hysteresis", reference="best_static")
    with pytest.raises(InputError, match="reference: expected one of mast, hysteresis"):
        check_inputs(config)


@pytest.mark.nightly
def test_jobs_of_a_sweep_compete_and_rows_are_the_same_in_any_company(tmp_path):
    pytest.importorskip("pyarrow", reason="pyarrow, of the extra scale, is not installed")
    (tmp_path / "two-sites.yaml").write_text(two_sites_yaml(40.0, 30.0))
    config = SweepConfig(
        **SMALL,
        cluster=[str(tmp_path / "two-sites.yaml")],
        jobs=[1, 3],
        jitter=["uniform"],
        schedulers="mast,hysteresis",
        scenarios=2,
    )
    run = tmp_path / "run"
    argv = ["--out", str(run)]
    for key in (*SMALL, "cluster", "jobs", "jitter", "schedulers", "scenarios"):
        argv += [f"--{key}", str(getattr(config, key)).replace("'", "")]
    assert command.main(argv) == 0
    rows = pd.read_parquet(run / "scenarios.parquet")
    assert len(rows) == 2 * 2 * 2 and set(rows["jobs"]) == {1, 3}
    assert (rows["overcommitted"] == 0).all() and rows["utilisation"].between(0, 1).all()
    # Nobody is faster than a job alone; three that come with more than the GPUs can do are slower.
    assert (rows["jct_normalised"] >= 1 - 1e-4).all()
    mean = rows.groupby("jobs")["jct_normalised"].mean()
    assert mean[3] > mean[1] + 0.1
    points = design_points(config)
    last = make_batches(config, points)[-1]
    alone = dataclasses.replace(last, points=last.points[1:], seeds=last.seeds[1:])
    mine = pd.DataFrame(JobsPlayer(config, points).columns(alone))
    kept = rows[(rows["point"] == last.points[1]) & (rows["scenario"] == last.seeds[1])]
    for name in ("achieved", "queueing_s", "utilisation", "step_s"):
        np.testing.assert_allclose(mine[name], kept[name], rtol=1e-5)
