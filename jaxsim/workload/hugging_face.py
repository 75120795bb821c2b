"""The shape of a model from the `config.json` that is published beside its weights (Hugging Face).

Families: Llama, Mistral, Qwen (1, 2, 2.5, 3), GPT-2, GPT-NeoX. Mixtures of experts are refused, and so
is attention that is wider or narrower than the model. A sliding window is not modelled: attention is
counted whole.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from jaxsim.files import InputError, read_json, shown, values

KIND = "a Hugging Face config.json"


@dataclasses.dataclass(frozen=True)
class _Family:
    """How a family names the numbers of its shape, and what it takes for granted."""

    layers: str = "num_hidden_layers"
    hidden: str = "hidden_size"
    heads: str = "num_attention_heads"
    kv_heads: str | None = "num_key_value_heads"  # as many as heads where the file names none
    ffn: str = "intermediate_size"
    ffn_matrices: int = 3
    ffn_parts: int = 1  # of which the number in the file is the sum
    tied: bool = False


FAMILIES = {
    "llama": _Family(),
    "mistral": _Family(),
    # Both gated products together are `intermediate_size`.
    "qwen": _Family(kv_heads=None, ffn_parts=2),
    "qwen2": _Family(),
    "qwen3": _Family(),
    "gpt2": _Family("n_layer", "n_embd", "n_head", None, "n_inner", ffn_matrices=2, tied=True),
    "gpt_neox": _Family(kv_heads=None, ffn_matrices=2),
}
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")


def shape_of(path: str, largest: Mapping[str, int]) -> dict[str, Any]:
    """The fields of a `ModelConfig` in a config.json; `largest` limits each of them.

    Raises InputError, one line that names the file and the key, for what is no such file, a family
    that is not known or a shape that is not modelled.
    """
    body = read_json(path, KIND)
    if not isinstance(body, Mapping):
        raise InputError(f"{path}: expected a mapping, as {KIND} holds it, got {shown(body)}")
    if "model_type" not in body:
        raise InputError(f"{path}: missing key 'model_type': it is no {KIND.removeprefix('a ')}")
    name = values.choice(body["model_type"], f"{path}: model_type", FAMILIES)
    family = FAMILIES[name]
    experts = [key for key in EXPERTS if body.get(key) not in (None, 0, 1)]
    if experts:
        raise InputError(f"{path}: {experts[0]}: mixtures of experts are not modelled")

    def number(field: str, key: str) -> int:
        if key not in body:
            raise InputError(f"{path}: missing key {key!r} of the family {name}")
        return values.count(body[key], f"{path}: {key}", high=largest[field])

    found = {
        field: number(field, getattr(family, field)) for field in ("layers", "hidden", "heads")
    }
    found["vocab"] = number("vocab", "vocab_size")
    found["kv_heads"] = found["heads"]
    if family.kv_heads is not None and body.get(family.kv_heads) is not None:
        found["kv_heads"] = number("kv_heads", family.kv_heads)
    # GPT-2 leaves the width of a plain layer out.
    plain = 4 * found["hidden"] if body.get(family.ffn) is None and name == "gpt2" else None
    found["ffn"] = plain or number("ffn", family.ffn) // family.ffn_parts
    width = body.get("head_dim")
    if width is not None and width * found["heads"] != found["hidden"]:
        raise InputError(
            f"{path}: head_dim: {found['heads']} heads of {shown(width)} are not as wide as the model, "
            f"{found['hidden']}; such attention is not modelled"
        )
    tied = body.get("tie_word_embeddings", family.tied)
    values.flag(tied, f"{path}: tie_word_embeddings")
    return {**found, "ffn_matrices": family.ffn_matrices, "tied_embeddings": tied}
