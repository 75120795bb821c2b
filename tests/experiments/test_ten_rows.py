"""Ten runs of a stack that no fit has seen, given to `calibrate --adapt`, predict its other runs."""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from experiments.calibrate import __main__ as calibrate
from experiments.validate import __main__ as validate

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
DRAWS, TEN = 4, 10
CASES = {
    "llm-foundry": (("fsdp_a100",), ("fsdp_h100",)),
    "torchtitan": (("torchtitan_h100", "torchtitan_h100_parallel"),),
    "deepspeed-eager": (("sailor",),),
}


def run(module, *argv):
    assert module.main([str(x) for x in argv]) == 0, argv


def table(name):
    """The rows of a data set of which the time was measured, with the name of their file."""
    (path,) = DATA.glob(f"measured*/{name}.csv")
    with path.open() as lines:
        return [(name, row) for row in csv.DictReader(lines) if row["step_s"]]


def write(folder, rows):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name in {name for name, _ in rows}:
        mine = [row for of, row in rows if of == name]
        with (folder / f"{name}.csv").open("w") as out:
            writer = csv.DictWriter(out, mine[0])
            writer.writeheader()
            writer.writerows(mine)
    return folder


def base_without(stack, folder):
    """A calibration file of everything but the runs of a stack."""
    out = {name for group in CASES[stack] for name in group}
    for path in (*DATA.glob("measured*/*.csv"), *DATA.glob("profiles/*")):
        if path.stem not in out:
            target = folder / "rest" / path.relative_to(DATA)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
    base = folder / "base.yaml"
    options = ("--leave_out", "false", "--run", folder / "fit")
    run(calibrate, "--data", folder / "rest", "--out", base, *options)
    return base


def error_pct(rows, calibration, folder):
    """Mean absolute error of `validate` over the rows."""
    target = folder / "merit.json"
    shutil.rmtree(folder / "predicted", ignore_errors=True)
    options = ("--calibration", calibration, "--json", target, "--out", folder / "predicted")
    run(validate, "--data", write(folder / "others", rows), *options)
    found = json.loads(target.read_text())["datasets"].values()
    return sum(d["n"] * d["mape_pct"] for d in found) / sum(d["n"] for d in found)


@pytest.mark.nightly
@pytest.mark.skipif(not DATA.exists(), reason="the measured runs are not here")
@pytest.mark.parametrize("stack", CASES)
def test_ten_rows_of_an_unseen_stack_bring_its_others_within_eight_per_cent(stack, tmp_path):
    base, adapted = base_without(stack, tmp_path), tmp_path / "adapted.yaml"
    for group in CASES[stack]:
        rows, before, after = [row for name in group for row in table(name)], [], []
        for seed in range(DRAWS):
            order = np.random.default_rng(seed).permutation(len(rows))
            ten, others = ([rows[i] for i in part] for part in (order[:TEN], order[TEN:]))
            given = write(tmp_path / "ten", ten)
            options = ("--adapt", stack, "--base", base, "--run", tmp_path / f"{group[0]}-{seed}")
            run(calibrate, "--data", given, "--out", adapted, *options)
            before.append(error_pct(others, base, tmp_path))
            after.append(error_pct(others, adapted, tmp_path))
        said = f"{', '.join(group)}: {np.mean(before):.1f} -> {np.mean(after):.1f} %"
        print(f"{said}, worst draw {max(after):.1f} %")
        assert np.mean(after) <= 8.0 and np.mean(after) < np.mean(before), said
