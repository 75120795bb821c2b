"""A BERT-like encoder of 50,000 weights in a folder: what tests train where its size is no matter."""

from pathlib import Path

import torch
from transformers import AutoModelForSequenceClassification, DistilBertConfig

from ddp_bench.data.corpus import synthetic_rows
from ddp_bench.data.tokens import train_wordpiece

SIZES = {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64}


def save_tiny_encoder(folder: Path) -> Path:
    """Write model and tokenizer to `folder`, as a downloaded model would lie there."""
    torch.manual_seed(0)
    tokenizer = train_wordpiece(synthetic_rows(200, 0)[0], 1000)
    config = DistilBertConfig(
        vocab_size=len(tokenizer),
        max_position_embeddings=256,
        num_labels=2,
        initializer_range=0.05,  # at 0.02 samples look alike, and their gradients nearly cancel
        **SIZES,
    )
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
