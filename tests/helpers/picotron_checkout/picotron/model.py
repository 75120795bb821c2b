"""Stands in for Picotron's module of this name, in tests: a Llama under Picotron's names."""

import os

from flash_attn.flash_attn_interface import flash_attn_func
from torch import nn

from ddp_bench.toolbox.llama import Attention, FeedForward, LlamaShape, rotary_table

assert flash_attn_func is None and os.environ["FLASH_ATTEN"] == "0"


def renamed(module, names):
    """Put submodules under other names; forward still finds them by the old ones."""
    parts = {old: getattr(module, old) for old in names}
    for old, new in names.items():
        delattr(module, old)
        module.add_module(new, parts[old])
        object.__setattr__(module, old, parts[old])
    return module


class Layer(nn.Module):
    """Attention and feed-forward layer, each behind a norm."""

    def __init__(self, shape):
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.width, eps=1e-5)
        self.post_attention_layernorm = nn.RMSNorm(shape.width, eps=1e-5)
        of_attention = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "out_proj"}
        self.attention = renamed(Attention(shape), of_attention)
        of_mlp = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
        self.mlp = renamed(FeedForward(shape), of_mlp)

    def forward(self, x, cos, sin):
        x = x + self.attention(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    """Tokens [B, T] -> logits [B, T, vocab]."""

    def __init__(self, config):
        super().__init__()
        shape = LlamaShape(
            config.num_hidden_layers,
            config.hidden_size,
            config.num_attention_heads,
            config.num_key_value_heads,
            config.intermediate_size,
            config.vocab_size,
            config.max_position_embeddings,
        )
        self.embedding = nn.Embedding(shape.vocab, shape.width)
        self.decoder_layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.final_norm = nn.RMSNorm(shape.width, eps=config.rms_norm_eps)
        self.final_proj = nn.Linear(shape.width, shape.vocab, bias=False)
        self.table = rotary_table(shape.longest, shape.width // shape.heads)

    def forward(self, input_ids):
        x = self.embedding(input_ids)
        for layer in self.decoder_layers:
            x = layer(x, *self.table)
        return self.final_proj(self.final_norm(x))
