"""Figures show the numbers they were given, and stay readable without colour."""

import subprocess
import sys
from itertools import combinations, pairwise
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import pytest
from helpers import synthetic_runs as synthetic

import analysis
from analysis import figures
from analysis.figures import comparison, episode, style, traffic, training
from analysis.figures.style import fill_styles, line_styles, luminance, role_marker
from analysis.statistics.bootstrap import bootstrap_interval, scenario_matrix


@pytest.fixture(scope="module")
def scenarios():
    return synthetic.scenarios(count=12)


def labels(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


def line(axes, label):
    return next(one for one in axes.lines if one.get_label().startswith(label))


# --- style --------------------------------------------------------------------------------------


def test_line_styles_differ_in_dash_or_marker_whatever_the_colour():
    shapes = [(style["linestyle"], style["marker"]) for style in line_styles(50)]
    assert len(set(shapes)) == 50
    with pytest.raises(ValueError, match="at most 50"):
        line_styles(51)


@pytest.mark.parametrize("count", range(2, 7))
def test_colours_of_few_lines_and_fills_differ_in_grey_as_well(count):
    for grey in (
        [luminance(one["color"]) for one in line_styles(count)],
        [luminance(one["facecolor"]) for one in fill_styles(count)],
    ):
        assert grey == sorted(grey)
        assert min(b - a for a, b in pairwise(grey)) > 0.02


def test_fills_differ_in_hatch_and_are_pale_enough_for_text():
    styles = fill_styles(10)
    assert len({style["hatch"] for style in styles}) == 10
    assert style.MOVING_HATCH not in {style["hatch"] for style in styles}
    assert min(luminance(style["facecolor"]) for style in styles) > 0.12
    with pytest.raises(ValueError, match="at most 10"):
        fill_styles(11)


def test_lines_stand_out_from_white():
    assert max(luminance(style["color"]) for style in line_styles(12)) < 0.6


def test_roles_differ_in_marker():
    roles = [role_marker(name, ["hi_ppo"]) for name in ("hi_ppo", "clairvoyant", "hysteresis")]
    assert all(a["marker"] != b["marker"] for a, b in combinations(roles, 2))


def test_luminance_of_known_colours():
    assert luminance((0, 0, 0)) == 0 and luminance((1, 1, 1)) == pytest.approx(1)
    assert luminance((0, 1, 0)) == pytest.approx(0.7152)


def test_heat_map_darkens_with_every_step_of_traffic():
    colours = matplotlib.colormaps[traffic.COLOUR_MAP](np.linspace(0, 1, 64))
    assert (np.diff([luminance(colour) for colour in colours]) < 0).all()


def test_drawing_leaves_the_callers_settings_and_pyplot_alone():
    before = dict(matplotlib.rcParams)
    figures.learning_curve(synthetic.metrics(updates=5))
    assert dict(matplotlib.rcParams) == before
    code = (
        "import sys, analysis.figures as f; from helpers import synthetic_runs;"
        "f.learning_curve(synthetic_runs.metrics(updates=5));"
        "print('matplotlib.pyplot' in sys.modules)"
    )
    path = [str(Path(analysis.__file__).parents[1]), str(Path(__file__).parents[2])]
    code = f"import sys; sys.path[:0] = {path}; {code}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# --- learning curve -----------------------------------------------------------------------------


def test_learning_curve_shows_the_seeds_their_mean_and_says_what_the_band_is():
    metrics, evaluations = synthetic.metrics(3, updates=20), synthetic.evaluations(3)
    left, right = figures.learning_curve(metrics, evaluations).axes
    assert labels(left) == [
        "single seeds",
        "mean of 3 seeds, band: min to max",
        "best static plan, steady links",
    ]
    wide = metrics.pivot(index="update", columns="seed", values="progress_rel")
    np.testing.assert_allclose(line(left, "mean of 3").get_ydata(), wide.mean(axis=1))
    np.testing.assert_allclose(line(left, "mean of 3").get_xdata(), metrics["env_steps"][:20])
    band = left.collections[0].get_paths()[0].vertices[:, 1]
    assert band.min() == pytest.approx(wide.min(axis=None))
    wide = evaluations.pivot(index="update", columns="seed", values="regret_pct")
    np.testing.assert_allclose(line(right, "mean of 3").get_ydata(), wide.mean(axis=1))
    assert "[%]" in right.get_ylabel() and "steps" in left.get_xlabel()


def test_learning_curves_side_by_side_over_steps_and_seconds():
    one = synthetic.evaluations(3).assign(train_s=lambda table: 2.0 * table["update"])
    two = one[one["update"] < 48].assign(env_steps=one["update"] * 10, train_s=0.5 * one["update"])
    left, right = figures.learning_compared({"exact": one, "ppo": two}).axes
    assert labels(left) == [
        "exact, mean of 3 seeds, band: min to max",
        "ppo, mean of 3 seeds, band: min to max",
        "ppo, untrained",  # the other's first evaluation is after its first steps
    ]
    wide = two.pivot(index="update", columns="seed", values="regret_pct").mean(axis=1)
    for axes, unit in ((left, 10), (right, 0.5)):
        drawn = line(axes, "ppo, mean of 3")
        np.testing.assert_allclose(drawn.get_xdata(), unit * np.array([12, 24, 36]))
        np.testing.assert_allclose(drawn.get_ydata(), wide[1:])
        assert line(axes, "ppo, untrained").get_ydata()[0] == pytest.approx(wide[0])
        assert axes.get_xscale() == "log"
    assert "[s]" in right.get_xlabel() and "steps" in left.get_xlabel()
    with pytest.raises(ValueError, match="two: no evaluation after the start"):
        figures.learning_compared({"two": two[two["update"] == 0]})


def test_learning_curve_of_many_seeds_uses_the_bootstrap_and_says_so():
    (axes,) = figures.learning_curve(synthetic.metrics(6, updates=10)).axes
    assert "interquartile mean of 6 seeds, band: 95 % bootstrap" in labels(axes)


def test_learning_curve_of_a_long_run_is_smoothed_and_says_so():
    (axes,) = figures.learning_curve(synthetic.metrics(3, updates=240)).axes
    assert "running mean of 4 updates" in axes.get_title(loc="left")


def test_running_mean_known_answer():
    np.testing.assert_allclose(
        training.running_mean(np.array([[1.0, 3.0, 5.0, 7.0]]), 2), [[1.0, 2.0, 4.0, 6.0]]
    )
    np.testing.assert_allclose(training.running_mean(np.array([1.0, 2.0]), 1), [1.0, 2.0])


def test_learning_curve_stops_where_the_shortest_seed_stops():
    metrics = synthetic.metrics(3, updates=10)
    short = metrics[(metrics["seed"] > 0) | (metrics["update"] < 6)]
    steps, values = training.common_updates(short, "progress_rel")
    assert values.shape == (3, 6) and len(steps) == 6
    with pytest.raises(ValueError, match="share no update"):
        training.common_updates(
            metrics[(metrics["seed"] > 0) == (metrics["update"] < 5)], "progress_rel"
        )
    with pytest.raises(ValueError, match="same update twice"):
        training.common_updates(pd.concat([metrics, metrics]), "progress_rel")


# --- schedulers ---------------------------------------------------------------------------------


def test_schedulers_are_ranked_by_progress_with_their_intervals(scenarios):
    axes = figures.schedulers_compared(scenarios).axes[0]
    means = scenarios.groupby("scheduler")["progress_rel"].mean().sort_values(ascending=False)
    assert [tick.get_text() for tick in axes.get_yticklabels()] == list(means.index)
    dots = [container.lines[0] for container in axes.containers]
    np.testing.assert_allclose([dot.get_xdata()[0] for dot in dots], 100 * means)
    row = list(means.index).index("hi_ppo")
    expected = bootstrap_interval(scenario_matrix(scenarios, "hi_ppo", "progress_rel").to_numpy())
    (ends,) = axes.containers[row].lines[2][0].get_segments()
    np.testing.assert_allclose(ends[:, 0], [100 * expected["lo"], 100 * expected["hi"]])
    assert dots[row].get_marker() == "D" and "12 scenarios" in axes.get_title(loc="left")


def test_schedulers_far_apart_are_enlarged_and_close_ones_are_not(scenarios):
    assert len(figures.schedulers_compared(scenarios).axes) == 2
    close = scenarios[scenarios["scheduler"].isin(["clairvoyant", "hi_ppo", "hysteresis"])]
    assert len(figures.schedulers_compared(close).axes) == 1


def test_a_single_scenario_is_drawn_without_an_interval(scenarios):
    one = scenarios[scenarios["scenario"] == 1000]
    axes = figures.schedulers_compared(one).axes[0]
    assert all(not container.has_xerr for container in axes.containers)


# --- reward -------------------------------------------------------------------------------------


def test_reward_bars_add_up_to_the_total(scenarios):
    axes = figures.reward_parts(scenarios, synthetic.WEIGHTS).axes[0]
    totals = scenarios.groupby("scheduler")["reward"].mean().sort_values(ascending=False)
    bars = [one for one in axes.containers if isinstance(one, matplotlib.container.BarContainer)]
    assert len(bars) == 3  # the fourth weight is zero
    stacked = sum(np.array([bar.get_width() for bar in group]) for group in bars)
    np.testing.assert_allclose(stacked, totals, atol=1e-12)
    assert len({group[0].get_hatch() for group in bars}) == 3


def test_reward_bars_of_one_sign_do_not_overlap(scenarios):
    axes = figures.reward_parts(scenarios, synthetic.WEIGHTS).axes[0]
    bars = [one for one in axes.containers if isinstance(one, matplotlib.container.BarContainer)]
    for row in zip(*bars, strict=True):
        spans = sorted(tuple(sorted((bar.get_x(), bar.get_x() + bar.get_width()))) for bar in row)
        assert all(a[1] <= b[0] + 1e-12 for a, b in pairwise(spans))


@pytest.mark.parametrize("weights", [None, (1, 0, 0), (1.0, 0.0, 0.0, 0.0)])
def test_reward_is_not_stacked_by_weights_that_do_not_explain_it(scenarios, weights):
    assert comparison.weighted_parts(scenarios, weights) is None
    figure = figures.reward_parts(scenarios, weights)
    assert figure.axes[0].get_title(loc="left") == "Reward, total"
    assert len(figure.axes) == 5


# --- episode ------------------------------------------------------------------------------------


def timeline_of(plans, moving):
    count = len(plans)
    return pd.DataFrame(
        {
            "scheduler": "hysteresis",
            "t_s": np.arange(count) * 60.0,
            "step_s": np.arange(count) + 5.0,
            "progress_rate": 0.1,
            "in_transition": moving,
            "plan": plans,
        }
    )


def test_timeline_draws_one_bar_per_stretch_and_hatches_moves():
    table = timeline_of(["p", "p", "q", "q", "q", "p"], [0, 0, 1, 0, 0, 0])
    axes = figures.episode_timeline(table, synthetic.links(6)).axes
    assert len(axes) == 3
    bars = [(p.get_x(), p.get_width(), p.get_hatch()) for p in axes[1].patches]
    assert [bar[:2] for bar in bars] == [(0, 2), (2, 1), (3, 2), (5, 1)]  # minutes
    assert [bar[2] == style.MOVING_HATCH for bar in bars] == [False, True, False, False]
    assert [text.get_text() for text in axes[1].texts] == ["A", "B", "A"]
    assert labels(axes[1]) == ["A: p", "B: q", "moving (no progress)"]
    steps = axes[2].lines[0].get_ydata()
    np.testing.assert_array_equal(steps, [5, 6, np.nan, 8, 9, 10])
    assert axes[2].get_xlabel() == "time [min]" and "[s]" in axes[2].get_ylabel()
    assert "[Gbit/s]" in axes[0].get_ylabel().replace("\n", " ")


def test_timeline_shows_chosen_schedulers_in_order_and_every_link():
    table = synthetic.timeline(30)
    chosen = ["hi_ppo", "best_static"]
    axes = figures.episode_timeline(table, synthetic.links(30), chosen, "progress_rate").axes
    assert [tick.get_text() for tick in axes[1].get_yticklabels()] == chosen
    assert len(axes[0].lines) == 12 and "7 steadier links" in labels(axes[0])
    assert labels(axes[2]) == chosen
    rows = table[table["scheduler"] == "hi_ppo"]
    np.testing.assert_array_equal(axes[2].lines[0].get_ydata(), rows["progress_rate"])


def test_timeline_gathers_rare_plans_under_one_label():
    table = timeline_of([f"plan{i}" for i in range(12)], [0] * 12)
    axes = figures.episode_timeline(table, synthetic.links(12)).axes[1]
    assert len(labels(axes)) == 10 and labels(axes)[-1] == "other plans"


def test_timeline_of_hours_says_hours_and_wild_step_times_get_a_log_axis():
    table = timeline_of(["p"] * 200, [0] * 200)
    table["step_s"] = np.geomspace(1, 1000, 200)
    axes = figures.episode_timeline(table, synthetic.links(200)).axes
    assert axes[2].get_xlabel() == "time [h]" and axes[2].get_yscale() == "log"


def test_timeline_refuses_unknown_names():
    table, links = synthetic.timeline(30), synthetic.links(30)
    with pytest.raises(ValueError, match=r"no timeline of \['sailor'\]; present are"):
        figures.episode_timeline(table, links, ["sailor"])
    with pytest.raises(ValueError, match="allowed are step_s, progress_rate"):
        figures.episode_timeline(table, links, measure="loss")


def test_stretches_of_equal_values():
    assert list(episode.runs_of_equal("aabaa")) == [(0, 2), (2, 3), (3, 5)]
    assert list(episode.runs_of_equal([])) == []


# --- traffic ------------------------------------------------------------------------------------


def test_traffic_map_has_source_rows_destination_columns_and_one_scale():
    table = pd.DataFrame(
        {
            "scheduler": ["a", "a", "b"],
            "src": ["x", "y", "x"],
            "dst": ["y", "x", "z"],
            "wan_gb_per_step": [4.0, 0.0, 0.001],
        }
    )
    first, second = figures.traffic_map(table).axes[:2]
    expected = np.array([[np.nan, 4, np.nan], [0, np.nan, np.nan], [np.nan] * 3])
    np.testing.assert_array_equal(first.images[0].get_array().filled(np.nan), expected)
    assert [text.get_text() for text in first.texts] == ["4", "0"]
    assert [text.get_text() for text in second.texts] == ["<.01"]
    assert [tick.get_text() for tick in first.get_yticklabels()] == ["x", "y", "z"]
    assert first.images[0].get_clim() == second.images[0].get_clim() == (0, 4)
    assert first.get_title(loc="left") == "a\ntotal 4 GB per step"


def test_traffic_map_refuses_unknown_schedulers_and_doubled_links():
    table = synthetic.traffic()
    with pytest.raises(ValueError, match=r"no traffic of \['mast'\]"):
        figures.traffic_map(table, ["mast"])
    with pytest.raises(ValueError, match="has a link twice"):
        figures.traffic_map(pd.concat([table, table]))


def test_traffic_map_of_no_traffic_and_of_many_domains_can_be_drawn(tmp_path):
    names = [f"domain-{i}" for i in range(14)]
    table = pd.DataFrame(
        [
            {"scheduler": "a", "src": s, "dst": d, "wan_gb_per_step": 0.0}
            for s in names
            for d in names
        ]
    )
    figure = figures.traffic_map(table)
    assert len(figure.axes[0].texts) == 0  # fourteen numbers a row would not be readable
    assert figures.save(figure, tmp_path / "map.png").stat().st_size > 1000


# --- fidelity -----------------------------------------------------------------------------------


def ratios(sweeps=("latency", "jitter")):
    """Two schedules; ratios whose quantiles are known: 0.90, 0.92, ..., 1.10 at every point."""
    spread = 0.9 + 0.02 * np.arange(11)
    rows = [
        {"sweep": sweep, "schedule": name, "x": x, "ratio": centre * ratio}
        for sweep in sweeps
        for name, centre in (("1F1B", 1.0), ("GPipe", 0.5))
        for x in (0.1, 1.0)
        for ratio in spread
    ]
    return pd.DataFrame(rows).sample(frac=1.0, random_state=0)  # order of rows does not matter


def test_fidelity_shows_the_median_ratio_of_every_schedule():
    figure = figures.closed_against_event(ratios(), "four domains")
    latency, jitter = figure.axes
    assert figure.get_suptitle() == "four domains"
    for axes in (latency, jitter):
        for name, centre in (("1F1B", 1.0), ("GPipe", 0.5)):
            drawn = line(axes, name)
            np.testing.assert_allclose(drawn.get_xdata(), [0.1, 1.0])
            np.testing.assert_allclose(drawn.get_ydata(), centre)
    assert latency.get_xscale() == "log" and jitter.get_xscale() == "linear"
    bands = [c.get_paths()[0].get_extents() for c in latency.collections]
    np.testing.assert_allclose([b.y0 for b in bands], [0.91, 0.455])
    np.testing.assert_allclose([b.y1 for b in bands], [1.09, 0.545])


def test_fidelity_refuses_sweeps_it_does_not_know():
    with pytest.raises(ValueError, match="altitude"):
        figures.closed_against_event(ratios(("latency", "altitude")))
    with pytest.raises(ValueError, match="expected some of"):
        figures.closed_against_event(ratios().head(0))
    assert len(figures.closed_against_event(ratios(("jitter",))).axes) == 1


# --- links --------------------------------------------------------------------------------------


def movement(key, at, **sources):
    return pd.DataFrame([
        {"source": name, key: k, "value": v, "lo": v - 1.0, "hi": v + 2.0}
        for name, values in sources.items()
        for k, v in zip(at, values, strict=True)
    ])  # fmt: skip


def test_quantiles_of_every_process_are_drawn_against_those_measured():
    levels = [0.05, 0.5, 0.95]
    table = movement(
        "level", levels, measured=[-20.0, 0.0, 10.0], heavy=[-25, 0, 12], ou=[-9, 0, 9]
    )
    figure = figures.fitted_quantiles(table)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["heavy", "ou"]
    dots = [one for one in figure.axes[0].lines if one.get_marker() == "o"]
    np.testing.assert_allclose(dots[0].get_xdata(), [-20, 0, 10])
    np.testing.assert_allclose(dots[0].get_ydata(), [-25, 0, 12])
    with pytest.raises(ValueError, match="measured"):
        figures.fitted_quantiles(table[table["source"] != "measured"])


def test_memory_and_shares_are_drawn_beside_those_measured():
    memory = movement("lag_s", [60, 120], measured=[0.3, 0.2], regime=[0.2, 0.1])
    shares = movement("path", ["a>b", "b>a"], measured=[2.0, 9.0], regime=[3.0, 8.0])
    left, right = figures.fitted_memory(memory, shares).axes
    np.testing.assert_allclose(line(left, "regime").get_ydata(), [0.2, 0.1])
    assert [bar.get_height() for bar in right.patches] == [9.0, 2.0]  # in order of the share
    np.testing.assert_allclose(line(right, "regime").get_ydata(), [8.0, 3.0])


def test_errors_of_predictors_and_what_they_save_are_drawn_by_horizon():
    rows = [
        {"predictor": name, "horizon_s": h, "error_pct": e, "lo": e - 1, "hi": e + 1,
         "gain_pct": gain, "gain_lo": gain - 2, "gain_hi": gain + 2}
        for name, e, gain in (("persistence", 8.0, 0.0), ("median", 6.0, 25.0))
        for h in (20.0, 60.0)
    ]  # fmt: skip
    left, right = figures.prediction_errors(pd.DataFrame(rows), "persistence").axes
    assert labels(left) == ["persistence", "median"]
    assert len(left.containers) == 2 and len(right.containers) == 1  # not against itself
    drawn = np.asarray(right.containers[0].lines[0].get_ydata(), float)
    np.testing.assert_allclose(drawn, [25.0, 25.0])
