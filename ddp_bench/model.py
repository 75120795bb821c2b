"""The classifier: Transformers' own, with an attention that also takes packed sequences."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForSequenceClassification, DistilBertConfig
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ddp_bench.errors import ConfigError

ATTENTION = "ddp_bench_packed"
SMALL = {"dim": 256, "n_layers": 4, "n_heads": 4, "hidden_dim": 1024}


def _runs(lengths: list[int]) -> list[tuple[int, int]]:
    """(length, how many) for runs of equal lengths."""
    runs: list[tuple[int, int]] = []
    for length in lengths:
        if runs and runs[-1][0] == length:
            runs[-1] = (length, runs[-1][1] + 1)
        else:
            runs.append((length, 1))
    return runs


def packed_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    packed_lengths: list[int] | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Scaled dot-product attention within samples of one packed row.

    Samples of equal length lie side by side and are computed together, so the work is exactly
    sum of L^2. Without `packed_lengths` this is Transformers' own attention.

    Args:
        query, key, value: [1, heads, T, head size].
        packed_lengths: lengths of the samples in the row; they sum to T.

    Returns:
        ([1, T, heads, head size], None)
    """
    if packed_lengths is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout, scaling, **kwargs
        )
    heads, size = query.shape[1], query.shape[3]
    parts, start = [], 0
    for length, count in _runs(packed_lengths):
        stop = start + length * count
        # [1, h, n L, d] -> [n, h, L, d]
        q, k, v = (
            t[0, :, start:stop].reshape(heads, count, length, size).transpose(0, 1)
            for t in (query, key, value)
        )
        out = nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=dropout, scale=scaling)
        parts.append(out.transpose(1, 2).reshape(length * count, heads, size))
        start = stop
    return torch.cat(parts)[None], None


ALL_ATTENTION_FUNCTIONS.register(ATTENTION, packed_attention)
ALL_MASK_ATTENTION_FUNCTIONS.register(ATTENTION, sdpa_mask)


def _encoder_of(model: nn.Module) -> nn.Module:
    """The stack of layers whose output the pooler or head reads at position 0."""
    base = model.base_model
    for name in ("encoder", "transformer"):
        if hasattr(base, name):
            return getattr(base, name)
    raise ConfigError(
        f"model of type {model.config.model_type!r}: packed batches need a BERT-like encoder; "
        "allowed are bert, distilbert and others with an `encoder` or `transformer` stack"
    )


class Classifier(nn.Module):
    """A sequence classifier over padded or packed micro-batches.

    `forward(batch)` gives the SUM of the samples' cross-entropies and the logits [k, 2]; with
    `batch=None` it gives 0 times a function of all parameters, whose backward adds nothing to
    the gradients but makes DistributedDataParallel reduce what has been accumulated.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self._starts: torch.Tensor | None = None
        _encoder_of(model).register_forward_hook(self._keep_first_tokens)

    def _keep_first_tokens(self, module: nn.Module, args: Any, output: Any) -> Any:
        """[1, T, D] -> [k, 1, D], so that pooler and head, which read position 0, just work."""
        if self._starts is not None:
            output.last_hidden_state = output.last_hidden_state[0, self._starts][:, None]
        return output

    def _packed_logits(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        lengths = batch["lengths"]
        self._starts = torch.cumsum(lengths, 0) - lengths
        try:
            return self.model(
                input_ids=batch["input_ids"],
                position_ids=batch["position_ids"],
                packed_lengths=batch["lengths"].tolist(),
            ).logits
        finally:
            self._starts = None

    def forward(
        self, batch: dict[str, torch.Tensor] | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        if batch is None:
            return sum(p.reshape(-1)[0] for p in self.parameters()) * 0.0, None
        if "lengths" in batch:
            logits = self._packed_logits(batch)
        else:
            logits = self.model(
                input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]
            ).logits
        if logits.dtype in (torch.float16, torch.bfloat16):
            logits = logits.float()
        return nn.functional.cross_entropy(logits, batch["labels"], reduction="sum"), logits


def build_classifier(name: str, vocab: int, max_length: int, seed: int) -> Classifier:
    """The model called `name`: `small`, a folder, or a hub name; same weights for the same seed.

    Raises:
        ConfigError: when it cannot be loaded, or is too short for `max_length` tokens.
    """
    torch.manual_seed(seed)
    if name == "small":
        config = DistilBertConfig(
            vocab_size=vocab, max_position_embeddings=max(max_length, 8), num_labels=2, **SMALL
        )
        model = AutoModelForSequenceClassification.from_config(
            config, attn_implementation=ATTENTION
        )
        return Classifier(model)
    try:
        config = AutoConfig.from_pretrained(name)
        model = AutoModelForSequenceClassification.from_pretrained(
            name, num_labels=2, attn_implementation=ATTENTION
        )
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(f"model {name!r}: {reason} (allowed small, folder, hub name)") from None
    longest = getattr(config, "max_position_embeddings", max_length)
    if max_length > longest:
        raise ConfigError(f"max_length is {max_length}: allowed for {name} is <= {longest}")
    return Classifier(model)
