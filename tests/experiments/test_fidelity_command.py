"""fidelity: the comparison of the closed form and the event-exact one, as a run folder."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.registry import plan_rules, rivals_with_rules
from analysis.records import load
from experiments.common import GLOBAL_BATCH, load_world
from experiments.fidelity import __main__ as command
from experiments.fidelity import ratios as fidelity
from jaxsim.plan import Schedule
from jaxsim.planning import base_view, complete
from jaxsim.step_time import job_step_cost
from jaxsim.trees import take


@pytest.mark.nightly
def test_the_comparison_is_recorded_and_drawn(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(fidelity, "LATENCIES", (0.01, 1.0))
    monkeypatch.setattr(fidelity, "JITTERS", (0.0, 0.8))
    out = tmp_path / "run"
    argv = ["--samples", "3", "--micro_batches", "8", "--spread", "0", "--out", str(out)]
    assert command.main(argv) == 0
    record = load(out)
    table = record.table("ratios")
    assert len(table) == 2 * 2 * 3 * len(fidelity.SCHEDULES)
    assert (out / "figures" / "fidelity.png").stat().st_size > 10_000
    assert "fidelity.png" in capsys.readouterr().out
    # Where nothing changes inside the step, no fixed order is faster than the closed form says.
    still = table[(table["jitter"] == 0) & (table["schedule"] != "greedy")]
    assert still["ratio"].max() <= 1 + 1e-5
    one = table[(table["schedule"] == "1F1B") & (table["sweep"] == "latency")]
    assert one["ratio"].min() > 0.98
    # Links that change inside the step are what the closed form does not see.
    moved = table[(table["schedule"] == "1F1B") & (table["sweep"] == "jitter")]
    by_jitter = moved.groupby("jitter")["ratio"].apply(lambda r: np.abs(r - 1).mean())
    assert by_jitter[0.8] > by_jitter[0.0] + 0.01
    worst = record.summary["worst"]["latency / 1F1B"]
    np.testing.assert_allclose(worst["min"], one["ratio"].min(), rtol=1e-6)


@pytest.mark.parametrize(
    "argv",
    [
        ["--samples", "0"],
        ["--spread", "1"],
        ["--sample", "3"],
        ["--model", "nobody", "--orders", "true"],
        ["--layout_limit", "0"],
    ],
)
def test_bad_input_is_one_line(tmp_path, monkeypatch, capsys, argv):
    monkeypatch.chdir(tmp_path)
    assert command.main(argv) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and argv[0][2:] in err
    assert not list(tmp_path.iterdir())


@pytest.mark.nightly
def test_orders_outside_the_menu_are_asked_of_every_plan_that_a_rival_may_play(tmp_path, capsys):
    """What CrossPipe would gain by a greedy order, plan by plan: each of its pipelines with every
    micro-batch and recomputation that it may choose."""
    out = tmp_path / "run"
    assert command.main(["--orders", "true", "--out", str(out)]) == 0
    table = load(out).table("orders").set_index("scheduler")
    assert "crosspipe" in capsys.readouterr().out and len(table) == 1 + len(rivals_with_rules())
    assert (table["withheld_pct"] >= 0).all() and load(out).summary["withheld_pct"]["crosspipe"] > 0
    times = table.drop(columns="withheld_pct")
    # Whoever may play every row is behind nobody.
    assert (times.min(axis=1) >= times.loc["best_static"].min() * (1 - 1e-6)).all()
    rules = plan_rules(["crosspipe"])
    _, world, _ = load_world(None, "llama-7b", GLOBAL_BATCH, 4096, 48, rules)
    problem, view = world.problem.job(0), base_view(world.problem.cluster)
    menu, kinds = problem.choices, (Schedule.GREEDY,)
    price = jax.jit(lambda plan: job_step_cost(plan, problem, view, schedules=kinds))
    steps = []
    for row, choice in np.argwhere(np.asarray(world.table.candidates_of["crosspipe"])):
        plan = take(world.table.plans, int(row))
        done, fits = complete(plan, jnp.int32(choice), problem, view)
        cost = price(done.replace(schedule=jnp.full_like(done.schedule, Schedule.GREEDY)))
        steps += [float(cost.step_s)] if bool(fits & cost.runs) else []
    assert menu.size > 1 and len(steps) > 1
    assert times.loc["crosspipe", "greedy_s"] == pytest.approx(min(steps), rel=1e-4)
