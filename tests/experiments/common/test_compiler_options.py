"""Options of XLA are added where it knows them."""

import os

from experiments.common.compiler_options import add_options


def test_what_xla_does_not_know_is_left_out(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=false")
    assert add_options("--xla_no_such_option=1") == ()
    assert os.environ["XLA_FLAGS"] == "--xla_cpu_enable_fast_math=false"
    assert add_options("--xla_cpu_enable_fast_math=false") == ()  # it is there
    assert add_options("--xla_cpu_enable_fast_min_max=false") == (
        "--xla_cpu_enable_fast_min_max=false",
    )
    assert os.environ["XLA_FLAGS"].split() == [
        "--xla_cpu_enable_fast_min_max=false",
        "--xla_cpu_enable_fast_math=false",
    ]
