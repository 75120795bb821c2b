"""Tokenizer, packed attention, capacity search: single process, no torchrun."""

import json
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
import torch
from transformers import BertConfig, BertForSequenceClassification

import ddp_bench.data.tokens as tokens_module
import ddp_bench.training.model as model_module
from ddp_bench.config import Settings
from ddp_bench.data.corpus import synthetic_rows
from ddp_bench.data.tokens import (
    Collator,
    encode,
    resolve_model,
    train_wordpiece,
    wordpiece_vocabulary,
)
from ddp_bench.errors import ConfigError
from ddp_bench.ranks import comm
from ddp_bench.training.capacity import copies_aside, largest_fitting, probe, share
from ddp_bench.training.gradients import split_ids
from ddp_bench.training.model import ATTENTION, Classifier, attention_buckets, build_classifier
from ddp_bench.training.runner import halved
from ddp_bench.training.timing import ComputeTimer, peak_memory_mb


@pytest.fixture(scope="module")
def data():
    texts, labels = synthetic_rows(300, 0, tail=3.0)
    tokenizer = train_wordpiece(texts)
    return encode(texts, labels, tokenizer, 96), tokenizer


def bert(vocab):
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=vocab,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=96,
        attn_implementation=ATTENTION,
    )
    return Classifier(BertForSequenceClassification(config))


@pytest.mark.parametrize("kind", ["distilbert", "bert"])
@pytest.mark.parametrize("count", [1, 2, 7, 40])
def test_packed_equals_padded_in_loss_and_gradient(data, kind, count, monkeypatch):
    tokens, tokenizer = data
    vocab = len(tokenizer)
    sizes = {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64}
    monkeypatch.setattr(model_module, "SMALL", sizes)
    model = bert(vocab) if kind == "bert" else build_classifier("small", vocab, 96, 0)
    model = model.double().eval()
    ids = np.random.default_rng(count).choice(len(tokens), count, replace=False)
    collate = Collator(tokenizer, 1)
    found = []
    for packed in (False, True):
        model.zero_grad()
        loss, _ = model(collate(tokens, ids, packed))
        loss.backward()
        gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
        found.append((loss.item(), gradient))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-12)
    assert (found[0][1] - found[1][1]).norm() <= 1e-12 * found[0][1].norm()


@pytest.mark.parametrize("width", [1, 64, 4096])
def test_buckets_cover_the_row_and_bound_the_extra_work(width):
    lengths = sorted(np.random.default_rng(0).integers(3, 90, 40).tolist())
    buckets = attention_buckets(lengths, width, torch.device("cpu"))
    assert [b.start for b in buckets] == np.cumsum([0] + [b.tokens for b in buckets[:-1]]).tolist()
    assert sum(b.tokens for b in buckets) == sum(lengths)
    assert sum(b.count for b in buckets) == len(lengths)
    area = sum(b.count * b.length**2 for b in buckets)
    assert area - sum(n**2 for n in lengths) <= 0.3 * width * sum(lengths)
    assert (len(buckets) == 1) == (width == 4096)


def test_tokenizer_is_the_same_in_every_process():
    code = (
        "from ddp_bench.data.corpus import synthetic_rows;"
        "from ddp_bench.data.tokens import train_wordpiece;"
        "import json; print(json.dumps(sorted(train_wordpiece(synthetic_rows(200, 0)[0])"
        ".get_vocab().items())))"
    )
    other = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    here = sorted(train_wordpiece(synthetic_rows(200, 0)[0]).get_vocab().items())
    assert json.loads(other) == [list(pair) for pair in here]


def test_vocabulary_holds_every_letter_and_stays_within_its_size():
    words = Counter({"film": 5, "films": 3, "filming": 2, "zoo": 1})
    vocabulary = wordpiece_vocabulary(words, 40)
    assert len(vocabulary) <= 40 and len(set(vocabulary)) == len(vocabulary)
    letters = {letter for word in words for letter in word}
    assert letters <= set(vocabulary) and {f"##{x}" for x in letters} <= set(vocabulary)


def test_collator_pads_to_the_multiple(data):
    tokens, tokenizer = data
    ids = np.arange(5)
    batch = Collator(tokenizer, 8).padded(tokens, ids)
    longest = tokens.lengths[ids].max()
    assert batch["input_ids"].shape == (5, -(-longest // 8) * 8)
    assert batch["attention_mask"].sum(1).tolist() == tokens.lengths[ids].tolist()


@pytest.mark.parametrize("limit", [1, 7, 64])
def test_capacity_search_finds_the_largest_size_that_fits(limit):
    for truth in range(0, 70):
        tried = []

        def fits(size, truth=truth, tried=tried):
            tried.append(size)
            return size <= truth

        assert largest_fitting(fits, limit) == min(truth, limit)
        assert all(1 <= size <= limit for size in tried) and len(tried) <= 14


@pytest.mark.parametrize(("sharing", "arms"), [(1, 1), (4, 1), (4, 7), (3, 2)])
@pytest.mark.parametrize("samples_mb", [2, 70, 300])
def test_what_ranks_on_one_gpu_are_given_fits_in_its_memory(sharing, arms, samples_mb):
    """A GPU of 8 GB, weights of 60 MB: all arms of all ranks and all caps must fit together."""
    memory, weights, limit = 8000, 60, 32

    def fits(size):
        present = 2 * weights  # the probing model and its gradients
        return present + copies_aside(arms, sharing) * weights + size * samples_mb <= memory

    cap = share(fits, limit, 0.9, sharing)
    resident = 4 * weights * arms * sharing  # weights, gradients, two moments
    assert cap <= limit and resident + sharing * cap * samples_mb <= memory
    most = (memory - resident) // samples_mb // sharing
    assert cap == limit if most >= limit else 0.8 * most - 1 <= cap <= most


def test_a_rank_without_room_for_a_sample_gets_none():
    assert share(lambda size: size <= 4, 32, 0.9, 4) == 1
    assert share(lambda size: size <= 3, 32, 0.9, 4) == 0
    assert share(lambda size: size <= 1, 32, 0.9, 1) == 1


@pytest.mark.parametrize(
    ("gpus", "ranks", "expected"),
    [(0, 4, [1, 1, 1, 1]), (1, 4, [4, 4, 4, 4]), (3, 4, [2, 1, 1, 2]), (4, 4, [1, 1, 1, 1])],
)
def test_ranks_that_share_a_gpu_are_counted(monkeypatch, gpus, ranks, expected):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
    found = []
    for rank in range(ranks):
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        found.append(comm.ranks_per_device())
    assert found == expected


def test_a_cpu_has_no_memory_capacity_and_no_peak(data):
    model = build_classifier("small", len(data[1]), 96, 0)
    cpu = torch.device("cpu")
    assert probe(model, 96, 100, 8, 0.9, cpu, torch.enable_grad()) is None
    assert peak_memory_mb(cpu) is None


def test_compute_time_on_a_cpu_does_not_count_sleeping():
    import time

    with ComputeTimer(torch.device("cpu")) as timer:
        time.sleep(0.2)
    assert timer.ms < 50


@pytest.mark.parametrize(
    ("counts", "limits", "sizes"),
    [
        ([8, 8], [32, 32], [4, 2, 1, 0]),
        ([1, 8], [1, 8], [4, 2, 1, 0]),  # the rank that is at one sample waits for the other
        ([9, 0], [5, 5], [3, 2, 1, 0]),
        ([1, 1], [32, 32], [1, 0]),
    ],
)
def test_a_redone_step_halves_the_largest_micro_batch_of_any_rank(counts, limits, sizes):
    assert [halved(counts, limits, attempt) for attempt in range(1, len(sizes) + 1)] == sizes


def test_local_batches_are_split_evenly():
    assert split_ids(np.arange(0), 4) == []
    assert [len(part) for part in split_ids(np.arange(9), 4)] == [3, 3, 3]
    assert [len(part) for part in split_ids(np.arange(9), None)] == [9]


def test_only_a_name_that_may_be_on_the_hub_is_replaced_by_the_small_encoder(tmp_path, monkeypatch):
    monkeypatch.setattr(tokens_module, "hub_reachable", lambda: False)
    assert resolve_model(Settings(model=str(tmp_path))) == (str(tmp_path), "")
    name, note = resolve_model(Settings(model="owner/encoder"))
    assert name == "small" and "instead of owner/encoder" in note
    for path in (tmp_path / "absent", "./absent", "~/absent"):
        with pytest.raises(ConfigError, match="no such folder"):
            resolve_model(Settings(model=str(path)))


def test_a_model_that_cannot_be_loaded_is_named(tmp_path):
    with pytest.raises(ConfigError, match=str(tmp_path)):
        build_classifier(str(tmp_path), 100, 16, 0)
