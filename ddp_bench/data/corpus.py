"""Rows of text with labels: from the hub, a local file, or made up.

The synthetic corpus follows the published length distribution of the SST-2 training set and has
learnable labels; it lets everything run with no download.
"""

from __future__ import annotations

import csv
import io
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from ddp_bench.config import HELD_OUT, Settings, held_out_of
from ddp_bench.errors import ConfigError

# GLUE SST-2 training set (67,349 rows): centiles of the length in uncased WordPiece tokens,
# [CLS] and [SEP] included. Mean 13.3.
SST2_CENTILES = (0, 10, 25, 50, 75, 90, 95, 99, 99.9, 100)
SST2_LENGTHS = (3, 4, 6, 10, 18, 27, 33, 44, 56, 66)


@dataclass(frozen=True)
class Corpus:
    """Training and held-out rows, and where they came from."""

    train_text: list[str]
    train_label: np.ndarray  # [n] 0 or 1
    eval_text: list[str]
    eval_label: np.ndarray  # [m] 0 or 1
    source: str
    note: str = ""  # what was repaired or replaced, empty if nothing


def hub_reachable(timeout_s: float = 3.0) -> bool:
    """Whether the model hub answers; asked first, since its own retries take minutes."""
    from huggingface_hub import constants

    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON"):
        return False
    parts = urlsplit(constants.ENDPOINT)
    try:
        with socket.create_connection((parts.hostname, parts.port or 443), timeout_s):
            return True
    except OSError:
        return False


def synthetic_rows(rows: int, seed: int, tail: float = 1.0) -> tuple[list[str], np.ndarray]:
    """Sentences of made-up words whose label is the sign of their opinion words, 3 % flipped.

    Args:
        rows: how many.
        seed: of everything.
        tail: lengths beyond the 90th centile are stretched by this factor (1 = as SST-2).
    """
    rng = np.random.default_rng([seed, 77])
    syllables = [a + b + c for a in "bdfgklmnprstvz" for b in "aeiou" for c in ("", "n", "r")]
    words = sorted({"".join(rng.choice(syllables, rng.integers(2, 4))) for _ in range(1500)})
    rng.shuffle(words)
    good, bad, neutral = words[:60], words[60:120], np.array(words[120:])
    frequency = 1.0 / np.arange(5, 5 + len(neutral))
    frequency /= frequency.sum()
    lengths = np.interp(rng.uniform(0, 100, rows), SST2_CENTILES, SST2_LENGTHS)
    knee = SST2_LENGTHS[5]
    lengths = np.where(lengths > knee, knee + (lengths - knee) * tail, lengths)
    labels = (rng.random(rows) < 0.56).astype(np.int64)
    texts = []
    for length, label in zip(lengths.round().astype(int) - 2, labels, strict=True):
        sentence = rng.choice(neutral, max(length, 1), p=frequency)
        opinions = 1 + rng.binomial(max(length, 1) - 1, 0.08)
        places = rng.choice(max(length, 1), opinions, replace=False)
        sentence = sentence.astype(object)
        sentence[places] = rng.choice(good if label else bad, opinions)
        texts.append(" ".join(sentence))
    flipped = rng.random(rows) < 0.03
    return texts, np.where(flipped, 1 - labels, labels)


def _check_rows(
    path: Path, rows: list[tuple[int, list[str]]], skip: bool
) -> tuple[list[str], np.ndarray, str]:
    """Valid rows of (line number, [sentence, label]); ConfigError names file, line and allowed."""
    texts: list[str] = []
    labels: list[int] = []
    dropped: list[int] = []
    empty: list[int] = []
    for number, cells in rows:
        problem = ""
        if len(cells) != 2:
            problem = f"{len(cells)} columns; allowed 2: sentence, label"
        elif cells[1].strip() not in ("0", "1"):
            problem = f"label is {cells[1].strip()!r}; allowed 0, 1"
        if problem and not skip:
            raise ConfigError(f"{path}: line {number}: {problem} (or --bad_rows skip)")
        if problem:
            dropped.append(number)
        elif not cells[0].strip():
            empty.append(number)
        else:
            texts.append(cells[0].strip())
            labels.append(int(cells[1]))
    notes = []
    for numbers, what in ((dropped, "broken or unlabelled"), (empty, "empty")):
        if numbers:
            notes.append(f"left out {len(numbers)} {what} row(s), first at line {numbers[0]}")
    return texts, np.array(labels, np.int64), "; ".join(notes)


def _read_text_table(path: Path, skip: bool) -> tuple[list[str], np.ndarray, str]:
    """A .tsv (no quoting, as GLUE has it) or .csv file with columns sentence and label."""
    try:
        content = path.read_bytes()
        file = io.StringIO(content.decode("utf-8"), newline="")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}: line {line}: {error.reason}; allowed is UTF-8") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    table = csv.reader(file)
    try:
        if path.suffix == ".tsv":
            lines = [line.rstrip("\r\n").split("\t") for line in file]
        else:
            lines = list(table)
    except csv.Error as error:
        raise ConfigError(f"{path}: line {table.line_num}: not valid CSV: {error}") from None
    header = [cell.strip() for cell in lines[0]] if lines else []
    if header != ["sentence", "label"]:
        raise ConfigError(f"{path}: header is {header}; allowed ['sentence', 'label']")
    numbered = [(n, cells) for n, cells in enumerate(lines[1:], start=2) if cells not in ([], [""])]
    return _check_rows(path, numbered, skip)


def _read_file(path: Path, skip: bool) -> tuple[list[str], np.ndarray, str]:
    if path.suffix in (".tsv", ".csv"):
        return _read_text_table(path, skip)
    if path.suffix != ".parquet":
        raise ConfigError(f"dataset {path}: allowed .tsv, .csv, .parquet, sst2, synthetic")
    return _check_rows(path, _read_parquet(path), skip)


def _read_parquet(path: Path) -> list[tuple[int, list[str]]]:
    """Rows of a .parquet file, numbered from 1."""
    from pyarrow import ArrowException, parquet  # comes with datasets

    try:
        table = parquet.read_table(path, partitioning=None)
    except (OSError, ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{path}: not a readable parquet file: {reason}") from None
    missing = {"sentence", "label"} - set(table.column_names)
    if missing:
        raise ConfigError(f"{path}: lacks columns {sorted(missing)}; has {table.column_names}")
    cells = zip(table["sentence"].to_pylist(), table["label"].to_pylist(), strict=True)
    return [
        (n, ["" if value is None else str(value) for value in row])
        for n, row in enumerate(cells, 1)
    ]


def _carve(
    settings: Settings, texts: list[str], labels: np.ndarray, source: str, note: str
) -> Corpus:
    """Hold out rows at random, then take `train_samples` of the rest.

    Rows whose text also occurs among the held-out ones are left out of training. SST-2 repeats
    phrases, and one that was trained on would count as learnt.
    """
    order = np.random.default_rng([settings.seed, 1]).permutation(len(texts))
    count = held_out_of(settings, len(texts))
    held = order[:count]
    seen = {texts[i] for i in held}
    rest = np.array([i for i in order[count:] if texts[i] not in seen], np.int64)
    if settings.train_samples:
        rest = rest[: settings.train_samples]
    if len(rest) < 1:
        raise ConfigError(
            f"{source}: {len(texts)} rows, none left to train on after holding out "
            f"eval_samples {count}"
        )
    return Corpus(
        [texts[i] for i in rest],
        labels[rest],
        [texts[i] for i in held],
        labels[held],
        source,
        note,
    )


def _from_hub(settings: Settings) -> Corpus:
    from datasets import load_dataset

    parts = load_dataset("stanfordnlp/sst2")
    rng = np.random.default_rng([settings.seed, 1])
    train = rng.permutation(len(parts["train"]))[: settings.train_samples or None]
    held = rng.permutation(len(parts["validation"]))[: settings.eval_samples or HELD_OUT]
    return Corpus(
        parts["train"].select(train)["sentence"][:],
        np.array(parts["train"].select(train)["label"][:]),
        parts["validation"].select(held)["sentence"][:],
        np.array(parts["validation"].select(held)["label"][:]),
        "hub:stanfordnlp/sst2",
    )


def load_corpus(settings: Settings) -> Corpus:
    """The corpus of a run. Where the hub is out of reach it is the synthetic one, and a note says so.

    Raises:
        ConfigError: naming the file and line, or the flag, and what is allowed.
    """
    name, note = settings.dataset, ""
    if name == "sst2":
        if hub_reachable():
            return _from_hub(settings)
        note = "hub not reachable: SYNTHETIC corpus with SST-2's length distribution instead"
        name = "synthetic"
    if name == "synthetic":
        texts, labels = synthetic_rows(
            settings.synthetic_rows, settings.seed, settings.synthetic_tail
        )
        return _carve(settings, texts, labels, "synthetic", note)
    path = Path(name)
    if not os.path.isfile(name):  # False too where the name is too long for a file
        raise ConfigError(f"dataset {name!r}: no such file; allowed sst2, synthetic, or a file")
    texts, labels, note = _read_file(path, settings.bad_rows == "skip")
    return _carve(settings, texts, labels, str(path), note)
