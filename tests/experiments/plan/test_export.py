"""Launch files: they add up, frameworks read them with their own parsers, the impossible is refused."""

import argparse
import dataclasses
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from helpers import read_by_frameworks
from helpers.launches import EVEN, LAUNCHES, MODEL, PREDICTED, launch, named

from experiments.doctor.checks import RELEASES
from experiments.plan.config import EXPORT_FORMATS, PlanConfig
from experiments.plan.export import export_plan, exported
from experiments.plan.export.megatron import arguments
from experiments.plan.export.writing import readme
from jaxsim.files.errors import InputError

SELDOM = {"sync_period": 30, "wire_bits": 8, "fragments": 8, "overlap": 1}


@pytest.mark.parametrize("name", LAUNCHES)
def test_a_job_has_every_rank_once_and_the_whole_batch(name):
    job = named(name)
    assert sum(p.sequences for p in job.pipelines) == job.global_batch
    for pipeline in job.pipelines:
        assert sum(pipeline.stages) == job.model.layers
        assert sum(s.nodes * s.per_node for s in pipeline.sites) == pipeline.gpus
        node = 0
        for site in pipeline.sites:
            assert site.first_node == node and site.per_node % pipeline.tp == 0
            # A domain's ranks hold its own stages and no others.
            assert site.nodes * site.per_node == len(site.stages) * pipeline.dp * pipeline.tp
            node += site.nodes


@pytest.mark.parametrize("name", LAUNCHES)
def test_torchtitan_takes_every_plan_and_the_scripts_are_shell(name, tmp_path):
    job = named(name)
    files = export_plan(job, "torchtitan", tmp_path / "out")
    sites = [site.name for pipeline in job.pipelines for site in pipeline.sites]
    assert files == sorted(["README.md", "hippo_plan.py", *(f"launch-{s}.sh" for s in sites)])
    for script in (tmp_path / "out").glob("*.sh"):
        assert script.stat().st_mode & 0o100
        assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
    compile((tmp_path / "out" / "hippo_plan.py").read_text(), "hippo_plan.py", "exec")
    readme = (tmp_path / "out" / "README.md").read_text()
    assert "torchtitan 0.3.0" in readme and "## Exact" in readme and "## Not expressed" in readme


def test_a_script_without_its_variables_says_which_is_missing(tmp_path):
    export_plan(named("one"), "torchtitan", tmp_path / "out")
    done = subprocess.run(
        ["bash", tmp_path / "out" / "launch-a.sh"],
        capture_output=True,
        text=True,
        check=False,
        env={},
    )
    assert done.returncode != 0 and "MASTER_ADDR" in done.stderr


def test_local_sgd_goes_to_torchft_and_what_it_cannot_is_said():
    job = named("replicas", pp=1, dp=8, **SELDOM)
    made = exported(job, "torchtitan")
    text = made.files["hippo_plan.py"]
    for said in ('semi_sync_method="diloco"', "sync_steps=32", "num_fragments=8", "replica_id=1"):
        assert said in text
    assert "fragment_sync_delay=1" in text and "should_quantize=True" in text
    notes = " ".join(made.nearest)
    assert "32 is the nearest above" in notes and "quantises to 8" in notes
    pipelined = exported(named("replicas", **SELDOM), "torchtitan")
    assert "num_fragments=1" in pipelined.files["hippo_plan.py"]
    assert any("One fragment is sent whole" in note for note in pipelined.nearest)


@pytest.mark.parametrize("form", ["megatron", "deepspeed"])
def test_who_has_no_local_sgd_says_so_and_gives_the_nearest(form):
    made = exported(named("replicas", **SELDOM), form)
    assert any("has no local SGD" in note and "every step" in note for note in made.nearest)
    assert not any("local SGD" in note for note in exported(named("replicas"), form).nearest)


def test_maxtext_has_the_period_the_fragments_and_the_delay():
    made = exported(named("replicas", model=EVEN, **SELDOM), "maxtext")
    body = yaml.safe_load(made.files["maxtext.yml"])
    # 12 layers: one fragment beside 6 of two layers each, as 7 do not divide them; 35 steps, not 30.
    assert body["diloco_sync_period"] == 35 and body["num_diloco_fragments"] == 7
    assert "35 steps and 7 fragments are the nearest" in " ".join(made.nearest)
    assert not any("sync period" in note for note in made.exact)
    assert body["num_communication_overlapping_steps"] == 1
    assert body["dcn_diloco_parallelism"] == 2 and body["dcn_data_parallelism"] == 1
    plain = yaml.safe_load(exported(named("replicas", model=EVEN), "maxtext").files["maxtext.yml"])
    assert plain["dcn_data_parallelism"] == 2 and "enable_diloco" not in plain


def megatron_parser():
    """The arguments of a plan, as `megatron/training/arguments.py` of core 0.16 adds them."""
    parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    for name in (
        *("num-layers", "hidden-size", "ffn-hidden-size", "num-attention-heads", "seq-length"),
        *("max-position-embeddings", "tensor-model-parallel-size", "pipeline-model-parallel-size"),
        *("context-parallel-size", "micro-batch-size", "global-batch-size", "num-query-groups"),
        *("recompute-num-layers", "train-iters"),
    ):
        parser.add_argument(f"--{name}", type=int)
    for name in ("attention-dropout", "hidden-dropout"):
        parser.add_argument(f"--{name}", type=float)
    for name in (
        *("bf16", "group-query-attention", "swiglu", "disable-bias-linear", "sequence-parallel"),
        *("untie-embeddings-and-output-weights", "use-distributed-optimizer"),
        "use-tp-pp-dp-mapping",
    ):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--normalization", choices=["LayerNorm", "RMSNorm"])
    embeddings = ["learned_absolute", "rope", "yarn", "mrope", "relative", "none"]
    parser.add_argument("--position-embedding-type", choices=embeddings)
    parser.add_argument("--recompute-granularity", choices=["full", "selective"])
    parser.add_argument("--recompute-method", choices=["uniform", "block"])
    parser.add_argument("--pipeline-model-parallel-layout")
    return parser


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("name", ["one", "replicas"])
def test_megatron_knows_every_argument_and_value(name, recompute):
    job = named(name, recompute=recompute)
    words = " ".join(arguments(job, job.pipelines[0])).split()
    read = megatron_parser().parse_args(words)
    assert read.global_batch_size == job.global_batch and read.num_query_groups == 4
    assert read.recompute_granularity == (None if recompute == "none" else recompute)
    with pytest.raises((argparse.ArgumentError, SystemExit)):
        megatron_parser().parse_args([*words, "--untie-embeddings"])


# Of `maxtext/configs/types.py`, release 0.2.5, in which every key of a configuration is a field.
MAXTEXT = """
run_name steps hardware override_model_config decoder_block base_emb_dim base_num_query_heads
base_num_kv_heads base_mlp_dim base_num_decoder_layers head_dim vocab_size logits_via_embedding
max_target_length per_device_batch_size gradient_accumulation_steps remat_policy scan_layers
dcn_diloco_parallelism dcn_data_parallelism dcn_pipeline_parallelism ici_pipeline_parallelism
ici_fsdp_parallelism ici_data_parallelism ici_context_parallelism ici_tensor_parallelism
num_layers_per_pipeline_stage num_pipeline_microbatches enable_diloco diloco_sync_period
enable_streaming_diloco num_diloco_fragments num_communication_overlapping_steps
"""


@pytest.mark.parametrize("ways", [{}, SELDOM], ids=["every step", "seldom"])
@pytest.mark.parametrize("name", ["one", "replicas"])
def test_maxtext_has_a_field_for_every_key(name, ways):
    text = exported(named(name, model=EVEN, **ways), "maxtext").files["maxtext.yml"]
    assert set(yaml.safe_load(text)) <= set(MAXTEXT.split())


@pytest.mark.parametrize(("layers", "fragments", "period"), [(32, 9, 36), (40, 9, 36), (28, 8, 32)])
def test_streams_of_maxtext_divide_its_layers(layers, fragments, period):
    """As its `types.py` (layers by fragments less one) and `fragmenter.py` (the period) want it."""
    job = named("replicas", pp=1, dp=8, model=dataclasses.replace(EVEN, layers=layers), **SELDOM)
    made = exported(job, "maxtext")
    body = yaml.safe_load(made.files["maxtext.yml"])
    assert (body["num_diloco_fragments"], body["diloco_sync_period"]) == (fragments, period)
    assert layers % (fragments - 1) == 0 and period % fragments == 0 and body["scan_layers"]
    as_planned = exported(
        dataclasses.replace(job, sync_period=period, fragments=fragments), "maxtext"
    )
    assert any("sync period" in note for note in as_planned.exact)
    assert not any("nearest" in note for note in as_planned.nearest)


@pytest.mark.parametrize(("bits", "group"), [(8, "nccl"), (4, "nccl"), (16, "gloo")])
def test_quantised_syncs_of_torchft_go_over_nccl(bits, group):
    """Its sum of quantised tensors is written for NCCL alone (`torchft/collectives.py`)."""
    job = named("replicas", pp=1, dp=8, **{**SELDOM, "wire_bits": bits})
    text = exported(job, "torchtitan").files["hippo_plan.py"]
    assert f'process_group="{group}"' in text and f"should_quantize={bits < 16}" in text


@pytest.mark.parametrize("name", ["one", "replicas"])
def test_batches_of_every_format_are_the_plans(name):
    job = named(name, model=EVEN)
    gpus = sum(p.gpus for p in job.pipelines)
    body = yaml.safe_load(exported(job, "maxtext").files["maxtext.yml"])
    each = body["per_device_batch_size"] * body["gradient_accumulation_steps"]
    assert each * gpus == pytest.approx(job.global_batch)
    lines = arguments(job, job.pipelines[0])
    assert f"--global-batch-size {job.global_batch}" in lines
    if name == "replicas":
        told = json.loads(exported(job, "deepspeed").files["ds_config.json"])
        ranks = sum(p.dp for p in job.pipelines)
        each = told["train_micro_batch_size_per_gpu"] * told["gradient_accumulation_steps"]
        assert told["train_batch_size"] == each * ranks == job.global_batch


def test_sequences_in_parts_are_ranks_of_their_own():
    """Context parallelism: two GPUs of a stage hold a sequence, in every format that has it."""
    job = named("one", cp=2, dp=1, model=EVEN)
    (pipeline,) = job.pipelines
    assert pipeline.gpus == 8 and sum(s.nodes * s.per_node for s in pipeline.sites) == 8
    assert "context_parallel_degree=2" in exported(job, "torchtitan").files["hippo_plan.py"]
    assert "--context-parallel-size 2" in arguments(job, pipeline)
    body = yaml.safe_load(exported(job, "maxtext").files["maxtext.yml"])
    assert body["ici_context_parallelism"] == 2
    each = body["per_device_batch_size"] * body["gradient_accumulation_steps"]
    assert each * pipeline.gpus == pytest.approx(job.global_batch)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tp": {"a": 2, "b": 1}}, "one pipeline have tp 1 and 2"),
        ({"zero_stage": {"a": 1, "b": 3}}, "one pipeline have zero_stage 1 and 3"),
    ],
)
def test_what_no_format_has_is_refused(changes, said):
    with pytest.raises(InputError, match=said):
        named("pipeline", **changes)


def test_nodes_that_a_domain_does_not_have_are_not_asked_for():
    """Six GPUs on nodes of four and two: three tensor-parallel pairs would be three nodes."""
    with pytest.raises(InputError, match="6 processes in a are 3 nodes of 2, and it has 2 of 4"):
        launch((["a"],), gpus=(6, 8, 8), tp=2, dp=1, pp=3, micro_batch=2)


def test_nodes_of_one_job_are_counted_through():
    files = exported(named("replicas"), "megatron").files
    first = {
        n: int(re.search(r"node_rank \$\(\((\d+) ", t)[1]) for n, t in files.items() if ".sh" in n
    }
    assert first == {"launch-a.sh": 0, "launch-b.sh": 2}
    assert all("--nnodes 4" in text for name, text in files.items() if name.endswith(".sh"))


@pytest.mark.parametrize(
    ("job", "form", "said"),
    [
        (named("mixed"), "megatron", "groups of this plan differ"),
        (named("mixed"), "deepspeed", "groups of this plan differ"),
        (named("mixed"), "maxtext", "groups of this plan differ"),
        (named("one"), "deepspeed", "splits tensors without pipelines only"),
        (named("one", tp=1, dp=4, zero_stage=3), "deepspeed", "ZeRO 0 or 1, this plan has 3"),
        (named("one", tp=1, cp=2), "deepspeed", "splits sequences inside the model's own code"),
        (named("one", cp=2, dp=1), "chakra", "no operations of context parallelism"),
        (named("pipeline", cp=2, dp=1), "ns3", "no operations of context parallelism"),
        (named("replicas"), "maxtext", "every stage as many layers"),
        (named("one", model=EVEN, batch=60), "maxtext", "try --global-batch 56 or 64, or export"),
        (
            launch((["a", "b"],), (12, 4, 8), EVEN, tp=1, dp=4, pp={"a": 3, "b": 1}, micro_batch=1),
            *("maxtext", "the domains of this plan hold 4 and 12 GPUs"),
        ),
        (named("replicas", schedule="gpipe"), "megatron", "needs GPipe's order"),
        (
            launch((["a", "b"], ["c", "d"]), (8, 8, 8, 8), tp=2, dp=2, micro_batch=1),
            *("megatron", "no order of hosts"),
        ),
    ],
)
def test_what_a_framework_cannot_run_at_all_is_refused_and_leaves_nothing(
    job, form, said, tmp_path
):
    with pytest.raises(InputError, match=said) as error:
        export_plan(job, form, tmp_path / "out")
    assert "\n" not in str(error.value) and not list(tmp_path.iterdir())


def test_the_readme_warns_of_tight_memory_and_of_another_stack():
    job = named("one")
    made = exported(job, "megatron")
    assert "Memory is tight" not in readme(job, made)
    assert "Megatron-LM is another stack" in readme(
        dataclasses.replace(job, stack="torchtitan"), made
    )
    tight = dataclasses.replace(job, predicted={**PREDICTED, "memory_gb_max_hi": 90.0})
    assert "up to 90 at the upper end of its band, of 85" in readme(tight, made)


def test_a_folder_that_holds_something_is_left_alone(tmp_path):
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(InputError, match="not an empty folder"):
        export_plan(named("one"), "megatron", tmp_path)
    with pytest.raises(InputError, match="does not exist"):
        export_plan(named("one"), "megatron", tmp_path / "no" / "where")
    (tmp_path / "empty").mkdir()
    export_plan(named("one"), "megatron", tmp_path / "empty")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["empty", "mine"]


def test_format_and_folder_go_together():
    for said in ({"export": "x"}, {"format": "megatron"}, {"export": "x", "format": "nemo"}):
        with pytest.raises(InputError, match=r"export: goes with|format: expected one of"):
            PlanConfig(**said)
    for form in EXPORT_FORMATS:
        assert importlib.util.find_spec(f"experiments.plan.export.{form}")


def test_releases_that_are_compared_are_those_that_the_exports_name():
    for form, packages in RELEASES.items():
        told = importlib.import_module(f"experiments.plan.export.{form}").RELEASE
        assert all(release in told for release in packages.values()), told


def test_another_release_of_a_framework_is_named_and_not_asked(monkeypatch, capsys):
    monkeypatch.setattr(read_by_frameworks.metadata, "version", lambda package: "0.2.2")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    status = read_by_frameworks.main("torchtitan", json.dumps(RELEASES["torchtitan"]), "nowhere")
    assert status == 3
    assert "torchtitan 0.2.2 is here, the export is for 0.3.0" in capsys.readouterr().out


# --- the frameworks' own parsers, where they are installed ------------------------------------------


def read_by(framework, folder, *arguments):
    """What a framework's own parser makes of the files; FRAMEWORKS_PYTHON may name the Python that has
    the frameworks."""
    python = os.environ.get("FRAMEWORKS_PYTHON", sys.executable)
    script = Path(read_by_frameworks.__file__)
    releases = json.dumps(RELEASES[framework])
    command = [python, script, framework, releases, folder, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 3:
        why = done.stdout.splitlines()[-1]
        pytest.skip(f"{why}; FRAMEWORKS_PYTHON may name a Python that has it")
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", ["mixed", "replicas"])
@pytest.mark.parametrize("ways", [{}, SELDOM], ids=["every step", "seldom"])
def test_torchtitan_reads_its_configuration(name, ways, tmp_path):
    job = named(name, **ways)
    export_plan(job, "torchtitan", tmp_path / "out")
    groups = len(job.pipelines)
    read = read_by("torchtitan", tmp_path / "out", groups)
    for g, (pipeline, told) in enumerate(zip(job.pipelines, read, strict=True)):
        assert (told["pp"], told["tp"], told["dp"]) == (pipeline.pp, pipeline.tp, pipeline.dp)
        assert told["layers"] == MODEL.layers and told["replica"] == [g, groups]
        assert pipeline.pp == 1 or tuple(told["stages"]) == pipeline.stages
        # What a rank accumulates, as the trainer counts it, is the group's own share.
        ranks = told["dp"] * groups
        accumulated, rest = divmod(told["global_batch"], told["local_batch"] * ranks)
        assert not rest and accumulated * told["local_batch"] * told["dp"] == pipeline.sequences
        assert (told["method"] == "diloco") == bool(ways)
        period, fragments = told["period"]
        assert not ways or period % fragments == 0


def test_torchtitan_reads_one_group_without_torchft(tmp_path):
    job = named("pipeline")
    export_plan(job, "torchtitan", tmp_path / "out")
    (told,) = read_by("torchtitan", tmp_path / "out", 1)
    assert told["method"] is None and tuple(told["stages"]) == job.pipelines[0].stages


def test_torchtitan_reads_sequences_in_parts(tmp_path):
    export_plan(named("one", cp=2, dp=1), "torchtitan", tmp_path / "out")
    (told,) = read_by("torchtitan", tmp_path / "out", 1)
    assert (told["cp"], told["tp"], told["pp"], told["dp"]) == (2, 2, 2, 1)


@pytest.mark.parametrize("name", ["one", "pipeline", "replicas"])
def test_megatron_core_reads_the_layout(name, tmp_path):
    job = named(name)
    export_plan(job, "megatron", tmp_path / "out")
    stages = read_by("megatron", tmp_path / "out")
    assert tuple(stage.count("decoder") for stage in stages) == job.pipelines[0].stages
    assert "embedding" in stages[0] and "loss" in stages[-1]


def test_deepspeed_reads_its_configuration(tmp_path):
    job = named("replicas")
    export_plan(job, "deepspeed", tmp_path / "out")
    first, ranks = job.pipelines[0], sum(p.dp for p in job.pipelines)
    read = read_by("deepspeed", tmp_path / "out", ranks)
    expected = {"batch": job.global_batch, "accumulated": first.micro_batches, "zero": first.zero}
    assert read == expected
    compile((tmp_path / "out" / "pipeline.py").read_text(), "pipeline.py", "exec")


@pytest.mark.parametrize("ways", [{}, SELDOM], ids=["every step", "seldom"])
@pytest.mark.parametrize("name", ["one", "replicas"])
def test_maxtext_knows_every_key(name, ways, tmp_path):
    export_plan(named(name, model=EVEN, **ways), "maxtext", tmp_path / "out")
    assert read_by("maxtext", tmp_path / "out") == []
