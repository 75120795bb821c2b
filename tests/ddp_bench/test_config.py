"""Settings and rows: every bad input is one line that names file, key and allowed values."""

import subprocess
import sys

import numpy as np
import pytest

from ddp_bench.config import Settings, check_feasible, parse_caps, parse_settings
from ddp_bench.data.corpus import SST2_LENGTHS, load_corpus, synthetic_rows
from ddp_bench.errors import ConfigError
from ddp_bench.train_ddp import main


def test_flags_win_over_the_file_and_the_file_over_defaults(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("steps: 7\nglobal_batch: 64\nlearning_rate: 1\n")
    settings, check_for = parse_settings(["--config", str(path), "--steps", "9", "--validate_only"])
    assert (settings.steps, settings.global_batch, settings.learning_rate) == (9, 64, 1.0)
    assert check_for == 1 and settings.mode == "dynamic"


def test_the_cost_has_two_names(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("cost_type: tokens_sq\n")
    assert parse_settings(["--config", str(path)])[0].cost == "tokens_sq"
    assert parse_settings(["--cost_type", "tokens"])[0].cost == "tokens"
    assert parse_settings(["--config", str(path), "--cost", "tokens"])[0].cost == "tokens"


@pytest.mark.parametrize("text", ["5e-5", "1.0e-3", "0.5", "1"])
def test_numbers_with_an_exponent_are_numbers(tmp_path, text):
    path = tmp_path / "run.yaml"
    path.write_text(f"learning_rate: {text}\n")
    assert parse_settings(["--config", str(path)])[0].learning_rate == float(text)


def test_the_shipped_configuration_loads():
    settings, _ = parse_settings(["--config", "ddp_bench/configs/default.yaml"])
    assert settings.mode == "compare"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("stepz: 7", "stepz"),
        ("steps: many", "steps"),
        ("steps: 0", "steps is 0"),
        ("mode: turbo", "allowed static, dynamic"),
        ("- 1", "mapping"),
        ("steps: [", "not valid YAML"),
        ("mode: compare\narms: static,turbo", "turbo"),
        ("mode: compare\narms: static,static", "distinct"),
        ("inject: explode:1:1", "KIND:RANK:STEP"),
        ("steps: 7\nsteps: 9", "line 2: 'steps' stands there twice"),
        ("cost: tokens\ncost_type: fitted", "the same setting"),
        ("steps: [7]", "plain values"),
        ("steps: &n 7\nwarmup_steps: *n", "plain values"),
        ("[" * 30_000, "plain values"),
        ("steps: " + "9" * 5000, "not valid YAML"),
        ("learning_rate: " + "9" * 400, "learning_rate"),
        ("# " + "x" * 70_000, "longer than"),
        ("steps: 7\x00", "not valid YAML"),
    ],
)
def test_a_bad_file_is_named(tmp_path, capsys, text, said):
    path = tmp_path / "run.yaml"
    path.write_text(text)
    assert main(["--config", str(path)]) == 2
    error = capsys.readouterr().err
    assert str(path) in error and said in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--steps", "x"], "--steps"),
        (["--cost", "flops"], "tokens_sq"),
        (["--nope"], "--nope"),
        (["--mode", "static", "--validate_only", "--for_ranks", "5"], "multiples of 5"),
        (["--config", "absent.yaml"], "absent.yaml"),
        (["--glob", "16"], "--glob"),
        (["--inject", "kill:9:2", "--validate_only", "--for_ranks", "2"], "RANK below 2"),
        (["--inject", "kill:1:300"], "STEP below 300"),
        (["--model", "./modle", "--validate_only"], "no such folder"),
        (["--model=~/modle", "--validate_only"], "no such folder"),
    ],
)
def test_a_bad_command_line_is_one_line_and_status_2(capsys, argv, said):
    assert main(argv) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


@pytest.mark.parametrize("text", ["x" * 5000, "a\x1b[31m\rb", "\ud83d" * 9, "漢" * 900])
def test_a_refusal_is_one_short_printable_line(capsys, text):
    assert main(["--dataset", text, "--validate_only"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and len(error.encode()) <= 500
    assert error.rstrip("\n").isprintable() and "allowed sst2" in error


@pytest.mark.parametrize(
    ("name", "value", "within"),
    [
        ("learning_rate", "nan", "[0, inf)"),
        ("learning_rate", "inf", "[0, inf)"),
        ("weight_decay", "-0.1", "[0, inf)"),
        ("timeout_s", "0", "(0, 1000000]"),
        ("checkpoint_every", "-1", "[0, inf)"),
        ("eval_samples", "-1", "[0, inf)"),
        ("train_samples", "-2", "[0, inf)"),
        ("micro_batch", "-1", "[0, inf)"),
        ("max_age_steps", "0", "[1, inf)"),
        ("max_length", "2", "[3, inf)"),
        ("capacity_margin", "7", "(0, 1]"),
        ("capacity_margin", "0", "(0, 1]"),
        ("synthetic_rows", "0", "[1, inf)"),
        ("seed", "-1", "[0, 2147483647]"),
    ],
)
def test_numbers_outside_their_interval_are_refused(capsys, name, value, within):
    assert main([f"--{name}={value}", "--validate_only"]) == 2
    error = capsys.readouterr().err
    assert f"{name} is " in error and within in error and error.count("\n") == 1


def test_the_ends_of_an_interval_are_allowed_where_it_is_closed():
    Settings(capacity_margin=1.0, max_length=3, learning_rate=0.0, seed=2**31 - 1)


@pytest.mark.parametrize(
    ("changes", "caps", "said"),
    [
        ({"mode": "pooled", "global_batch": 3}, None, "one sample per rank"),
        ({"mode": "static", "global_batch": 30}, None, "multiples of 4"),
        ({"mode": "compare", "global_batch": 30}, None, "multiples of 4"),
        ({"mode": "dynamic", "prefetch": 5}, None, "prefetch is 5"),
        ({"mode": "dynamic"}, [8, 8, 8, 7], "b_max sums to 31"),
    ],
)
def test_infeasible_batches_are_refused(changes, caps, said):
    with pytest.raises(ConfigError, match=said):
        check_feasible(Settings(**changes), 4, caps)


def test_only_static_needs_a_divisible_batch():
    for mode in ("dynamic", "pooled", "packed", "group_by_length", "hf_batch_rebalance"):
        check_feasible(Settings(mode=mode, global_batch=30), 4, None)


def test_caps_are_one_number_or_one_per_rank():
    assert parse_caps("", 2) is None
    assert parse_caps("5", 2) == [5, 5]
    assert parse_caps("5,7", 2) == [5, 7]
    for bad in ("0", "1,2,3", "x"):
        with pytest.raises(ConfigError, match="b_max"):
            parse_caps(bad, 2)


def corpus_of(tmp_path, body, **settings):
    path = tmp_path / "rows.tsv"
    path.write_text("sentence\tlabel\n" + body)
    return load_corpus(Settings(dataset=str(path), eval_samples=1, **settings)), path


GOOD = "fine film\t1\nbad film\t0\nok film\t1\n"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("no label\t\n", "line 5: label is ''; allowed 0, 1"),
        ("wrong label\t7\n", "line 5: label is '7'"),
        ("broken line\n", "line 5: 1 columns; allowed 2"),
        ("too\tmany\t1\n", "line 5: 3 columns"),
    ],
)
def test_broken_rows_are_named_or_left_out_and_counted(tmp_path, line, said):
    with pytest.raises(ConfigError, match=said):
        corpus_of(tmp_path, GOOD + line)
    corpus, _ = corpus_of(tmp_path, GOOD + line, bad_rows="skip")
    assert len(corpus.train_text) == 2 and "left out 1" in corpus.note


def test_empty_sentences_are_left_out_and_counted(tmp_path):
    corpus, _ = corpus_of(tmp_path, GOOD + "   \t1\n")
    assert len(corpus.train_text) == 2 and "1 empty row" in corpus.note


def test_words_that_look_like_missing_values_and_quotes_survive(tmp_path):
    corpus, _ = corpus_of(tmp_path, 'null\t0\nNA\t1\n" open quote\t1\n')
    assert {"null", "NA", '" open quote'} >= set(corpus.train_text) and len(corpus.train_text) == 2


def test_held_out_rows_never_occur_in_training(tmp_path):
    path = tmp_path / "rows.tsv"
    rows = [f"phrase {i % 40}\t{i % 2}" for i in range(200)]
    path.write_text("sentence\tlabel\n" + "\n".join(rows) + "\n")
    corpus = load_corpus(Settings(dataset=str(path), eval_samples=20))
    assert not set(corpus.train_text) & set(corpus.eval_text)


@pytest.mark.parametrize(("rows", "held"), [(900, 90), (20_000, 1000), (15, 1), (5, 1)])
def test_a_tenth_of_the_rows_is_held_out_and_1000_at_most(tmp_path, rows, held):
    path = tmp_path / "rows.tsv"
    lines = [f"phrase {i}\t{i % 2}" for i in range(rows)]
    path.write_text("sentence\tlabel\n" + "\n".join(lines) + "\n")
    corpus = load_corpus(Settings(dataset=str(path)))
    assert len(corpus.eval_text) == held and len(corpus.train_text) == rows - held


@pytest.mark.parametrize("name", ["absent.tsv", "rows.json"])
def test_a_bad_dataset_is_named(tmp_path, name):
    if name == "rows.json":
        (tmp_path / name).write_text("{}")
    with pytest.raises(ConfigError, match=name):
        load_corpus(Settings(dataset=str(tmp_path / name)))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("latin.tsv", b"sentence\tlabel\nfine\t1\ncaf\xe9\t0\n", "line 3: .*allowed is UTF-8"),
        ("long.csv", b'sentence,label\n"' + b"a " * 70000 + b'",1\n', "line 2: not valid CSV"),
        ("cut.parquet", b"PAR1 and no more", "not a readable parquet file"),
    ],
)
def test_an_unreadable_file_is_named(tmp_path, name, content, said):
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=f"{name}: {said}"):
        load_corpus(Settings(dataset=str(tmp_path / name)))


def test_parquet_rows_are_read_like_any_other(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    rows = {"sentence": ["fine", "bad", None, "ok"], "label": [1, 0, 1, 1]}
    parquet.write_table(pyarrow.table(rows), tmp_path / "rows.parquet")
    corpus = load_corpus(Settings(dataset=str(tmp_path / "rows.parquet"), eval_samples=1))
    found = dict(zip(corpus.train_text, corpus.train_label, strict=True))
    found |= dict(zip(corpus.eval_text, corpus.eval_label, strict=True))
    assert sorted(found.items()) == [("bad", 0), ("fine", 1), ("ok", 1)]
    assert "1 empty row" in corpus.note


def test_a_wrong_header_is_named(tmp_path):
    path = tmp_path / "rows.tsv"
    path.write_text("text\ty\na\t1\n")
    with pytest.raises(ConfigError, match="allowed \\['sentence', 'label'\\]"):
        load_corpus(Settings(dataset=str(path)))


def test_the_synthetic_corpus_has_the_lengths_of_sst2():
    texts, labels = synthetic_rows(20000, 0)
    words = np.array([len(text.split()) + 2 for text in texts])
    assert abs(words.mean() - 13.3) < 0.4
    found = np.percentile(words, [10, 50, 90, 95, 99])
    assert np.abs(found - np.array(SST2_LENGTHS)[[1, 3, 5, 6, 7]]).max() <= 1
    assert 0.5 < labels.mean() < 0.6


def test_a_longer_tail_stretches_only_the_tail():
    lengths = [np.array([len(t.split()) for t in synthetic_rows(8000, 0, k)[0]]) for k in (1, 4)]
    assert np.percentile(lengths[0], 80) == np.percentile(lengths[1], 80)
    assert lengths[1].max() > 2.5 * lengths[0].max()


def test_settings_are_checked_before_torch_is_imported():
    code = (
        "import sys; from ddp_bench.train_ddp import main; "
        "assert main(['--validate_only']) == 0; "
        "assert not {'torch', 'jax', 'jaxsim', 'agents'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
