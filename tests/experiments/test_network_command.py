"""Fitting processes to measured paths and trying predictors on them: known truths, real records."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from helpers.toy_world import cluster_spec

from analysis.report.report import write_report
from experiments import cli
from jaxsim.files.errors import InputError
from jaxsim.network.checks import (
    check_crossed,
    check_later,
    check_others,
    pooled,
    replicate,
    simulate,
)
from jaxsim.network.fitted_links import (
    FITTED_KINDS,
    FittedLink,
    LinkProcesses,
    load_link_processes,
    process_of_links,
)
from jaxsim.network.fitting import autocorrelation, combine, fit_path, hidden_states
from jaxsim.network.prediction import best_predictor, held_out_errors, summarise_errors
from jaxsim.network.series import Series, read_series

DATA = Path(__file__).parents[2].parent / "shared" / "data"
TESTS_CSV = DATA / "traces" / "cloudpilot_iperf3_tests.csv"
needs_paths = pytest.mark.skipif(
    not TESTS_CSV.is_file(), reason=f"no measured paths in {DATA}/traces"
)
LONG = 6000
BODY = {
    "centre": 1.0, "dip_scale": 0.2, "dip_tail": 0.15, "peak_scale": 0.1, "peak_tail": 0.05,
    "white": 0.3, "tau_s": 600.0,
}  # fmt: skip
CALM = {**BODY, "dip_scale": 0.04, "dip_tail": 0.0, "peak_scale": 0.03, "peak_tail": 0.0,
        "white": 1.0}  # fmt: skip
REGIME = {"level": 0.6, "rtt": 1.0, "share": 0.2, "stay_s": 600.0}
OUTAGE = {"level": 0.1, "rtt": 1.0, "share": 0.03, "stay_s": 180.0}


def fit_links(series, interval_s, kind):
    return combine([fit_path(one, interval_s, kind) for one in series], interval_s, kind)


def played(groups, count=3, length=LONG, seed=0):
    """Records of one link's process, without gaps, around their medians."""
    link = FittedLink("known", 1.0, groups)
    process = process_of_links((link,), np.zeros((2, 2), int), 60.0)
    out = np.asarray(simulate(process, jax.random.key(seed), jnp.arange(length)))
    columns = out.reshape(length, -1).T[:count]
    rows = np.arange(length)
    return [Series(f"p{i}", rows, x / np.median(x), None) for i, x in enumerate(columns)]


# --- known truths -------------------------------------------------------------------------------


def test_a_heavy_tail_is_recovered():
    for link in fit_links(played({"body": BODY}), 60.0, "heavy"):
        body = link.groups["body"]
        for key in ("dip_scale", "peak_scale"):
            np.testing.assert_allclose(body[key], BODY[key], rtol=0.2)
        np.testing.assert_allclose(body["dip_tail"], BODY["dip_tail"], atol=0.08)
        np.testing.assert_allclose(body["white"], BODY["white"], atol=0.12)
        np.testing.assert_allclose(body["tau_s"], BODY["tau_s"], rtol=0.4)


def test_two_regimes_are_recovered():
    for link in fit_links(played({"body": CALM, "regime": REGIME}, length=2000), 60.0, "regime"):
        regime = link.groups["regime"]
        np.testing.assert_allclose(regime["level"], REGIME["level"], rtol=0.05)
        np.testing.assert_allclose(regime["share"], REGIME["share"], atol=0.06)
        np.testing.assert_allclose(regime["stay_s"], REGIME["stay_s"], rtol=0.35)
        np.testing.assert_allclose(link.groups["body"]["dip_scale"], CALM["dip_scale"], rtol=0.2)


def test_outages_are_recovered():
    for link in fit_links(played({"body": CALM, "outage": OUTAGE}), 60.0, "outage"):
        outage = link.groups["outage"]
        np.testing.assert_allclose(outage["level"], OUTAGE["level"], rtol=0.05)
        np.testing.assert_allclose(outage["share"], OUTAGE["share"], atol=0.012)
        np.testing.assert_allclose(outage["stay_s"], OUTAGE["stay_s"], rtol=0.3)


def test_drift_and_uniform_jitter_are_recovered():
    drift = {"drift": {"sigma": 0.1, "tau_s": 600.0}}
    for link in fit_links(played(drift), 60.0, "ou"):
        np.testing.assert_allclose(link.groups["drift"]["sigma"], 0.1, rtol=0.15)
        np.testing.assert_allclose(link.groups["drift"]["tau_s"], 600.0, rtol=0.35)
    for link in fit_links(played({"uniform": {"amplitude": 0.25}}), 60.0, "uniform"):
        np.testing.assert_allclose(link.groups["uniform"]["amplitude"], 0.25, rtol=0.05)


def test_the_round_trip_is_recovered_beside_the_states():
    generator = np.random.default_rng(0)
    (one,) = played({"body": CALM, "outage": OUTAGE}, count=1)
    out = one.factor < 0.5
    rtt = np.exp(0.02 * generator.normal(size=LONG)) * np.where(out, 3.0, 1.0)
    (link,) = fit_links([Series("p", one.row, one.factor, rtt)], 60.0, "outage")
    np.testing.assert_allclose(link.groups["outage"]["rtt"], 3.0, rtol=0.02)
    for side in ("dip", "peak"):
        np.testing.assert_allclose(link.groups["rtt"][f"{side}_scale"], 0.02, rtol=0.1)


def test_states_are_found_across_gaps():
    states = np.repeat([0, 1, 0, 1, 0], 30)
    noise = 0.05 * np.random.default_rng(0).normal(size=150)
    gaps = np.ones(149)
    gaps[29::30] = 200.0
    found = hidden_states(noise - 0.7 * states, gaps) > 0.5
    np.testing.assert_array_equal(found, states == 1)


def test_a_record_without_memory_or_states_gets_none():
    for one in played({"body": CALM}):
        assert fit_path(one, 60.0, "heavy").groups["body"]["white"] == 1.0
        assert fit_path(one, 60.0, "outage").groups["outage"]["share"] == 0.0


def test_autocorrelation_takes_pairs_exactly_so_far_apart():
    row = np.array([0, 1, 2, 10, 11, 30])
    values = np.array([1.0, -1.0, 1.0, -1.0, 1.0, -1.0])
    correlation, count = autocorrelation(values, row, (1, 2, 3, 19))
    np.testing.assert_array_equal(count, [3, 1, 0, 1])
    np.testing.assert_allclose(correlation, [-1.0, 1.0, np.nan, -1.0])


def test_simulated_records_look_like_the_measured_ones():
    row = np.array([0, 1, 2, 500, 501, 5000])
    series = [Series("a", row, np.ones(6), None), Series("b", np.arange(40), np.ones(40), None)]
    link = FittedLink("known", 1.0, {"body": CALM})
    copies = replicate(series, (link,), 60.0, np.zeros((3, 2), int), 0)
    assert [[len(x) for x in copy] for copy in copies] == [[6, 40]] * 3
    assert all(abs(np.median(x) - 1) < 1e-6 for copy in copies for x in copy)


def test_the_pooled_figures_by_hand():
    figures = pooled([np.array([0.5, 1.0, 1.0]), np.array([1.0, 1.4])])
    np.testing.assert_allclose(figures, [-40.0, 0.0, 0.0, 32.0, 40.0], atol=1e-6)


# --- reading ------------------------------------------------------------------------------------


def csv(path, frame):
    frame.to_csv(path, index=False)
    return str(path)


def trace_file(path, n_paths=4, length=120, groups=None):
    """A trace CSV of simulated paths in three bursts with long gaps."""
    groups = groups or {"body": BODY, "regime": REGIME}
    frames = []
    for i, one in enumerate(played(groups, n_paths, length)):
        t_s = 60.0 * (np.arange(length) + 1000 * (np.arange(length) // 40))
        columns = {"t_s": t_s, "src": f"s{i}", "dst": "d", "factor": one.factor}
        frames.append(pd.DataFrame(columns))
    return csv(path, pd.concat(frames))


def test_series_keep_their_gaps_and_their_round_trip(tmp_path):
    seconds = [0, 20, 70, 3600, *range(7200, 7200 + 60 * 20, 60)]
    frame = pd.DataFrame({
        "path": "a>b", "unix_s": seconds, "received_mbps": 10.0, "median_rtt_ms": 40.0
    })  # fmt: skip
    frame.loc[0, ["received_mbps", "median_rtt_ms"]] = [30.0, 80.0]
    series, left_out = read_series([csv(tmp_path / "t.csv", frame)], 60)
    (one,) = series
    assert left_out == {} and one.path == "a>b"
    np.testing.assert_array_equal(one.row[:4], [0, 1, 60, 120])
    np.testing.assert_allclose(one.factor[:3], [2.0, 1.0, 1.0])
    np.testing.assert_allclose(one.rtt[:3], [1.5, 1.0, 1.0])
    np.testing.assert_array_equal(np.bincount(one.bursts()), [2, 1, 20])
    assert len(one.first(0.5)) + len(one.rest(0.5)) == len(one)


def test_trace_files_are_paths_too(tmp_path):
    series, _ = read_series([trace_file(tmp_path / "t.csv")], 60)
    assert [one.path for one in series] == ["s0>d", "s1>d", "s2>d", "s3>d"]
    assert all(len(one) == 120 and one.rtt is None for one in series)


# --- the commands -------------------------------------------------------------------------------


def hippo(*argv):
    return cli.main(["network", *map(str, argv)])


@pytest.mark.nightly
def test_fit_writes_a_file_that_scenarios_read_and_a_page(tmp_path, capsys):
    traces, out = trace_file(tmp_path / "t.csv"), tmp_path / "made.yaml"
    run = tmp_path / "run"
    assert hippo("fit", "--traces", traces, "--out", out, "--run-dir", run, "--kind", "regime") == 0
    made = load_link_processes(out)
    assert made.kind == "regime" and made.interval_s == 60 and "t.csv" in made.source
    assert [link.path for link in made.processes["heavy"]] == ["s0>d", "s1>d", "s2>d", "s3>d"]
    text = write_report([run]).read_text()
    for words in ("Fitted against measured", "What was not fitted", "later part", "random halves"):
        assert words in text
    drawn = {f"fitted-{what}.{kind}" for what in ("quantiles", "memory") for kind in ("png", "csv")}
    assert {p.name for p in (run / "figures").iterdir()} == drawn
    checks = pd.read_csv(run / "checks.csv")
    assert set(checks["kind"]) == set(made.processes) and len(checks) == 5 * 4 * 5
    np.testing.assert_allclose(
        checks["error_pp"], checks["predicted_pct"] - checks["measured_pct"], atol=1e-9
    )
    assert "the file alone means regime" in capsys.readouterr().out


def test_predict_writes_errors_and_a_page(tmp_path, capsys):
    traces = trace_file(tmp_path / "t.csv", groups={"body": {**CALM, "dip_scale": 0.2}})
    run = tmp_path / "run"
    arguments = ("--traces", traces, "--interval", 60, "--run-dir", run, "--json", "-")
    assert hippo("predict", *arguments) == 0
    result = json.loads(capsys.readouterr().out)
    errors = pd.DataFrame(result["errors"])
    assert result["best"] != "persistence" == result["reference"]
    best = errors[errors["predictor"] == result["best"]]
    assert np.all(best["gain_pct"] > 5) and np.all(errors["lo"] <= errors["error_pct"])
    assert "Predicting bandwidth" in write_report([run]).read_text()
    assert (run / "figures" / "prediction-errors.png").is_file()


@pytest.mark.nightly
def test_evaluate_plays_a_fitted_file(tmp_path, capsys):
    levels = {"body": {**CALM, "dip_scale": 0.0, "peak_scale": 0.0}, "regime": REGIME}
    links = [FittedLink("p", 1.0, levels)]
    steady = [FittedLink("p", 1.0, {"uniform": {"amplitude": 0.0}})]
    file = LinkProcesses(60.0, "by hand", "uniform", {"regime": links, "uniform": steady})
    path, out = tmp_path / "f.yaml", tmp_path / "run"
    path.write_text(file.to_yaml())
    cluster = cluster_spec(2)
    (tmp_path / "two.yaml").write_text(cluster.to_yaml())
    argv = "--schedulers best_static --seeds 2 --steps 256 --tuning-scenarios 0 --table-size 2"
    argv += f" --global-batch 8 --model gpt2-small --seq 128 --cluster {tmp_path}/two.yaml"
    argv += f" --jitter {path}:regime --scenario.base_spread 0 --out {out} --json -"
    assert cli.main(["evaluate", *argv.split()]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["scenario"]["settings"]["jitter"] == f"{path}:regime"
    rows = pd.read_csv(out / "links.csv")
    base = {pair: cluster.bandwidth_gbps[pair] for pair in ((0, 1), (1, 0))}
    index = [
        tuple(map(cluster.domains.index, pair))
        for pair in zip(rows["src"], rows["dst"], strict=True)
    ]
    factors = rows["bandwidth_gbps"].to_numpy() / [base[pair] for pair in index]
    assert set(np.round(factors, 4)) == {REGIME["level"], 1.0}


BAD = [
    (["fit", "--out", "x.yaml"], ["--traces"]),
    (["fit", "--traces", "none.csv", "--out", "x.yaml"], ["none.csv"]),
    (["fit", "--traces", "good.csv", "--out", "nowhere/x.yaml"], ["--out", "nowhere"]),
    (["fit", "--traces", "good.csv", "--out", "x.yaml", "--kind", "wild"], ["--kind", "heavy"]),
    (["fit", "--traces", "good.csv", "--out", "x.yaml", "--interval", "0"], ["--interval", ">= 1"]),
    (["fit", "--traces", "good.csv", "--out", "x.yaml", "--fit-share", "1"], ["--fit-share"]),
    (["fit", "--traces", "good.csv", "--out", "x.yaml", "--fast"], ["--fast"]),
    (["fit", "--traces", "good.csv", "good.csv", "--out", "x.yaml"], ["good.csv", "s0>d"]),
    (["fit", "--traces", "one.csv", "--out", "x.yaml"], ["--traces", "2 are needed"]),
    (["fit", "--traces", "short.csv", "--out", "x.yaml"], ["short.csv", "20 are needed"]),
    (["fit", "--traces", "header.csv", "--out", "x.yaml"], ["header.csv", "received_mbps"]),
    (["fit", "--traces", "value.csv", "--out", "x.yaml"], ["value.csv", "line 3", "factor"]),
    (["predict", "--traces", "one.csv"], ["--traces", "2 are needed"]),
    (["predict", "--traces", "sparse.csv"], ["--traces", "intervals in a row"]),
    (["forecast"], ["fit", "predict"]),
]


@pytest.mark.parametrize(("argv", "words"), BAD, ids=lambda x: " ".join(x)[:50])
def test_bad_input_is_one_line_and_nothing_is_written(tmp_path, monkeypatch, capsys, argv, words):
    monkeypatch.chdir(tmp_path)
    trace_file(tmp_path / "good.csv")
    trace_file(tmp_path / "one.csv", n_paths=1)
    trace_file(tmp_path / "short.csv", length=10)
    (tmp_path / "header.csv").write_text("a,b\n1,2\n")
    (tmp_path / "value.csv").write_text("t_s,src,dst,factor\n0,a,b,1\n60,a,b,fast\n")
    rows = [f"{3600 * i},{s},d,1" for s in "ab" for i in range(30)]
    (tmp_path / "sparse.csv").write_text("\n".join(["t_s,src,dst,factor", *rows]) + "\n")
    before = sorted(tmp_path.iterdir())
    assert hippo(*argv) == 2
    error = capsys.readouterr().err.strip()
    assert error.startswith("error: ") and "\n" not in error
    for word in words:
        assert word in error, f"{word!r} is not in {error!r}"
    assert sorted(tmp_path.iterdir()) == before


def test_no_usable_path_is_said_with_the_reason(tmp_path):
    path = tmp_path / "dead.csv"
    rows = [f"{60 * i},a,b,0" for i in range(40)]
    path.write_text("\n".join(["t_s,src,dst,factor", *rows]) + "\n")
    with pytest.raises(InputError, match="nothing received"):
        read_series([path], 60)


# --- the measured paths -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def measured():
    return read_series([TESTS_CSV], 60)[0]


@needs_paths
@pytest.mark.parametrize("kind", FITTED_KINDS)
def test_a_fit_to_the_first_part_of_each_record_matches_the_rest(measured, kind):
    check = check_later(measured, 60.0, kind, 0.7, 0)
    assert np.all(np.abs(check.error[:4]) <= 5.0), check
    assert abs(check.error[4]) <= 3.0, check


@needs_paths
@pytest.mark.parametrize("kind", FITTED_KINDS)
def test_a_fit_to_some_paths_matches_the_others(measured, kind):
    fits = [fit_path(one, 60.0, kind) for one in measured]
    every_other = range(0, len(measured), 2)
    for check in (
        check_crossed(measured, fits, 60.0, kind, 0),
        check_others(measured, fits, 60.0, kind, every_other, 0),
    ):
        assert np.all(np.abs(check.error[:4]) <= 5.0), check
        assert abs(check.error[4]) <= 3.0, check
    # The other way round the few paths that dip most are those to be foreseen: too few for a
    # forecast within 5 points, but what was measured must lie within what the process may do.
    check = check_others(measured, fits, 60.0, kind, range(1, len(measured), 2), 0)
    assert np.all((check.low <= check.measured) & (check.measured <= check.high)), check


@needs_paths
def test_what_ships_is_what_the_command_fits(measured):
    for kind, links in load_link_processes().processes.items():
        for link, again in zip(links, fit_links(measured, 60.0, kind), strict=True):
            for group, values in again.groups.items():
                for key, value in values.items():
                    # A tail that is not there may be 0 or almost 0.
                    np.testing.assert_allclose(link.groups[group][key], value, rtol=0.02, atol=1e-3)


@pytest.mark.nightly
@needs_paths
def test_the_best_predictor_beats_persistence_on_paths_it_has_not_seen(measured):
    summary = summarise_errors(held_out_errors(measured, 0), 60.0, 0)
    best = summary[summary["predictor"] == best_predictor(summary)]
    assert len(best) >= 4 and np.all(best["gain_lo"] > 0), summary
    assert best["gain_pct"].mean() > 15
