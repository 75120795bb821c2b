"""What a plan comes to on spot GPUs, by hand: who stops, for how long, who pays for what."""

import types

import numpy as np
import pytest

from experiments.plan.spot import spot_of
from jaxsim.cluster import SpotOffer

DAY_S = 86400.0
OFFER = SpotOffer(usd_per_gpu_hour=0.5, reclaims_per_day=4.0, away_minutes=20.0)
TOLD = {"effective_tokens_per_s": 1000.0, "days": 10.0}


def plan(group, period):
    """Two domains of eight GPUs; groups share the batch 3 to 1."""
    shares = np.array([3, 1] if max(group) else [4, 0])
    return types.SimpleNamespace(
        group=np.array(group),
        sync_period=np.array(period),
        batch_share=shares,
        micro_batch=np.array([1, 1]),
        dp=np.array([2, 2]),
    )


def on_spot(
    group=(0, 1),
    period=1,
    offers=(None, OFFER),
    checkpoint_s=1800.0,
    egress_usd=0.0,
    idle_usd=0.0,
    bill="used",
):
    """16 GPUs of 2 USD/h, a step of 10 s, a restart of 60 s; 6 GB of state come at 0.25 GB/s."""
    cost = types.SimpleNamespace(
        step_s=np.float32(10.0), egress_usd=np.float32(egress_usd), gpus_used=np.array([8, 8])
    )
    one = types.SimpleNamespace(plan=plan(group, period), cost=cost)
    spec = types.SimpleNamespace(
        domains=("north", "south"), usd_per_gpu_hour=(2.0, 2.0), spot=offers
    )
    problem = types.SimpleNamespace(
        calibration=types.SimpleNamespace(restart_s=60.0, wan_efficiency=0.5),
        work=types.SimpleNamespace(gparams=6.0 / 14.0),
    )
    view = types.SimpleNamespace(bandwidth_gb_per_s=np.array([[0.0, 0.5], [0.5, 0.0]]))
    question = types.SimpleNamespace(spec=spec, problem=problem, view=view)
    usd = 32.0 + 360.0 * egress_usd + (idle_usd if bill == "all" else 0.0)
    told = {
        **TOLD,
        "idle_usd_per_hour": idle_usd,
        "usd_per_effective_mtoken": usd / 3600.0 / 1000.0 * 1e6,
    }
    return spot_of(one, told, question, checkpoint_s, bill), told


def test_a_synchronous_plan_stops_as_a_whole():
    found, told = on_spot()
    # A reclaim costs 20 minutes, a restart, half of a checkpoint's interval: 1200 + 60 + 900 s.
    lasting = 1.0 / (1.0 + 4.0 * 2160.0 / DAY_S)
    assert found["effective_tokens_per_s"] == pytest.approx(1000.0 * lasting)
    assert found["time_lost_pct"] == pytest.approx(100.0 * (1.0 - lasting))
    assert found["days"] == pytest.approx(10.0 / lasting)
    # South is paid while it is there, north all the time.
    usd = 16.0 + 4.0 / (1.0 + 4.0 * 1200.0 / DAY_S)
    assert found["usd_per_hour"] == pytest.approx(usd)
    price = usd / 3600.0 / (1000.0 * lasting) * 1e6
    assert found["usd_per_effective_mtoken"] == pytest.approx(price)
    assert found["saves_pct"] == pytest.approx(
        100.0 * (1.0 - price / told["usd_per_effective_mtoken"])
    )
    assert found["domains"] == ["south"] and found["reclaims_per_day"] == 4.0
    # A pipeline over both sites is one group, and stops the same.
    assert on_spot(group=(0, 0))[0]["time_lost_pct"] == pytest.approx(found["time_lost_pct"])


def test_local_sgd_loses_the_group_that_is_away_and_nothing_else():
    found, _ = on_spot(period=30)
    # 20 minutes, the restart, half of 30 steps of 10 s, 6 GB at 0.25 GB/s; a quarter of the batch.
    lasting = 0.75 + 0.25 / (1.0 + 4.0 * (1200.0 + 60.0 + 150.0 + 24.0) / DAY_S)
    assert found["effective_tokens_per_s"] == pytest.approx(1000.0 * lasting, rel=1e-5)
    assert found["time_lost_pct"] < 0.3 * on_spot()[0]["time_lost_pct"]
    # How often checkpoints are written does not matter: the others hold the state.
    assert on_spot(period=30, checkpoint_s=1e5)[0] == found


def test_reclaims_of_several_domains_add_up():
    one, both = on_spot()[0], on_spot(offers=(OFFER, OFFER))[0]
    stop = 1.0 / (1.0 - one["time_lost_pct"] / 100.0) - 1.0
    assert 1.0 / (1.0 - both["time_lost_pct"] / 100.0) == pytest.approx(1.0 + 2.0 * stop)
    assert both["reclaims_per_day"] == 8.0 and both["usd_per_hour"] < one["usd_per_hour"]


def test_how_often_is_too_often():
    found, told = on_spot(egress_usd=0.01)
    often = SpotOffer(0.5, 4.0 * found["pays_up_to_times"], 20.0)
    there, _ = on_spot(offers=(None, often), egress_usd=0.01)
    assert there["usd_per_effective_mtoken"] == pytest.approx(
        told["usd_per_effective_mtoken"], rel=1e-6
    )
    assert there["saves_pct"] == pytest.approx(0.0, abs=1e-4)
    assert 1.0 < found["pays_up_to_times"] < 100.0
    assert on_spot(offers=(None, SpotOffer(2.0, 1.0, 5.0)))[0]["pays_up_to_times"] == 0.0
    free = SpotOffer(0.5, 0.0, 20.0)  # never taken: cheaper however much more often that is
    assert on_spot(offers=(None, free))[0]["pays_up_to_times"] is None


def test_idle_gpus_are_paid_for_on_spot_as_well():
    """South costs on spot what it costs at its list price: it never pays, whoever pays for the rest."""
    same = (None, SpotOffer(2.0, 1.0, 5.0))
    for bill in ("used", "all"):
        found, _ = on_spot(offers=same, idle_usd=10.0, bill=bill)
        assert found["saves_pct"] < 0.0 and found["pays_up_to_times"] == 0.0
    used, whole = (on_spot(idle_usd=10.0, bill=x)[0]["usd_per_hour"] for x in ("used", "all"))
    assert whole == pytest.approx(used + 10.0)


def test_a_plan_that_uses_no_such_domain_has_nothing_to_tell():
    assert on_spot(offers=())[0] is None
    assert on_spot(offers=(None, None))[0] is None
    assert on_spot(group=(0, -1), offers=(None, OFFER))[0] is None
