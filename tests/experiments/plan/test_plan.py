"""`hippo plan`: the answer is the simulator's, its figures add up, its claims about changes hold."""

import functools
import json

import jax.numpy as jnp
import numpy as np
import pytest

from experiments.cli import main
from experiments.plan import remarks
from experiments.plan.config import PlanConfig
from experiments.plan.planning import answered
from experiments.plan.question import asked
from experiments.plan.screen import screen
from jaxsim.cluster.cluster import load_cluster
from jaxsim.files.errors import InputError
from jaxsim.plan.plan import Plan
from jaxsim.step_time import job_step_cost

CLUSTER = """
name: three-sites
gpu: A100-80GB
stack: llm-foundry
domains:
  - {name: north, gpus: 8, gpus_per_node: 8, usd_per_gpu_hour: 2.0}
  - {name: south, gpus: 8, gpus_per_node: 8, usd_per_gpu_hour: 1.5}
  - {name: west, gpus: 4, gpus_per_node: 4, usd_per_gpu_hour: 1.0}
intra_domain: {bandwidth_gbps: 400, rtt_ms: 0.05}
wan:
  bandwidth_gbps: [[0, 5.1, 3.0], [5.1, 0, 4.2], [3.0, 4.2, 0]]
  rtt_ms: [[0, 30, 61], [30, 0, 44], [61, 44, 0]]
  egress_usd_per_gb: [[0, 0.02, 0.02], [0.02, 0, 0.02], [0.02, 0.02, 0]]
"""
JOB = {"model": "llama-7b", "global_batch": 256, "tokens": 1e11}
TOP = {
    *("plan", "step_s", "tokens_per_s", "memory_gb_max", "wan_gb_per_step", "usd_per_mtoken"),
    *("gain_over_pct", "pareto", "alternatives", "search", "gap_pct"),
}
OF_A_PLAN = {
    *("plan", "step_s", "step_s_band", "efficiency", "efficiency_band", "effective_tokens_per_s"),
    *("usd_per_effective_mtoken", "memory_gb_max", "wan_gb_per_step", "in_calibrated_domain"),
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    path = tmp_path_factory.mktemp("cluster") / "three-sites.yaml"
    path.write_text(CLUSTER)
    return str(path)


@pytest.fixture(scope="module")
def ask(cluster):
    """The answer to a question, each asked once."""

    @functools.cache
    def answer(**said):
        config = PlanConfig(cluster=cluster, **{**JOB, **said})
        return answered(config, asked(config))

    return answer


def carried_out(told, cluster, **said):
    """What the simulator says of the plan that was told."""
    question = asked(PlanConfig(cluster=cluster, **{**JOB, **said}))
    fields = {k: jnp.asarray(v, jnp.int32) for k, v in told["plan"]["fields"].items()}
    return job_step_cost(Plan(**fields), question.problem, question.view)


def test_the_json_is_what_outside_scripts_read(ask):
    result = ask()
    assert set(result) >= TOP and set(result["gain_over_pct"]) == {
        *("single_domain", "static_even_split")
    }
    assert set(result["alternatives"]) == {"synchronous", "any"}
    for told in result["alternatives"].values():
        assert set(told) >= OF_A_PLAN
    assert result["search"] in ("exact", "beam") and result["gap_pct"] >= 0
    assert result["step_s"] == result["alternatives"]["any"]["step_s"]
    json.dumps(result, allow_nan=False)


def test_the_predicted_step_is_that_of_the_simulator(ask, cluster):
    for told in ask()["alternatives"].values():
        cost = carried_out(told, cluster)
        assert bool(cost.runs)
        np.testing.assert_allclose(float(cost.step_s), told["step_s"], rtol=1e-6)
        np.testing.assert_allclose(np.max(cost.memory_gb), told["memory_gb_max"], rtol=1e-6)
        low, high = told["step_s_band"]
        assert low < told["step_s"] < high
        sent = sum(link["gb_per_step"] for link in told["wan"])
        np.testing.assert_allclose(sent, told["wan_gb_per_step"], rtol=1e-5)
        assert sum(told["bound_by"]["shares"].values()) == pytest.approx(1.0, abs=1e-3)


def test_synchronous_is_synchronous_and_any_is_not_slower(ask):
    result = ask()
    plain, other = result["alternatives"]["synchronous"], result["alternatives"]["any"]
    assert plain["plan"]["sync_period"] == 1 and plain["plan"]["wire_bits"] == 16
    assert plain["efficiency"] == 1.0
    lower = [told["effective_tokens_per_s_band"][0] for told in (plain, other)]
    assert lower[1] >= lower[0] * (1 - 1e-6)
    assert (
        lower[1] <= other["efficiency_band"][0] * other["tokens_per_s"]
    )  # speed has a band as well


def test_days_and_usd_add_up_and_idle_gpus_are_charged_as_asked(ask, cluster):
    used, whole = ask(), ask(bill="all", quick=True)
    for result, bill in ((used, "used"), (whole, "all")):
        for told in result["alternatives"].values():
            days = 1e11 / told["effective_tokens_per_s"] / 86400
            assert told["days"] == pytest.approx(days)
            assert told["usd"] == pytest.approx(told["usd_per_hour"] * 24 * days)
            assert told["days_band"][0] < told["days"] < told["days_band"][1]
            spec = load_cluster(cluster)
            assert 0 <= told["idle_gpus"] < sum(spec.gpus)
            if bill == "all":
                every = sum(g * p for g, p in zip(spec.gpus, spec.usd_per_gpu_hour, strict=True))
                assert told["usd_per_hour"] >= every
    one = used["alternatives"]["synchronous"]
    again = whole["alternatives"]["synchronous"]
    assert again["usd_per_hour"] == pytest.approx(one["usd_per_hour"] + one["idle_usd_per_hour"])


def test_runners_up_come_in_order_and_are_other_places(ask):
    result = ask()
    behind = [one["behind_pct"] for one in result["runners_up"]]
    assert behind == sorted(behind) and behind[0] >= 0.0
    # The measure is the one that is told of the best plan: effective tokens/s at the lower end.
    low = result["alternatives"]["any"]["effective_tokens_per_s_band"][0]
    for one in result["runners_up"]:
        expected = 100.0 * (1.0 - one["effective_tokens_per_s_lo"] / low)
        assert one["behind_pct"] == pytest.approx(expected, abs=0.01)
        assert f"{one['plan']} ({one['talks']}): {one['behind_pct']:.1f} % behind" in screen(result)
    chances = [result["probability_best"], *(x["probability_best"] for x in result["runners_up"])]
    assert min(chances) >= 0.0 and 0.0 < sum(chances) <= 1.0 + 1e-9
    seen = [(one["plan"], one["talks"].partition(",")[0]) for one in result["runners_up"]]
    assert len(set(seen)) == len(seen) >= 2
    best = result["plan"]["label"]
    assert f"Runners-up to {best} (" in screen(result)


def test_a_runner_up_names_the_plan_that_it_is_ahead_of_where_it_wins(ask):
    result = ask()
    wins = [(one, change) for one in result["runners_up"] for change in one["wins_if"]]
    assert wins
    for one, change in wins:
        over = change["over"]
        assert set(over) == {"plan", "talks"}
        assert (over["plan"], over["talks"]) != (one["plan"], one["talks"])
    text = screen(result)
    assert text.count(", ahead of ") == len(wins)


def test_beyond_a_threshold_a_search_of_its_own_finds_another_plan(ask):
    """The threshold comes from a pool of plans; the links change and everything is searched anew."""
    changes = [one for one in ask()["changes"] if one["links"] == "all"]
    assert changes
    one = changes[0]
    further = one["factor"] * (0.5 if one["side"] == "slower" else 2.0)
    there = ask(what_if=f"link=all,factor={further}")["what_if"]
    assert not there["same_place"] or there["talks"] != ask()["alternatives"]["any"]["talks"]
    # On this side of it the plan stays.
    nearer = one["factor"] ** 0.3
    here = ask(what_if=f"link=all,factor={nearer}")["what_if"]
    assert here["same_place"] and here["switch"]["s"] >= 0
    assert one["switch"]["s"] > 0 and one["switch"]["gb"] >= 0


def test_a_domain_that_is_gone_is_not_used(ask):
    told = ask(what_if="domain=north,gpus=0")["what_if"]
    assert "north" not in told["best"]["plan"]["label"]
    if "north" in ask()["plan"]["label"]:
        assert told["kept"] is None and told["gain_pct"] is None
        assert told["switch"]["owed_gb"] == 0.0  # there is no ring left to sync over


@pytest.mark.nightly
def test_sites_with_gpus_of_their_own_give_the_faster_ones_more_to_do(ask, tmp_path):
    """South gets H100 and the price of two; north and west stay."""
    path = tmp_path / "mixed.yaml"
    faster = "usd_per_gpu_hour: 3.0, gpu: H100-80GB}"
    path.write_text(CLUSTER.replace("usd_per_gpu_hour: 1.5}", faster))
    config = PlanConfig(cluster=str(path), **JOB)
    result = answered(config, asked(config))
    types = {"north": "A100-80GB", "south": "H100-80GB", "west": "A100-80GB"}
    assert result["asked"]["gpu_of"] == types
    assert "south 8 H100-80GB" in screen(result)
    for name, told in result["alternatives"].items():
        assert told["tokens_per_s"] > 1.1 * ask()["alternatives"][name]["tokens_per_s"]
        cost = carried_out(told, str(path))
        assert told["step_s"] == pytest.approx(float(cost.step_s), rel=1e-5)
        assert all(gb <= 85.9 for gb in told["memory_gb"].values())
    # A replica on each site: south has most of the batch, by far more than its share of the GPUs.
    plan = Plan(**{k: np.array(v) for k, v in told["plan"]["fields"].items()})
    sequences = (plan.dp * plan.micro_batch * plan.batch_share)[plan.group]
    assert sequences[1] > 2.0 * sequences[0]
    # What the same question asks of the cluster as it was finds as good a plan.
    change = "domain=south,gpu=H100-80GB,usd_per_gpu_hour=3"
    there = ask(what_if=change)["what_if"]["best"]
    best = result["alternatives"]["any"]
    assert there["effective_tokens_per_s"] == pytest.approx(
        best["effective_tokens_per_s"], rel=0.01
    )


def test_a_slower_link_slows_the_plan_that_uses_it(ask):
    told = ask(what_if="link=all,factor=0.1")["what_if"]
    base = ask()["alternatives"]["any"]
    assert told["kept"]["step_s"] >= base["step_s"] * (1 - 1e-6)
    worth = [x["effective_tokens_per_s_band"][0] for x in (told["best"], told["kept"])]
    assert worth[0] >= worth[1] * (1 - 1e-6)
    gain = 100.0 * (worth[0] / worth[1] - 1.0)
    assert told["gain_pct"] == pytest.approx(gain, abs=0.1)
    assert 0.0 <= told["switch"]["owed_gb"] <= told["switch"]["gb"] * (1 + 1e-6)


def test_a_budget_chooses_a_plan_that_keeps_to_it(ask):
    free = ask()["alternatives"]["any"]["usd_per_hour"]
    result = ask(budget=0.6 * free)
    told = result["alternatives"]["any"]
    assert told["usd_per_hour"] <= 0.6 * free and not told["over_budget"]
    assert result["gap_of"] == "worth" and result["gap_pct"] >= 0.0
    assert result["search"] == "exact" or "is worth over" in screen(result)
    # Runners-up keep to it as well, and none of them is ahead.
    assert result["ranked_by"] == "speed within the limits" and result["runners_up"]
    assert all(one["behind_pct"] >= 0 for one in result["runners_up"])
    assert "plans that keep the limits" in screen(result)
    for change in result["changes"]:
        assert (change["factor"] < 1) == (change["side"] == "slower")
    beyond = ask(budget=0.01)
    assert beyond["ranked_by"] is None and not beyond["runners_up"] and not beyond["changes"]
    assert beyond["alternatives"]["any"]["over_budget"]
    assert beyond["gap_pct"] is None and "best found (a limit is missed" in screen(beyond)


def test_a_plan_that_a_change_takes_over_the_budget_is_not_kept_without_a_word(ask):
    free = ask()["alternatives"]["any"]["usd_per_hour"]
    dear = ";".join(f"domain={name},usd_per_gpu_hour=9" for name in ("north", "south", "west"))
    result = ask(budget=0.6 * free, quick=True, what_if=dear)
    told = result["what_if"]
    assert told["kept_breaks"] == {"misses_deadline": False, "over_budget": True}
    assert "over the budget" in screen(result)


def test_where_weights_count_nobody_is_ranked_by_speed(ask):
    result = ask(weights="1,0,1,0")
    assert result["ranked_by"] is None and not result["runners_up"] and not result["changes"]
    assert "are left out under --weights" in screen(result)


def test_a_deadline_that_no_plan_meets_is_said(ask):
    result = ask(deadline=1e-3, quick=True)
    assert result["alternatives"]["any"]["misses_deadline"]
    assert "No plan found meets the deadline" in screen(result)


def test_the_front_has_no_plan_that_another_beats(ask):
    front = ask(pareto=True)["pareto"]
    speed = [one["effective_tokens_per_s_lo"] for one in front]
    price = [one["usd_per_effective_mtoken_hi"] for one in front]
    assert len(front) >= 2
    assert speed == sorted(speed, reverse=True) and price == sorted(price, reverse=True)


def test_the_screen_says_it_all(ask):
    text = screen(ask(pareto=True))
    for said in (
        *(
            "best synchronous plan",
            "best of any plan",
            "days for 100e9",
            "USD for 100e9",
            "idle GPUs",
        ),
        *("bound by", "search", "Runners-up", "The plan changes where", "Speed against price"),
    ):
        assert said in text, said
    assert all(len(line) < 400 for line in text.splitlines())


def test_a_model_that_does_not_fit_has_no_plan(ask):
    result = ask(model="llama-405b", global_batch=16, quick=True)
    assert result["plan"] is None and result["step_s"] is None
    assert result["alternatives"] == {"synchronous": None, "any": None}
    assert "no plan can run" in screen(result)


def test_the_command_writes_a_run_folder_with_pictures(cluster, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    line = ["plan", "--cluster", cluster, "--model", "llama-7b", "--global-batch", "256"]
    assert main([*line, "--quick", "--figure", "--pareto", "--out", "run"]) == 0
    out = capsys.readouterr().out
    assert "run folder: run" in out and "figures/plan.png" in out
    for name in ("plan.png", "pareto.png"):
        assert (tmp_path / "run" / "figures" / name).stat().st_size > 10_000
    kept = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert set(kept) >= TOP
    assert main([*line, "--quick", "--json", "-", "--out", "run2"]) == 0
    assert json.loads(capsys.readouterr().out)["step_s"] == kept["step_s"]


def test_a_dry_run_reads_the_files_and_writes_nothing(cluster, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["plan", "--cluster", cluster, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "nothing was searched" in said and "how long: no finished run in outputs" in said
    assert not list(tmp_path.iterdir())
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    for more in (["--out", "full"], ["--export", "full", "--format", "ns3"]):
        assert main(["plan", "--cluster", cluster, "--dry-run", *more]) == 2
        assert "full" in capsys.readouterr().err
    assert (
        main(["plan", "--cluster", cluster, "--dry-run", "--what-if", "link=north:nowhere,gbps=1"])
        == 2
    )
    assert "nowhere" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ({"bill": "none"}, "bill: expected used or all"),
        ({"bill": "all", "budget": 9.0}, "budget: goes with --bill used"),
        ({"export": "o", "format": "ns3", "what_if": "x=1"}, "export: goes without --what-if"),
        ({"allow": "most"}, "allow: expected synchronous or any"),
        ({"deadline": 3.0, "tokens": None}, "deadline: goes with --tokens"),
        ({"tokens": 0.0}, "tokens: expected a number > 0"),
        ({"budget": -1.0}, "budget: expected a number > 0"),
        ({"weights": "1,0"}, "weights: expected four numbers"),
        ({"what_if": "link=a"}, "what_if"),
        ({"reserve_pct": -50.0}, "reserve_pct: expected a number >= 0 and < 100"),
        ({"reserve_pct": 100.0}, "reserve_pct"),
        ({"reserve_pct": float("nan")}, "reserve_pct"),
    ],
)
def test_a_bad_question_is_refused(said, named):
    with pytest.raises((InputError, ValueError), match=named):
        PlanConfig(**{**JOB, **said})


@pytest.mark.parametrize("given", ["-50", "nan", "100"])
def test_a_share_of_the_memory_that_cannot_be_is_one_line(given, capsys):
    assert main(["plan", "--reserve-pct", given]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "reserve_pct" in line


def test_memory_that_is_reserved_stays_free(ask):
    held = ask()["alternatives"]["any"]["memory_gb_held"]
    whole, spare = (ask(quick=True, reserve_pct=pct) for pct in (0.0, 55.0))
    for told in spare["alternatives"].values():
        assert told is None or told["memory_gb_max"] <= 0.45 * held
    for name, told in whole["alternatives"].items():
        other = spare["alternatives"][name]
        assert (
            other is None
            or other["effective_tokens_per_s"] <= 1.001 * told["effective_tokens_per_s"]
        )


def test_one_domain_alone_is_told_where_it_is_much_cheaper():
    plain = {"plan": {"label": "a>b"}, "tokens_per_s": 100.0, "usd_per_mtoken": 3.0}
    alone = {"plan": "a", "tokens_per_s": 92.0, "usd_per_mtoken": 1.0}
    (line,) = remarks._cheaper(alone, plain)
    assert line.startswith("a alone is 8 % slower") and "67 % less" in line
    assert remarks._cheaper({**alone, "usd_per_mtoken": 2.9}, plain) == []
    assert remarks._cheaper({**alone, "plan": "a>b"}, plain) == []
    assert remarks._cheaper(None, plain) == []


def test_a_doubt_says_which_plan_it_is_about():
    one = {"memory_gb_max_hi": 80.0, "memory_gb_held": 85.0}
    told = {"synchronous": {**one, "doubts": ["x", "y"]}, "any": {**one, "doubts": ["y", "z"]}}
    assert remarks._doubts(told) == [
        "note: y",
        "note on the best synchronous plan: x",
        "note on the best of any plan: z",
    ]
    tight = {**told["any"], "memory_gb_max": 60.0, "memory_gb_max_hi": 90.0}
    # A band that is half as much again fits where a third is free.
    assert remarks._doubts({**told, "any": tight})[-1].endswith("--reserve-pct 34.")
