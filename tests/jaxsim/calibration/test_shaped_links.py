"""Syncs over shaped links: by hand, and which rows of a table are refused."""

import numpy as np
import pytest
from helpers.toy_world import EFFICIENCIES, calibration

from jaxsim.calibration.shaped_links import (
    COLUMNS,
    SyncRun,
    is_sync_table,
    load_sync_runs,
    predict_sync_s,
)
from jaxsim.files.errors import InputError

GOOD = {
    "row_id": "r-0",
    "algorithm": "diloco",
    "H": 10,
    "world": 4,
    "bandwidth_gbps": 0.5,
    "steps": 105,
    "params_m": 30.8,
    "bytes_per_param": 4,
    "sync_blocked_s": 12.5,
}


def write(path, *changes, columns=COLUMNS):
    rows = [{**GOOD, "row_id": f"r-{i}", **change} for i, change in enumerate(changes)]
    lines = [",".join(columns), *(",".join(str(r[c]) for c in columns) for r in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_syncs_by_hand():
    e = EFFICIENCIES
    runs = [
        SyncRun("ddp", "ddp", 1, 4, 0.8, 50, 0.1232, 1.0),
        SyncRun("local", "localsgd", 10, 4, 0.8, 105, 0.1232, 1.0),
        SyncRun("every step", "diloco", 1, 2, 0.012, 7, 0.5, 1.0),
        SyncRun("too short", "diloco", 200, 4, 0.8, 105, 0.1232, 1.0),
    ]

    def ring(share, gbps, world, gb):
        reached = share * gbps / (1 + e["slow_link_gbps"] / gbps)  # half of it is lost at 0.012
        return 2 * (world - 1) / world * gb * 8 / reached

    expected = [
        50 * ring(e["wan_ring_efficiency"], 0.8, 4, 0.1232),
        10 * ring(e["outer_sync_efficiency"], 0.8, 4, 0.1232),  # floor(105 / 10)
        7 * ring(e["outer_sync_efficiency"], 0.012, 2, 0.5),  # whole weights, even every step
        0.0,
    ]
    got = predict_sync_s(runs, calibration())
    np.testing.assert_allclose(got, np.array(expected) + e["sync_fixed_s"], rtol=1e-5)
    np.testing.assert_allclose(expected[2], 7 * 0.5 * 8 / (0.95 * 0.006), rtol=1e-6)


def test_a_table_of_syncs(tmp_path):
    path = write(tmp_path / "s.csv", {}, {"algorithm": "ddp", "H": 1})
    assert is_sync_table(path)
    runs, left_out = load_sync_runs(path, strict=True)
    assert left_out == []
    assert runs[0] == SyncRun("r-0", "diloco", 10, 4, 0.5, 105, pytest.approx(0.1232), 12.5)
    assert (runs[1].algorithm, runs[1].sync_period) == ("ddp", 1)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"algorithm": "gossip"}, ["algorithm", "'gossip'"]),
        ({"H": 0}, ["H", "0"]),
        ({"bandwidth_gbps": -1}, ["bandwidth_gbps", "-1"]),
        ({"sync_blocked_s": "nan"}, ["sync_blocked_s", "nan"]),
        ({"sync_blocked_s": ""}, ["sync_blocked_s", "got ''"]),
        ({"steps": "many"}, ["steps", "'many'"]),
        ({"params_m": "inf"}, ["params_m", "inf"]),
    ],
)
def test_a_bad_row_is_left_out_or_refused(tmp_path, changes, words):
    path = write(tmp_path / "s.csv", {}, changes, {})
    runs, left_out = load_sync_runs(path)
    assert [r.row_id for r in runs] == ["r-0", "r-2"] and len(left_out) == 1
    for word in (f"{path}: line 3 (r-1): {words[0]}: ", *words):
        assert word in left_out[0]
    with pytest.raises(InputError) as error:
        load_sync_runs(path, strict=True)
    assert str(error.value) == left_out[0] and "\n" not in left_out[0]


@pytest.mark.parametrize("column", COLUMNS)
def test_a_missing_column_is_refused(tmp_path, column):
    path = write(tmp_path / "s.csv", {}, columns=[c for c in COLUMNS if c != column])
    assert not is_sync_table(path)
    with pytest.raises(InputError) as error:
        load_sync_runs(path)
    assert f"{path}: missing column {column!r}" in str(error.value)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00\x01"])
def test_a_file_that_is_no_table(tmp_path, content):
    path = tmp_path / "s.csv"
    path.write_bytes(content)
    assert not is_sync_table(path)
    with pytest.raises(InputError) as error:
        load_sync_runs(path)
    assert f"{path}: cannot be read as a table of syncs" in str(error.value)
