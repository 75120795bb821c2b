"""Presets, FLOPs, activation bytes against published figures; model files."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import yaml
from helpers.toy_world import JOB, MODEL

from jaxsim.files.errors import InputError
from jaxsim.workload.workload import (
    MODEL_PRESETS,
    PRECISIONS,
    JobSpec,
    ModelConfig,
    build_workload,
    load_model,
    stored_bytes,
)

# Parameters as their makers count them (biases and GPT-2's position table are left out here).
PUBLISHED_PARAMS = {
    "gpt2-small": (124.4e6, 0.01),
    "gpt2-medium": (354.8e6, 0.01),
    "llama-7b": (6.738e9, 1e-4),
    "llama-13b": (13.016e9, 1e-4),
    "llama-70b": (68.977e9, 1e-4),
    "llama-405b": (405.853e9, 1e-3),
}


@pytest.mark.parametrize("name", MODEL_PRESETS)
def test_parameters_of_the_presets_are_the_published_ones(name):
    published, tolerance = PUBLISHED_PARAMS[name]
    np.testing.assert_allclose(MODEL_PRESETS[name].params, published, rtol=tolerance)
    work = build_workload([JobSpec(MODEL_PRESETS[name])]).job(0)
    tables = 0.0 if not MODEL_PRESETS[name].tied_embeddings else 1.0
    extra = tables * MODEL_PRESETS[name].embedding_params  # both pipeline ends hold a table
    np.testing.assert_allclose(float(work.gparams) * 1e9 - extra, published, rtol=tolerance)


@pytest.mark.parametrize(("layers", "hidden", "heads"), [(24, 2304, 24), (96, 12288, 96)])
def test_flops_are_those_of_narayanan_2021_equation_3(layers, hidden, heads):
    model = ModelConfig(layers, hidden, heads, heads, 4 * hidden, 2, 51200, True)
    job = JobSpec(model, global_batch=512, seq=2048, causal_flops=False)
    b, s, h, v = 512.0, 2048.0, float(hidden), 51200.0
    # Without recomputation, three passes; norms and softmax (20 s h here) are not counted there.
    published = 72 * b * s * layers * h**2 * (1 + s / (6 * h) + v / (12 * layers * h))
    elementwise = 3 * 20 * s * h * layers * b
    useful = float(build_workload([job]).job(0).useful_tflop) * 1e12
    np.testing.assert_allclose(useful - elementwise, published, rtol=1e-5)


def test_causal_flops_halve_the_attention_core():
    def useful(causal):
        job = dataclasses.replace(JOB, causal_flops=causal)
        return float(build_workload([job]).job(0).useful_tflop)

    core = 3 * 8 * 4 * 1024.0**3 * 32 / 1e12  # three passes, 4 s^2 h per layer and sequence
    np.testing.assert_allclose(useful(False) - useful(True), core / 2, rtol=1e-3)


def test_activation_bytes_are_those_of_korthikanti_2022():
    # GPT-3: h = 12288, a = 96, s = 2048, plain 4 h FFN.
    model = ModelConfig(96, 12288, 96, 96, 4 * 12288, 2, 51200, True)
    job = JobSpec(model, seq=2048, flash_attention=False)
    s, h, a = 2048.0, 12288.0, 96.0
    stored = stored_bytes(job)
    # Eq. 2: s b h (10 + 24 / t + 5 a s / (h t)), of which t divides the second and third part.
    expected = {"replicated": 10 * s * h, "sliced": 24 * s * h, "scores": a * s * s}
    assert stored == {**expected, "input": 2 * s * h}
    # Sec. 5 of the paper: selective recomputation saves 70 % of the activations of GPT-3.
    scores = 5 * stored["scores"]
    saved = scores / (stored["replicated"] + stored["sliced"] + scores)
    np.testing.assert_allclose(saved, 0.70, atol=0.01)
    flash = stored_bytes(dataclasses.replace(job, flash_attention=True))
    assert flash == {**stored, "scores": 0.0}
    wide = stored_bytes(dataclasses.replace(job, precision="fp32"))
    assert wide == {name: 2 * x for name, x in stored.items()}


def test_grouped_queries_and_a_gated_ffn_store_what_they_compute():
    # Queries and the projection's input 2 x 2 h, keys and values 2 x 2 kv; gate, up and product.
    s, h, kv, f = 1024.0, 1024.0, 512.0, 4096.0
    assert stored_bytes(JOB)["sliced"] == s * (4 * h + 4 * kv + 6 * f)


def test_shapes_reach_the_arrays():
    job = dataclasses.replace(JOB, precision="fp32", virtual_stages=3, compiled=False)
    work = build_workload([job, JOB])
    assert work.hidden.tolist() == [1024, 1024] and work.kv_width.tolist() == [512, 512]
    assert work.ffn_inputs.tolist() == [2, 2], "a gated FFN has two products into its width"
    assert work.precision.tolist() == [PRECISIONS.index("fp32"), PRECISIONS.index("bf16")]
    assert work.compiled.tolist() == [False, True] and work.virtual_stages.tolist() == [3, 1]
    # 4 against 2 bytes a value.
    np.testing.assert_allclose(work.boundary_gb, [4 * 1024**2 / 1e9, 2 * 1024**2 / 1e9])
    np.testing.assert_allclose(work.kv_gb, [4 * 1024**2 / 1e9, 2 * 1024**2 / 1e9])
    np.testing.assert_allclose(work.stored.input_gb, [4 * 1024**2 / 1e9, 2 * 1024**2 / 1e9])
    assert work.mask.dtype == bool and work.layers.dtype == np.int32


def test_unknown_precision_lists_the_known_ones():
    with pytest.raises(InputError) as error:
        build_workload([dataclasses.replace(JOB, precision="int4")])
    assert_one_line(error, ["precision", "'int4'", *PRECISIONS])


def test_padded_jobs_are_masked_copies():
    work = build_workload([JOB], pad_to=3)
    assert work.mask.tolist() == [True, False, False]
    assert work.layers.tolist() == [8, 8, 8]


def write(path, **changes):
    body = {**dataclasses.asdict(MODEL), **changes}
    path.write_text(yaml.safe_dump({k: v for k, v in body.items() if v is not None}))
    return str(path)


def test_model_file_round_trip(tmp_path):
    assert load_model(write(tmp_path / "m.yaml")) == MODEL


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden": -1}, ["hidden", "integer >= 1", "-1"]),
        ({"hidden": float("nan")}, ["hidden", "integer >= 1", "nan"]),
        ({"hidden": None}, ["missing key 'hidden'"]),
        ({"layers": True}, ["layers", "integer >= 1", "True"]),
        ({"tied_embeddings": 2}, ["tied_embeddings", "true or false", "2"]),
        ({"heads": 7}, ["heads: 7", "hidden 1024"]),
        ({"kv_heads": 32}, ["kv_heads: 32", "heads 16"]),
        ({"ffn_matrices": 9}, ["ffn_matrices", "2 (plain) or 3 (gated)", "9"]),
        ({"colour": 3}, ["unknown key 'colour'", "allowed: layers, hidden"]),
    ],
)
def test_bad_model_file_is_one_line_naming_file_and_key(tmp_path, changes, words):
    path = write(tmp_path / "m.yaml", **changes)
    with pytest.raises(InputError) as error:
        load_model(path)
    assert_one_line(error, [path, *words])


def test_model_file_that_is_not_yaml(tmp_path):
    path = tmp_path / "m.yaml"
    path.write_text("layers: [1, 2")
    with pytest.raises(InputError) as error:
        load_model(str(path))
    assert_one_line(error, [str(path), "YAML"])
    path.write_text(Path(write(path)).read_text() + "layers: 9\n")
    with pytest.raises(InputError) as error:
        load_model(str(path))
    assert_one_line(error, [str(path), "'layers' stands twice"])


def test_unknown_model_lists_the_presets():
    with pytest.raises(InputError) as error:
        load_model("llama-8b")
    assert_one_line(error, ["model", "'llama-8b'", *MODEL_PRESETS])


def assert_one_line(error, words):
    text = str(error.value)
    assert "\n" not in text
    for word in words:
        assert word in text, f"{word!r} is not in {text!r}"
