"""Texts, tokens and the stream of samples.

corpus  Rows of text with labels: from the hub, a local file, or made up
tokens  Text to token ids, once, on rank 0; and micro-batches from them
stream  One global sample stream for all ranks and arms, and the check that no sample is lost
"""

from ddp_bench.data.corpus import load_corpus
from ddp_bench.data.stream import GlobalStream, PrefixDigest, digest
from ddp_bench.data.tokens import Collator, TokenSet, encode, make_tokenizer, resolve_model

__all__ = [
    "Collator",
    "GlobalStream",
    "PrefixDigest",
    "TokenSet",
    "digest",
    "encode",
    "load_corpus",
    "make_tokenizer",
    "resolve_model",
]
