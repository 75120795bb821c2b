"""The classifier: Transformers' own, with an attention that also takes packed sequences."""

from __future__ import annotations

from dataclasses import dataclass
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


@dataclass(frozen=True)
class Bucket:
    """Samples of a packed row whose attention is computed together.

    `gather` picks their n * L positions from the row, short samples padded; `valid` picks the
    real tokens out of the n * L results; `mask` hides padding. All None where lengths are equal.
    """

    start: int  # first token in the row
    tokens: int  # real tokens
    count: int  # samples, n
    length: int  # longest sample, L
    gather: torch.Tensor | None = None  # [n L]
    valid: torch.Tensor | None = None  # [tokens]
    mask: torch.Tensor | None = None  # [n, 1, 1, L]


def attention_buckets(lengths: list[int], width: int, device: torch.device) -> list[Bucket]:
    """Group samples, sorted by ascending length, for attention.

    One bucket per length would waste nothing and pay for many small kernels. Samples are put
    together while the padding this adds to attention stays below 5 % of the work of the linear
    layers: extra pairs * 4 width <= 5 % of tokens * 24 width^2.
    """
    slack = 0.3 * width * sum(lengths)
    groups: list[list[int]] = []
    extra = 0.0
    for length in reversed(lengths):
        added = groups[-1][0] ** 2 - length**2 if groups else 0
        if groups and extra + added <= slack:
            groups[-1].append(length)
            extra += added
        else:
            groups.append([length])
    buckets, start = [], 0
    for group in reversed(groups):
        buckets.append(_bucket(start, group[::-1], device))
        start += buckets[-1].tokens
    return buckets


def _bucket(start: int, lengths: list[int], device: torch.device) -> Bucket:
    """The bucket of samples that lie from token `start` on."""
    longest, tokens = lengths[-1], sum(lengths)
    if lengths[0] == longest:
        return Bucket(start, tokens, len(lengths), longest)
    sizes = torch.tensor(lengths)
    begins = start + torch.cumsum(sizes, 0) - sizes
    places = torch.arange(longest)
    real = places < sizes[:, None]  # [n, L]
    gather = torch.where(real, begins[:, None] + places, start)
    return Bucket(
        start,
        tokens,
        len(lengths),
        longest,
        gather.flatten().to(device),
        real.flatten().nonzero()[:, 0].to(device),
        real[:, None, None].to(device),
    )


def packed_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    packed_buckets: list[Bucket] | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Scaled dot-product attention within samples of one packed row.

    Without `packed_buckets` this is Transformers' own attention.

    Args:
        query, key, value: [1, heads, T, head size].
        packed_buckets: the samples in the row; their tokens sum to T.

    Returns:
        ([1, T, heads, head size], None)
    """
    if packed_buckets is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout, scaling, **kwargs
        )
    heads, size = query.shape[1], query.shape[3]
    row = torch.cat([t[0].transpose(0, 1) for t in (query, key, value)], dim=1)  # [T, 3 h, d]
    parts = []
    for bucket in packed_buckets:
        if bucket.gather is None:
            taken = row[bucket.start : bucket.start + bucket.tokens]
        else:
            taken = row.index_select(0, bucket.gather)
        # [n L, 3 h, d] -> three of [n, h, L, d]
        taken = taken.view(bucket.count, bucket.length, 3 * heads, size).transpose(1, 2)
        out = nn.functional.scaled_dot_product_attention(
            *taken.split(heads, dim=1), attn_mask=bucket.mask, dropout_p=dropout, scale=scaling
        )
        out = out.transpose(1, 2).reshape(bucket.count * bucket.length, heads, size)
        parts.append(out if bucket.valid is None else out.index_select(0, bucket.valid))
    return (parts[0] if len(parts) == 1 else torch.cat(parts))[None], None


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
        width, device = self.model.config.hidden_size, batch["input_ids"].device
        buckets = attention_buckets(lengths.tolist(), width, device)
        self._starts = torch.cumsum(lengths, 0) - lengths
        try:
            return self.model(
                input_ids=batch["input_ids"],
                position_ids=batch["position_ids"],
                packed_buckets=buckets,
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
