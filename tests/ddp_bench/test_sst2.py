"""On the real SST-2 lengths: what each rule saves, under a cost of the measured shape."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ddp_bench.config import Settings, parse_arm
from ddp_bench.data.corpus import load_corpus, synthetic_rows
from ddp_bench.replay import make_team, modelled_times

DATA = Path(__file__).parents[2].parent / "shared" / "data" / "sst2"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"needs the SST-2 folder {DATA}")
COST = np.array([8.0, 0.2, 0.0001])  # [ms]: a, per token, per token and token of length


@pytest.fixture(scope="module")
def lengths():
    table = pd.read_csv(DATA / "token_length_hist.csv")
    return np.repeat(table["token_len"].to_numpy(), table["glue_train"].to_numpy())


@pytest.fixture(scope="module")
def saved(lengths):
    """Arm -> (mean, P95) of the slowest rank's time saved against static, B = 32, G = 4 [%]."""
    worst = {}
    for name in ("static", "dynamic", "pooled", "group_by_length_pooled", "packed"):
        settings = Settings(mode=name, global_batch=32, cost="tokens")
        team = make_team(parse_arm(name, settings), settings, lengths, 4)
        worst[name] = modelled_times(team, 250, COST)[0]
    base = worst["static"]
    return {
        name: (
            100 * (1 - values.mean() / base.mean()),
            100 * (1 - np.percentile(values, 95) / np.percentile(base, 95)),
        )
        for name, values in worst.items()
    }


@pytest.mark.parametrize(
    ("arm", "mean", "tail"),
    [
        ("dynamic", 12, 12),
        ("pooled", 40, 40),
        ("packed", 50, 50),
        ("group_by_length_pooled", 50, 20),
    ],
)
def test_rules_save_what_is_claimed(saved, arm, mean, tail):
    assert saved[arm][0] >= mean and saved[arm][1] >= tail


def test_the_rival_that_transformers_ships_is_not_ahead_of_pooled(lengths):
    pytest.importorskip("transformers")
    times = {}
    for name in ("pooled", "hf_batch_rebalance"):
        settings = Settings(mode=name, global_batch=32, cost="tokens")
        team = make_team(parse_arm(name, settings), settings, lengths, 4)
        times[name] = modelled_times(team, 100, COST)[0]
    assert (times["pooled"] <= times["hf_batch_rebalance"] * (1 + 1e-9)).mean() > 0.9
    assert times["pooled"].mean() <= times["hf_batch_rebalance"].mean()


def test_the_synthetic_corpus_has_the_real_length_distribution(lengths):
    words = np.array([len(text.split()) + 2 for text in synthetic_rows(20000, 1)[0]])
    centiles = [5, 25, 50, 75, 90, 95, 99]
    gap = np.percentile(words, centiles) - np.percentile(lengths, centiles)
    assert np.abs(gap).max() <= 1.5 and abs(words.mean() - lengths.mean()) < 0.5


def test_the_real_file_loads_whole_and_held_out_phrases_are_not_trained_on():
    corpus = load_corpus(Settings(dataset=str(DATA / "glue_train.tsv")))
    assert len(corpus.eval_text) == 1000 and 65_000 < len(corpus.train_text) < 66_349
    assert not set(corpus.train_text) & set(corpus.eval_text)
    assert corpus.note == ""


def test_our_tokenizer_gives_lengths_like_the_original(lengths):
    pytest.importorskip("transformers")
    from ddp_bench.data.tokens import encode, train_wordpiece

    corpus = load_corpus(Settings(dataset=str(DATA / "glue_train.tsv")))
    tokens = encode(corpus.train_text, corpus.train_label, train_wordpiece(corpus.train_text), 256)
    assert abs(tokens.lengths.mean() - lengths.mean()) < 0.5
    assert abs(np.percentile(tokens.lengths, 95) - np.percentile(lengths, 95)) <= 2
