"""Presets, FLOPs, activation bytes against published figures; model files."""

import dataclasses

import numpy as np
import pytest
import yaml
from toy_world import JOB, MODEL

from jaxsim.errors import InputError
from jaxsim.workload import (
    MODEL_PRESETS,
    RECOMPUTE_FULL,
    RECOMPUTE_NONE,
    RECOMPUTE_SELECTIVE,
    JobSpec,
    ModelConfig,
    activation_bytes,
    build_workload,
    load_model,
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
    stored = activation_bytes(job)
    np.testing.assert_allclose(stored[RECOMPUTE_NONE], s * h * (34 + 5 * a * s / h))
    np.testing.assert_allclose(stored[RECOMPUTE_SELECTIVE], 34 * s * h)
    np.testing.assert_allclose(stored[RECOMPUTE_FULL], 2 * s * h)
    # Sec. 5 of the paper: selective recomputation saves 70 % of the activations of GPT-3.
    np.testing.assert_allclose(1 - stored[1] / stored[0], 0.70, atol=0.01)
    flash = activation_bytes(dataclasses.replace(job, flash_attention=True))
    np.testing.assert_allclose(flash[RECOMPUTE_NONE], 34 * s * h)


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


def test_unknown_model_lists_the_presets():
    with pytest.raises(InputError) as error:
        load_model("llama-8b")
    assert_one_line(error, ["model", "'llama-8b'", *MODEL_PRESETS])


def assert_one_line(error, words):
    text = str(error.value)
    assert "\n" not in text
    for word in words:
        assert word in text, f"{word!r} is not in {text!r}"
