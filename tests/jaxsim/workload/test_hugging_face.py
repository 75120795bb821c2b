"""Shapes of models from config.json files as they are published."""

import json

import pytest

from jaxsim.files.errors import InputError
from jaxsim.workload.workload import MODEL_PRESETS, load_model

# The fields that say the shape, as the files of these models have them, and their parameters [1e9] as
# their makers count them.
LLAMA_7B = {
    **{"model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "vocab_size": 32000},
    **{"num_hidden_layers": 32, "num_attention_heads": 32, "tie_word_embeddings": False},
}
MISTRAL_7B = {
    **{"model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336, "head_dim": None},
    **{"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8},
    **{"vocab_size": 32000, "sliding_window": 4096, "tie_word_embeddings": False},
}
QWEN_7B = {
    **{"model_type": "qwen", "hidden_size": 4096, "intermediate_size": 22016},
    **{"num_hidden_layers": 32, "num_attention_heads": 32, "vocab_size": 151936},
}
QWEN2_HALF_B = {
    **{"model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864},
    **{"num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2},
    **{"vocab_size": 151936, "tie_word_embeddings": True},
}
QWEN3_8B = {
    **{"model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288, "head_dim": 128},
    **{"num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8},
    **{"vocab_size": 151936, "tie_word_embeddings": False},
}
GPT2 = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257}
NEOX_20B = {
    **{"model_type": "gpt_neox", "hidden_size": 6144, "intermediate_size": 24576},
    **{"num_hidden_layers": 44, "num_attention_heads": 64, "vocab_size": 50432},
}
KNOWN = [
    (LLAMA_7B, 6.74),
    (MISTRAL_7B, 7.24),
    (QWEN_7B, 7.72),
    (QWEN2_HALF_B, 0.494),
    (QWEN3_8B, 8.19),
    (GPT2, 0.124),
    (NEOX_20B, 20.55),
]


def write(tmp_path, body):
    path = tmp_path / "config.json"
    path.write_text(body if isinstance(body, str) else json.dumps(body))
    return str(path)


@pytest.mark.parametrize(("body", "gparams"), KNOWN, ids=lambda x: str(x)[:30])
def test_a_published_model_has_the_parameters_that_its_makers_count(tmp_path, body, gparams):
    assert load_model(write(tmp_path, body)).params / 1e9 == pytest.approx(gparams, rel=0.01)


def test_presets_are_the_published_files(tmp_path):
    assert load_model(write(tmp_path, LLAMA_7B)) == MODEL_PRESETS["llama-7b"]
    assert load_model(write(tmp_path, GPT2)) == MODEL_PRESETS["gpt2-small"]


def test_the_shape_is_that_of_the_real_model(tmp_path):
    """Counted by transformers, without any weights."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    for body in (MISTRAL_7B, QWEN2_HALF_B):
        path = write(tmp_path, body)
        config = transformers.AutoConfig.from_pretrained(path)
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(config)
        counted = sum(p.numel() for p in model.parameters())
        assert load_model(path).params == pytest.approx(counted, rel=0.001)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model_type": "mixtral"}, ["model_type", "mixtral", "mistral"]),
        ({"model_type": None}, ["model_type"]),
        ({"hidden_size": "4096"}, ["hidden_size", "4096"]),
        ({"hidden_size": 2**30}, ["hidden_size"]),
        ({"num_hidden_layers": 0}, ["num_hidden_layers"]),
        ({"num_attention_heads": 31}, ["heads", "31"]),
        ({"num_key_value_heads": 5}, ["kv_heads", "5"]),
        ({"head_dim": 64}, ["head_dim", "64", "not modelled"]),
        ({"num_local_experts": 8}, ["num_local_experts", "experts"]),
        ({"tie_word_embeddings": "yes"}, ["tie_word_embeddings"]),
        ({"vocab_size": None}, ["vocab_size"]),
    ],
)
def test_what_is_no_such_model_is_refused_by_name(tmp_path, changes, named):
    path = write(tmp_path, {**LLAMA_7B, **changes})
    with pytest.raises(InputError) as error:
        load_model(path)
    assert all(word in str(error.value) for word in ["config.json", *named]), error.value


@pytest.mark.parametrize("text", ["[1]", "{}", "{", '{"model_type": "llama"}', "3"])
def test_a_file_that_says_no_shape_is_refused(tmp_path, text):
    with pytest.raises(InputError, match=r"config\.json"):
        load_model(write(tmp_path, text))
