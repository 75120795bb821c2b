"""Operators: what is counted, and the command as a user starts it."""

import functools
import json

import pytest

torch = pytest.importorskip("torch")
from helpers import toolbox_command  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from analysis.records import load  # noqa: E402
from ddp_bench.microbench.operators import KINDS  # noqa: E402
from experiments import microbench  # noqa: E402


@pytest.mark.parametrize("kind", ["gemm", "convolution"])
def test_operations_are_those_that_pytorch_counts(kind):
    for operator in KINDS[kind](torch.device("cpu")):
        with FlopCounterMode(display=False) as counter:
            operator.call()
        assert counter.get_total_flops() == operator.flop, operator.name


def test_masked_scores_are_no_work():
    """PyTorch counts all scores of attention; half of them are masked."""
    for operator in KINDS["attention"](torch.device("cpu")):
        if operator.name.endswith("eager forward"):
            with FlopCounterMode(display=False) as counter:
                operator.call()
            assert counter.get_total_flops() == 2 * operator.flop, operator.name


def test_attentions_agree():
    torch.manual_seed(0)
    found = {}
    for operator in KINDS["attention"](torch.device("cpu")):
        size, variant, how = operator.name.split()
        if how == "forward":
            found.setdefault(size, {})[variant] = operator.call()
    for by_variant in found.values():
        assert {"eager", "math"} <= set(by_variant)
        for output in by_variant.values():
            torch.testing.assert_close(output, by_variant["eager"], atol=1e-5, rtol=1e-4)


run = functools.partial(toolbox_command.run, "microbench")


@pytest.mark.nightly
def test_the_result_holds_what_was_measured(tmp_path):
    what = ("--what", "collectives,gemm,attention,copy", "--ranks", "2")
    what += ("--repeats", "2", "--limit_s", "0")
    sizes = ("--smallest_kb", "64", "--largest_kb", "512")
    given = (*what, *sizes, "--out", tmp_path / "run", "--json", tmp_path / "result.json")
    done = run(*given)
    assert done.returncode == 0, done.stderr
    assert not done.stderr.strip()
    result = json.loads((tmp_path / "result.json").read_text())
    assert len(result["collectives"]) == 6 * 4 and len(result["collective_models"]) == 6
    assert result["collective_model_error_pct"] >= 0
    assert result["gemm"] and result["attention"] and result["copy"]
    for row in result["gemm"] + result["attention"]:
        assert row["ci95_s"][0] <= row["median_s"] <= row["ci95_s"][1] and row["gflop_per_s"] > 0
    best = max(row["gflop_per_s"] for row in result["gemm"])
    assert result["roofline"]["peak_gflop_per_s"] == best
    record = load(tmp_path / "run")
    assert record.run["status"] == "finished" and record.run["packages"]["torch"]
    assert record.tables() == ["collectives", "collectives_cpu", "operators"]
    assert (tmp_path / "run" / "figures" / "roofline.png").is_file()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--what", "gemm,flops"), "what is 'gemm,flops': allowed all, collectives"),
        (("--ranks", "1"), "ranks is '1': allowed are numbers from 2 to 64"),
        (("--largest_kb", "2"), "largest_kb is 2: allowed 4 to"),
        (("--repeats", "1"), "repeats is 1: allowed are integers in [2, 10000]"),
        (("--steady_pct", "0"), "steady_pct is 0.0: allowed are numbers in (0, 1000000]"),
        (("--limit_s", "nan"), "limit_s is nan: allowed are numbers in [0, 1000000]"),
    ],
)
def test_bad_input_is_one_line(tmp_path, arguments, said):
    toolbox_command.assert_refused("microbench", tmp_path, arguments, said)


def test_hippo_passes_everything_on(capfd):
    assert microbench.main(["--ranks", "0"]) == 2
    assert "ranks is '0'" in capfd.readouterr().err
