"""Software stacks: which one a row is of, what follows for a job, bands and domains by hand."""

import math
import os

import pytest
import yaml

from jaxsim.cluster.band import FEATURES, Band, Domain, read_band, read_domain
from jaxsim.cluster.cluster import load_cluster, parse_cluster
from jaxsim.cluster.fits import efficiency_source
from jaxsim.cluster.gpu import FABRICS
from jaxsim.cluster.records import RECORDS, above_record
from jaxsim.cluster.stack import (
    FITTED_AS,
    POOLED,
    RULES,
    STACKS,
    known_stack,
    micro_batches_of_row,
    stack_of_row,
)
from jaxsim.files.errors import InputError
from jaxsim.workload.workload import RESHARD, JobSpec, ModelConfig

FOUNDRY = "mosaicml/llm-foundry@8c8dd48 scripts/train"


@pytest.mark.parametrize(
    ("row", "stack"),
    [
        ({"source": FOUNDRY, "note": "FSDP FULL_SHARD, mixed precision PURE"}, "llm-foundry-pure"),
        ({"source": FOUNDRY, "note": "FSDP, mixed precision DEFAULT"}, "llm-foundry"),
        ({"source": "pytorch/torchtitan@b5bcd76", "compile": "0"}, "torchtitan-eager"),
        ({"source": "pytorch/torchtitan@b5bcd76", "compile": "1"}, "torchtitan"),
        ({"source": "Narayanan et al. SC21", "zero_stage": "3"}, "deepspeed-zero3"),
        ({"source": "Narayanan et al. SC21", "attention": "unfused"}, "megatron-fused"),
        ({"source": "Narayanan et al. SC21", "attention": "flash"}, POOLED),
        ({"source": "my own cluster", "attention": "flash"}, POOLED),
        ({}, POOLED),
        ({"source": FOUNDRY, "stack": "torchtitan"}, "torchtitan"),
    ],
)
def test_the_stack_of_a_row_follows_from_one_table(row, stack):
    assert stack_of_row(row) == stack


def test_the_table_names_stacks_that_exist():
    assert {stack for _, stack in RULES} <= set(STACKS)
    assert set(FITTED_AS) <= set(STACKS) and set(FITTED_AS.values()) <= set(STACKS)
    model = ModelConfig(2, 256, 4, 4, 1024, 2, 1000)
    for stack in STACKS.values():
        assert stack.reshard in RESHARD and stack.source
        JobSpec(model, **stack.job_fields)


def test_an_unknown_stack_is_one_line():
    with pytest.raises(InputError) as error:
        known_stack("torchtitn", "c.yaml: stack")
    text = str(error.value)
    assert text.startswith("c.yaml: stack: unknown 'torchtitn' (did you mean torchtitan?)")
    assert "\n" not in text and "pooled" in text


def test_published_pipelines_of_torchtitan_have_as_many_micro_batches_as_stages():
    row = {"source": "pytorch/torchtitan@b5bcd76"}
    assert micro_batches_of_row(row, 8) == 8 and micro_batches_of_row(row, 1) is None
    assert micro_batches_of_row({**row, "stack": "torchtitan"}, 8) is None, "a user says what ran"
    assert micro_batches_of_row({"source": FOUNDRY}, 8) is None


INSIDE = dict.fromkeys(FEATURES, 8.0)


def test_distance_counts_doublings_outside_the_box():
    domain = Domain({name: (4.0, 16.0) for name in FEATURES})
    assert domain.distance(INSIDE) == 0.0 and domain.outside(INSIDE) == []
    far = {**INSIDE, "hidden": 64.0, "seq": 1.0}
    assert domain.distance(far) == pytest.approx(2 + 2)
    assert domain.outside(far) == ["hidden 64 (fitted 4 to 16)", "seq 1 (fitted 4 to 16)"]


def test_a_band_by_hand():
    band = Band(step=0.05, memory=0.1, per_doubling=0.5)
    assert band.reach(0.0) == pytest.approx(1.644854 * 0.05)
    assert band.reach(2.0) == pytest.approx(1.644854 * 0.1)
    assert band.reach(0.0, spread=0.12) == pytest.approx(1.644854 * math.hypot(0.05, 0.12))
    assert band.reach(0.0, memory=True) == pytest.approx(1.644854 * 0.1)


@pytest.mark.parametrize(
    ("read", "body", "words"),
    [
        (read_band, {"step": 0.1, "memory": 0.1}, "missing key 'per_doubling'"),
        (read_band, {"step": -1, "memory": 0.1, "per_doubling": 0}, "x.step"),
        (read_domain, {"hiden": [1, 2]}, "did you mean hidden?"),
        (read_domain, {"hidden": 3}, "x.hidden: expected the smallest and the largest"),
        (read_domain, {"hidden": [0, 3]}, "x.hidden"),
    ],
)
def test_a_bad_band_or_domain_is_one_line(read, body, words):
    with pytest.raises(InputError) as error:
        read(body, "x")
    assert words in str(error.value) and "\n" not in str(error.value)


def test_a_utilisation_above_the_record_names_it():
    record = RECORDS["A100", False]
    assert above_record(record.share, "A100-80GB") == ""
    text = above_record(record.share + 0.15, "A100-40GB")
    assert "77 % of peak" in text and "62 %" in text and record.run in text
    assert above_record(0.7, "H100-80GB") and not above_record(0.7, "H100-80GB", float8=True)
    assert above_record(0.99, "V100-32GB") == "", "no record is kept"


def test_a_cluster_says_its_stack_and_its_fabric():
    text = load_cluster().to_yaml()
    assert load_cluster().stack == "megatron-flash" and "stack: megatron-flash" in text
    assert parse_cluster(text, "c").stack == "megatron-flash"
    pooled = text.replace("stack: megatron-flash\n", "")
    assert parse_cluster(pooled, "c").stack == POOLED
    (old,) = (line for line in pooled.splitlines() if line.startswith("intra_domain"))
    named = parse_cluster(pooled.replace(old, "intra_domain: {fabric: efa-p5}"), "c")
    assert (named.intra_bandwidth_gbps, named.intra_rtt_ms) == FABRICS["efa-p5"]
    for bad, words in (
        (pooled.replace(old, "intra_domain: {fabric: efa}"), "intra_domain.fabric"),
        (text.replace("megatron-flash", "megatron"), "c: stack: unknown 'megatron'"),
    ):
        with pytest.raises(InputError) as error:
            parse_cluster(bad, "c")
        assert words in str(error.value) and "\n" not in str(error.value)


def test_a_part_without_a_fit_takes_that_of_the_part_whose_data_sheet_is_nearest():
    # Of H100-96GB-500W and H100-80GB under torchtitan, the memory of the second is nearer to an H200's.
    assert efficiency_source("H200-141GB", "torchtitan").used == "H100-80GB/torchtitan"
    assert efficiency_source("H200-141GB").used == "GH200-96GB"
    assert efficiency_source("A800-80GB", "llm-foundry").used == "A100-80GB/llm-foundry"


def own_fits(folder, straggler, name="A100-80GB/llm-foundry"):
    """A calibration file of one machine, and a cluster file that names it beside itself."""
    parameters = {"straggler": {"value": straggler, "spread": 0.1}}
    body = {"calibrations": {name: {"parameters": parameters}}}
    (folder / "mine.yaml").write_text(yaml.safe_dump(body))
    text = load_cluster().to_yaml()
    lines = [line for line in text.splitlines() if not line.startswith(("stack:", "calibration:"))]
    lines += ["stack: llm-foundry", "calibration: mine.yaml"]
    path = folder / "cluster.yaml"
    path.write_text("\n".join(lines))
    return path


def test_a_cluster_file_may_name_a_calibration_of_its_own(tmp_path):
    spec = load_cluster(own_fits(tmp_path, 0.3))
    assert float(spec.calibration.straggler) == pytest.approx(0.3)
    source = spec.efficiency_source
    assert source.file == str(tmp_path / "mine.yaml") and source.used == "A100-80GB/llm-foundry"
    # From any folder: the path is whole. A file that is written again is read again.
    again = parse_cluster(spec.to_yaml(), "elsewhere/c.yaml")
    assert again.calibration_file == spec.calibration_file and again.stack == "llm-foundry"
    os.utime(own_fits(tmp_path, 0.4).parent / "mine.yaml", ns=(1, 1))
    assert float(load_cluster(tmp_path / "cluster.yaml").calibration.straggler) == pytest.approx(
        0.4
    )


def test_a_cluster_file_that_names_a_wrong_calibration_is_refused_by_name(tmp_path):
    path = own_fits(tmp_path, 0.3, name="V100-32GB/llm-foundry")
    text = path.read_text()
    for body, words in (
        (text, "mine.yaml: calibrations: none for A100-80GB; the file has: V100-32GB/llm-foundry"),
        (text.replace("mine.yaml", "mne.yaml"), "mne.yaml"),
        (
            text.replace("mine.yaml", "[1]"),
            "cluster.yaml: calibration: expected a calibration file",
        ),
        (text.replace("mine.yaml", "''"), "cluster.yaml: calibration: expected a calibration file"),
    ):
        path.write_text(body)
        with pytest.raises(InputError) as error:
            load_cluster(path)
        assert words in str(error.value) and "\n" not in str(error.value)
