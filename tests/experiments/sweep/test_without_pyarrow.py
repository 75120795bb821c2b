"""Without the packages of the extra: one line that says what to install."""

import sys

from experiments.sweep import __main__ as command


def test_a_missing_package_is_named(tmp_path, monkeypatch, capsys):
    out = tmp_path / "run"
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert command.main(["--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert "pyarrow: pip install 'hippo-sched[scale]'" in error and error.count("\n") == 1
    assert not out.exists()
