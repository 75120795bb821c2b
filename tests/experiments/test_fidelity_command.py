"""fidelity: the comparison of the closed form and the event-exact one, as a run folder."""

import numpy as np
import pytest

from analysis.records import load
from experiments.fidelity import __main__ as command
from experiments.fidelity import ratios as fidelity


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


@pytest.mark.parametrize("argv", [["--samples", "0"], ["--spread", "1"], ["--sample", "3"]])
def test_bad_input_is_one_line(tmp_path, monkeypatch, capsys, argv):
    monkeypatch.chdir(tmp_path)
    assert command.main(argv) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and argv[0][2:] in err
    assert not list(tmp_path.iterdir())
