"""A machine's parameters are found again, its data-parallel steps are predicted, bad files refused."""

import copy
import json

import pytest
from helpers import microbenches

from analysis.records import load
from experiments.calibrate import __main__ as calibrate
from experiments.calibrate.microbench import is_microbench, read_bench
from experiments.validate import __main__ as validate
from jaxsim.cluster import load_fits


@pytest.fixture(scope="module")
def body():
    return microbenches.body()


@pytest.fixture
def file(body, tmp_path):
    path = tmp_path / "machine.json"
    path.write_text(json.dumps(body))
    return path


def test_a_result_is_known_by_its_keys(file, tmp_path):
    assert is_microbench(str(file))
    other = tmp_path / "profile.json"
    other.write_text('{"1": {}}')
    assert not is_microbench(str(other)) and not is_microbench(None)
    assert not is_microbench(str(tmp_path / "runs.csv"))


def test_the_sheet_is_the_best_that_was_seen(file, body):
    bench = read_bench(str(file))
    best = max(
        2e-12 * m * n * k / row["median_s"]
        for (m, n, k), row in zip(microbenches.PRODUCTS, body["gemm"], strict=True)
    )
    assert bench.sheet.peak_tflops == pytest.approx(best)
    assert bench.groups == (microbenches.RANKS,) and set(bench.models) == set(microbenches.MODELS)
    assert bench.attentions[0].tolist()[:3] == [8.0, 128.0, 32.0]  # heads of all sequences
    assert not [s for s in bench.without("tiny").steps if s.model == "tiny"]


def changed(body, change):
    copy = json.loads(json.dumps(body))
    change(copy)
    return copy


BAD = [
    (lambda b: b.update(device="H100"), "device: expected one of cpu, got 'H100'"),
    (lambda b: b.pop("models"), "missing key 'models'"),
    (lambda b: b["gemm"][1].update(median_s=-1), "gemm[1].median_s: expected a number >= 1e-09"),
    (lambda b: b["gemm"][1].update(name="0x1x1 float32"), "gemm[1].name: expected an integer >= 1"),
    (lambda b: b.update(attention=[]), "attention: expected a list of at least one measurement"),
    (lambda b: b.update(optimizer=[{"name": "sgd loop"}]), "optimizer: no row 'adamw loop'"),
    (
        lambda b: b["collectives"][0].update(ranks=1),
        "collectives[0].ranks: expected an integer >= 2",
    ),
    (lambda b: b["models"]["tiny"].update(heads=3), "models.tiny: heads: 3 do not divide"),
    (lambda b: b["steps"][0].update(model="huge"), "steps[0].model: expected one of tiny"),
    (lambda b: b["steps"][0].update(talk="loud"), "steps[0].talk: expected one of none, message"),
    (lambda b: b["steps"][0].update(ci95_s=1), "steps[0].ci95_s: expected two numbers"),
    (
        lambda b: b["steps"].append(b["steps"][0]),
        "steps: a model, number of ranks and talk stand twice",
    ),
    (
        lambda b: b.update(steps=[s for s in b["steps"] if s["talk"] != "ddp"]),
        "steps: none of talk 'ddp'",
    ),
    (
        lambda b: b.update(steps=[s for s in b["steps"] if s["talk"] != "beside"]),
        "deep with 2 ranks has no row of talk 'beside'",
    ),
    (
        lambda b: b.update(steps=[s for s in b["steps"] if s["model"] != "tiny"]),
        "2 models with 2 ranks; at least 3",
    ),
    (lambda b: b.update(cores=0), "cores: expected an integer >= 1"),
]


@pytest.mark.parametrize(("change", "said"), BAD, ids=[said for _, said in BAD])
def test_bad_files_are_refused_in_one_line(body, tmp_path, capsys, change, said):
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(changed(body, change)))
    assert calibrate.main(["--data", str(path), "--out", str(tmp_path / "out.yaml")]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and f"{path}: " in err and said in err, err
    assert [f.name for f in tmp_path.iterdir()] == ["bad.json"]


def test_options_of_measured_runs_are_refused(file, tmp_path, capsys):
    out = str(tmp_path / "out.yaml")
    assert calibrate.main(["--data", str(file), "--out", out, "--gpu", "A100-80GB"]) == 2
    assert "gpu: goes with measured runs" in capsys.readouterr().err
    assert validate.main(["--data", str(file)]) == 2
    assert "calibration: none given" in capsys.readouterr().err


def test_a_file_without_the_machine_is_refused(file, tmp_path, capsys):
    other = tmp_path / "other.yaml"
    other.write_text("calibrations: {A100: {parameters: {straggler: 0.01}}}\n")
    assert validate.main(["--data", str(file), "--calibration", str(other)]) == 2
    assert (
        f"{other}: calibrations: none for cpu-2-ranks; the file has: A100"
        in capsys.readouterr().err
    )


@pytest.mark.nightly
def test_no_rank_has_more_than_the_machine(body, tmp_path, monkeypatch):
    """Ranks together were measured in a faster moment: their shares of rates stay below one."""
    monkeypatch.chdir(tmp_path)
    faster = copy.deepcopy(body)
    for step in faster["steps"]:
        if step["ranks"] > 1:
            step["median_s"] *= 0.4
            step["ci95_s"] = [0.4 * x for x in step["ci95_s"]]
    file, out = tmp_path / "faster.json", tmp_path / "machine.yaml"
    file.write_text(json.dumps(faster))
    assert calibrate.main(["--data", str(file), "--out", str(out)]) == 0
    alone, shared = (fit.belief.calibration() for fit in load_fits(out).values())
    assert float(shared.gemm_efficiency) == pytest.approx(float(alone.gemm_efficiency), rel=1e-3)
    assert float(shared.gemm_efficiency) < 1.0


@pytest.mark.nightly
def test_the_loop_closes_on_a_made_up_machine(file, tmp_path, monkeypatch, capsys):
    """Where the simulator is right, its parameters are found and steps that nobody fitted are met."""
    monkeypatch.chdir(tmp_path)
    out, merit = tmp_path / "machine.yaml", tmp_path / "merit.json"
    assert calibrate.main(["--data", str(file), "--out", str(out)]) == 0
    fits = load_fits(out)
    assert list(fits) == ["cpu-1-ranks", "cpu-2-ranks"]
    alone, shared = (fits[name].belief.calibration() for name in fits)
    share = float(shared.gemm_efficiency / alone.gemm_efficiency)
    assert share == pytest.approx(microbenches.SHARE, rel=0.03)
    true = microbenches.TRUE | microbenches.OF_RANKS
    # Rates are shares of the best that was seen, which is slower than the machine's own sheet.
    seen, own = read_bench(str(file)).sheet, microbenches.SHEET
    best = {
        "memory_efficiency": seen.memory_gb_per_s / own.memory_gb_per_s,
        "nvlink_efficiency": seen.nvlink_gb_per_s / own.nvlink_gb_per_s,
    }
    for name in (*best, "optimizer_bytes", "collective_alpha_s"):
        found = best.get(name, 1.0) * float(getattr(shared, name))
        truth = true[name] * (microbenches.SHARE if name == "memory_efficiency" else 1.0)
        assert found == pytest.approx(truth, rel=0.1), name
    assert float(shared.dp_overlap) == pytest.approx(true["dp_overlap"], abs=0.011)
    command = ["--data", str(file), "--calibration", str(out), "--json", str(merit)]
    assert validate.main([*command, "--out", str(tmp_path / "run")]) == 0
    result = json.loads(merit.read_text())["datasets"]["machine"]
    assert result["n"] == 3 and result["mape_pct"] < 2.0
    assert len(load(tmp_path / "run").table("metrics")) == 3
    assert (tmp_path / "run" / "report.md").is_file()
