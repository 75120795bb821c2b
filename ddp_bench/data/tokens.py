"""Text to token ids, once, on rank 0; and micro-batches from them.

Only rank 0 reads files and tokenises; the others get flat arrays, so that all ranks hold the
same samples whatever their file systems show them.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ddp_bench.config import Settings, check_model
from ddp_bench.data.corpus import Corpus, hub_reachable
from ddp_bench.errors import ConfigError

if TYPE_CHECKING:  # torch takes seconds to import; bad settings are refused before that
    import torch

SMALL_VOCAB = 8192
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")


@dataclass(frozen=True)
class TokenSet:
    """Token ids of n samples, flat: sample i is tokens[offsets[i]:offsets[i + 1]]."""

    tokens: np.ndarray  # [sum of lengths] int32
    offsets: np.ndarray  # [n + 1] int64
    labels: np.ndarray  # [n] int64

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def lengths(self) -> np.ndarray:
        """[n] tokens."""
        return np.diff(self.offsets)

    def sample(self, index: int) -> np.ndarray:
        """Token ids of one sample."""
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]


def _frequent(counts: Counter[str], most: int) -> list[str]:
    """The most frequent pieces; ties in alphabetical order, so that the result is reproducible."""
    return sorted(counts, key=lambda piece: (-counts[piece], piece))[:most]


def wordpiece_vocabulary(words: Counter[str], size: int = SMALL_VOCAB) -> list[str]:
    """WordPiece entries: special tokens, characters, frequent words, prefixes and suffixes.

    The library's own trainer gives another vocabulary in every process, and with it other
    initial embeddings; runs must be reproducible.
    """
    letters = sorted({letter for word in words for letter in word})
    vocabulary = [*SPECIAL, *letters, *(f"##{letter}" for letter in letters)]
    prefixes: Counter[str] = Counter()
    suffixes: Counter[str] = Counter()
    for word, count in words.items():
        for n in range(2, min(len(word), 7)):
            prefixes[word[:n]] += count
            suffixes[f"##{word[-n:]}"] += count
    room = size - len(vocabulary)
    chosen = _frequent(words, 3 * room // 4)
    chosen += _frequent(prefixes, room // 8) + _frequent(suffixes, room // 8)
    return list(dict.fromkeys(vocabulary + chosen))[:size]


def train_wordpiece(texts: list[str], size: int = SMALL_VOCAB):
    """A lower-casing WordPiece tokenizer for the corpus, for encoders that bring none."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    normalizer = normalizers.BertNormalizer(lowercase=True)
    splitter = pre_tokenizers.BertPreTokenizer()
    words: Counter[str] = Counter()
    for text in texts:
        normal = normalizer.normalize_str(text)
        words.update(word for word, _ in splitter.pre_tokenize_str(normal))
    entries = {piece: index for index, piece in enumerate(wordpiece_vocabulary(words, size))}
    tokenizer = Tokenizer(models.WordPiece(entries, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, splitter
    tokenizer.decoder = decoders.WordPiece()
    ends = [(token, entries[token]) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=ends
    )
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep")}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def resolve_model(settings: Settings) -> tuple[str, str]:
    """(model to load, note): `small`, a folder or a hub name; a hub out of reach gives `small`.

    Raises:
        ConfigError: when the name is a path and no folder.
    """
    name = settings.model
    check_model(name)
    if name == "small" or os.path.isdir(name):
        return name, ""
    if hub_reachable():
        return name, ""
    return "small", f"hub not reachable: SMALL encoder with random weights instead of {name}"


def make_tokenizer(model: str, corpus: Corpus):
    """The tokenizer that goes with `model`; for the small encoder one made for the corpus.

    Raises:
        ConfigError: when the model brings none that can be loaded.
    """
    from transformers import AutoTokenizer

    if model == "small":
        return train_wordpiece(corpus.train_text)
    try:
        return AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(f"model {model!r}: no tokenizer: {reason}") from None


def encode(texts: list[str], labels: np.ndarray, tokenizer, max_length: int) -> TokenSet:
    """Tokenise with special tokens, cut at `max_length` tokens."""
    rows: list[list[int]] = []
    for start in range(0, len(texts), 4096):
        chunk = texts[start : start + 4096]
        rows += tokenizer(chunk, truncation=True, max_length=max_length)["input_ids"]
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    flat = np.fromiter((t for row in rows for t in row), np.int32, int(offsets[-1]))
    return TokenSet(flat, offsets, np.asarray(labels, np.int64))


class Collator:
    """Micro-batches of a token set: padded by DataCollatorWithPadding, or packed."""

    def __init__(self, tokenizer, pad_to_multiple_of: int) -> None:
        from transformers import DataCollatorWithPadding

        tokenizer.deprecation_warnings["Asking-to-pad-a-fast-tokenizer"] = True  # once is enough
        self._pad = DataCollatorWithPadding(
            tokenizer, pad_to_multiple_of=pad_to_multiple_of if pad_to_multiple_of > 1 else None
        )

    def padded(self, data: TokenSet, ids: np.ndarray) -> dict[str, torch.Tensor]:
        """input_ids and attention_mask [k, L], labels [k]."""
        import torch

        features = [{"input_ids": data.sample(i).tolist()} for i in ids]
        batch = dict(self._pad(features))
        batch = {key: batch[key] for key in ("input_ids", "attention_mask")}
        batch["labels"] = torch.from_numpy(data.labels[ids])
        return batch

    def packed(self, data: TokenSet, ids: np.ndarray) -> dict[str, torch.Tensor]:
        """One row without padding, samples sorted by length: input_ids, position_ids [1, T],
        lengths [k], labels [k]."""
        import torch

        ids = ids[np.argsort(data.lengths[ids], kind="stable")]
        lengths = data.lengths[ids]
        flat = np.concatenate([data.sample(i) for i in ids]).astype(np.int64)
        places = np.concatenate([np.arange(n) for n in lengths])
        return {
            "input_ids": torch.from_numpy(flat)[None],
            "position_ids": torch.from_numpy(places)[None],
            "lengths": torch.from_numpy(lengths),
            "labels": torch.from_numpy(data.labels[ids]),
        }

    def __call__(self, data: TokenSet, ids: np.ndarray, packed: bool) -> dict[str, torch.Tensor]:
        return self.packed(data, ids) if packed else self.padded(data, ids)
