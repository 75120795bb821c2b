"""Files of fitted link processes: what they hold, what they become, refusals."""

import numpy as np
import pytest
import yaml
from helpers.link_means import mean_factor
from helpers.toy_world import JOB, cluster_spec

from jaxsim.files.errors import InputError
from jaxsim.network.fitted_links import (
    FITTED_KINDS,
    KINDS,
    draw_links,
    fitted_links,
    is_file_name,
    load_link_processes,
    parse_link_processes,
    process_of_links,
)
from jaxsim.scenario import ScenarioSettings, build_world, scenario_bank

pytestmark = pytest.mark.slow  # as a whole: its tests share what takes long to compile

BODY = {
    "centre": 1.0, "dip_scale": 0.2, "dip_tail": 0.1, "peak_scale": 0.1, "peak_tail": 0.0,
    "white": 0.5, "tau_s": 120.0,
}  # fmt: skip
STATE = {"level": 0.5, "rtt": 1.5, "share": 0.1, "stay_s": 300.0}


def body(**changes):
    file = {
        "interval_s": 60,
        "source": "somewhere",
        "kind": "regime",
        "processes": {
            "regime": [
                {"path": "a>b", "weight": 10, "body": dict(BODY), "regime": dict(STATE)},
                {"path": "b>a", "weight": 30, "body": dict(BODY), "regime": {**STATE, "level": 2}},
            ],
            "uniform": [{"path": "a>b", "weight": 10, "uniform": {"amplitude": 0.3}}],
        },
    }
    return {**file, **changes}


def parse(file):
    return parse_link_processes(yaml.safe_dump(file), "f.yaml")


def test_a_file_survives_writing_and_reading():
    file = parse(body())
    assert parse_link_processes(file.to_yaml(), "again") == file


def test_what_ships_holds_every_kind_and_is_read_back_as_written():
    shipped = load_link_processes()
    assert set(shipped.processes) == set(KINDS) and shipped.interval_s == 60
    assert parse_link_processes(shipped.to_yaml(), "again") == shipped
    for kind in FITTED_KINDS:
        links = shipped.processes[kind]
        assert len({link.path for link in links}) == len(links) > 5
        rows = np.arange(len(links) ** 2).reshape(len(links), -1) % len(links)
        mean = np.asarray(mean_factor(process_of_links(links, rows, 60.0)))
        assert np.all((mean > 0.6) & (mean < 1.1))


def test_settings_reach_their_links_in_intervals():
    links = parse(body()).processes["regime"]
    rows = np.array([[0, 1], [1, 0]])
    process = process_of_links(links, rows, 60.0)
    np.testing.assert_allclose(process.regime.level, [[0.5, 2.0], [2.0, 0.5]])
    np.testing.assert_allclose(process.regime.stay, 5.0)
    np.testing.assert_allclose(process.ou_tau, 2.0)
    np.testing.assert_allclose(process.tail.dip_scale, 0.2)
    assert process.outage is None and process.rtt_tail is None
    np.testing.assert_allclose(process_of_links(links, rows, 30.0).regime.stay, 10.0)


def test_links_are_drawn_by_weight():
    links = parse(body()).processes["regime"]
    rows = draw_links(links, 100, np.random.default_rng(0))
    np.testing.assert_allclose(rows.mean(), 0.75, atol=0.02)


def test_names_mean_kinds_files_and_kinds_in_files(tmp_path):
    path = tmp_path / "f.yaml"
    path.write_text(yaml.safe_dump(body()))
    assert set(fitted_links(str(path))[0].groups) == {"body", "regime"}
    assert set(fitted_links(f"{path}:uniform")[0].groups) == {"uniform"}
    assert fitted_links("outage") == load_link_processes().processes["outage"]
    assert is_file_name("x.yaml") and is_file_name("x.yml:ou") and not is_file_name("heavy")
    with pytest.raises(InputError, match="heavy is not among those fitted: regime, uniform"):
        fitted_links(f"{path}:heavy")


def changed(path, value):
    file = body()
    *parents, last = path
    at = file
    for key in parents:
        at = at[key]
    if value is None:
        del at[last]
    else:
        at[last] = value
    return file


REGIME = ("processes", "regime", 1)
BAD = [
    (("kind",), "heavy", ["kind", "regime, uniform", "'heavy'"]),
    (("interval_s",), 0, ["interval_s", "0.001"]),
    (("interval_s",), None, ["interval_s", "missing"]),
    (("extra",), 1, ["extra", "interval_s, source, kind, processes"]),
    (("processes",), {}, ["processes", *KINDS]),
    (("processes", "weird"), [], ["weird", *KINDS]),
    (("processes", "regime"), [], ["processes.regime", "at least one"]),
    ((*REGIME, "weight"), 0, ["processes.regime[1].weight", "got 0"]),
    ((*REGIME, "regime"), None, ["processes.regime[1]", "'regime'"]),
    ((*REGIME, "outage"), STATE, ["processes.regime[1]", "unknown key 'outage'", "rtt"]),
    ((*REGIME, "rtt"), dict.fromkeys(("dip_scale", "dip_tail", "peak_scale", "peak_tail"), 0.1),
     ["rtt", "all links have it or none"]),
    ((*REGIME, "regime", "level"), 0, ["processes.regime[1].regime.level", "0.01", "got 0"]),
    ((*REGIME, "regime", "share"), 1.0, ["regime.share", "0.95"]),
    ((*REGIME, "regime", "stay_s"), None, ["regime", "'stay_s'"]),
    ((*REGIME, "body", "dip_tail"), "fat", ["body.dip_tail", "0 to 1", "'fat'"]),
    ((*REGIME, "body", "white"), True, ["body.white", "True"]),
    ((*REGIME, "body", "centre"), float("nan"), ["body.centre", "nan"]),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value", "words"), BAD, ids=lambda x: str(x)[:40])
def test_bad_files_are_one_line_naming_file_and_key(path, value, words):
    with pytest.raises(InputError) as error:
        parse(changed(path, value))
    text = str(error.value)
    assert "\n" not in text
    for word in ["f.yaml", *words]:
        assert word in text, f"{word!r} is not in {text!r}"


def test_files_that_are_none(tmp_path):
    for text in ("[", "3", "a: [1, 2]"):
        with pytest.raises(InputError, match=r"f\.yaml"):
            parse_link_processes(text, "f.yaml")
    binary = tmp_path / "b.yaml"
    binary.write_bytes(b"\xff\xfe\x00\x81")
    for path in (tmp_path / "none.yaml", binary, tmp_path):
        with pytest.raises(InputError, match="cannot be read"):
            load_link_processes(path)


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=[pytest.mark.nightly] * (k != "regime")) for k in FITTED_KINDS]
)
def test_scenarios_take_fitted_processes_and_differ_by_seed(kind):
    world, _ = build_world(cluster_spec(3), JOB, table_size=4)
    settings = ScenarioSettings(jitter=kind)
    params, _ = scenario_bank(world, settings, range(6), "test")
    again, _ = scenario_bank(world, settings, range(6), "test")
    scale = np.asarray(params.network.tail.dip_scale)
    np.testing.assert_array_equal(scale, np.asarray(again.network.tail.dip_scale))
    assert scale.shape == (6, 3, 3) and len(np.unique(scale)) > 5
    assert (params.network.regime is not None) == (kind == "regime")
    assert (params.network.outage is not None) == (kind == "outage")


def test_unknown_jitter_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"uniform, ou, regime, heavy, outage, none or FILE"):
        ScenarioSettings(jitter="wild")
