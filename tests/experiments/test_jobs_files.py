"""Jobs files and lists that are drawn: what they say, what they refuse."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from experiments.jobs import __main__ as jobs_command
from jaxsim.files.errors import InputError
from jaxsim.load.jobs_drawn import JobMix, jobs_from_trace, random_jobs
from jaxsim.load.jobs_file import DATA_COLUMNS, JOBS_COLUMNS, read_jobs, write_jobs
from jaxsim.workload.workload import MODEL_PRESETS, build_workload

PHILLY = Path(__file__).parents[2].parent / "shared" / "data" / "load"
PHILLY = PHILLY / "philly_vc_jobs_gavel.csv.gz"
HEADER = ",".join(JOBS_COLUMNS)
DATA_HEADER = ",".join(JOBS_COLUMNS + DATA_COLUMNS)
TRACE_HEADER = "vc,arrival_s,num_gpus,assigned_model,total_steps,duration_s_v100"


def write(path, *rows, header=HEADER):
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def test_rows_become_jobs_in_order_of_arrival(tmp_path):
    path = write(tmp_path / "jobs.csv", "90,llama-13b,64,2048,1e9", "0.5,llama-7b,512,4096,2097152")
    first, second = read_jobs(path)
    assert (first.model, first.spec.model) == ("llama-7b", MODEL_PRESETS["llama-7b"])
    assert (first.spec.arrival_s, first.spec.step_budget) == (0.5, 1.0)
    assert second.where.endswith("line 2") and second.spec.global_batch == 64
    np.testing.assert_allclose(second.spec.step_budget, 1e9 / (64 * 2048))
    work = build_workload([first.spec, second.spec])
    np.testing.assert_array_equal(work.arrival_s, [0.5, 90.0])
    write_jobs(tmp_path / "again.csv", (first, second))
    again = read_jobs(tmp_path / "again.csv")
    assert [job.spec for job in again] == [first.spec, second.spec]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("-1,llama-7b,512,4096,1e9", ["line 2", "arrival_s", ">= 0", "'-1'"]),
        ("nan,llama-7b,512,4096,1e9", ["line 2", "arrival_s"]),
        ("0,llama-8b,512,4096,1e9", ["line 2", "model", "llama-8b", "llama-7b"]),
        ("0,llama-7b,0,4096,1e9", ["line 2", "global_batch", "integer >= 1"]),
        ("0,llama-7b,512,40.5,1e9", ["line 2", "seq", "integer >= 1", "40.5"]),
        ("0,llama-7b,512,4096,0", ["line 2", "tokens", "> 0"]),
        ("0,llama-7b,512,4096,inf", ["line 2", "tokens"]),
        ("0,llama-7b,512,4096", ["line 2", "tokens", "got ''"]),
        ("0,llama-7b,512,4096,1,2", ["line 2", "more cells"]),
    ],
)
def test_a_bad_row_is_one_line_naming_file_line_and_key(tmp_path, row, words):
    refuse(read_jobs, write(tmp_path / "jobs.csv", row), words)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("0,llama-7b,512,4096,1e9,-1,a", ["line 2", "data_gb", ">= 0", "'-1'"]),
        ("0,llama-7b,512,4096,1e9,nan,a", ["line 2", "data_gb"]),
        ("0,llama-7b,512,4096,1e9,5,;", ["line 2", "data_at"]),
        ("0,llama-7b,512,4096,1e9,5", ["line 2", "data_at"]),
    ],
)
def test_data_that_is_nowhere_or_no_number(tmp_path, row, words):
    refuse(read_jobs, write(tmp_path / "jobs.csv", row, header=DATA_HEADER), words)


def test_data_is_read_written_and_drawn(tmp_path, capsys):
    rows = ("0,llama-7b,512,4096,1e9,250.5,east;far west", "9,llama-7b,512,4096,1e9,0,")
    jobs = read_jobs(write(tmp_path / "jobs.csv", *rows, header=DATA_HEADER))
    assert [(job.data_gb, job.data_at) for job in jobs] == [(250.5, ("east", "far west")), (0, ())]
    write_jobs(tmp_path / "again.csv", jobs)
    again = read_jobs(tmp_path / "again.csv")
    assert [(job.data_gb, job.data_at) for job in again] == [(250.5, ("east", "far west")), (0, ())]
    # Where the data is does not change who comes when.
    plain, placed = tmp_path / "plain.csv", tmp_path / "placed.csv"
    assert jobs_command.main(["--out", str(plain), "--count", "32"]) == 0
    argv = ["--count", "32", "--data_gb", "100", "--data_at", "a,b"]
    assert jobs_command.main(["--out", str(placed), *argv]) == 0
    drawn = read_jobs(placed)
    assert [job.spec for job in drawn] == [job.spec for job in read_jobs(plain)]
    assert {job.data_at for job in drawn} == {("a",), ("b",)}
    for alone in (argv[:4], [*argv[:2], *argv[4:]]):
        assert jobs_command.main(["--out", str(tmp_path / "none.csv"), *alone]) == 2
        assert "data_at: expected domains if, and only if" in capsys.readouterr().err
    assert not (tmp_path / "none.csv").exists()


def refuse(read, path, words):
    with pytest.raises(InputError) as error:
        read(path)
    text = str(error.value)
    assert "\n" not in text
    for word in [str(path), *words]:
        assert word in text, f"{word!r} is not in {text!r}"


def test_bad_files(tmp_path):
    refuse(read_jobs, tmp_path / "missing.csv", ["cannot be read"])
    refuse(read_jobs, write(tmp_path / "empty.csv"), ["no job"])
    refuse(read_jobs, write(tmp_path / "header.csv", header="arrival_s,model"), [HEADER])
    refuse(read_jobs, write(tmp_path / "many.csv", *["0,llama-7b,1,1,1"] * 65), ["65", "64"])
    (tmp_path / "broken.csv.gz").write_bytes(b"\x1f\x8b\x08garbage")
    refuse(read_jobs, tmp_path / "broken.csv.gz", ["cannot be read"])
    whole = bytearray(gzip.compress(HEADER.encode() * 100))
    whole[15] ^= 0xFF
    (tmp_path / "corrupt.csv.gz").write_bytes(whole)
    refuse(read_jobs, tmp_path / "corrupt.csv.gz", ["cannot be read", "decompress"])


def test_a_trace_keeps_its_bursts_and_its_work(tmp_path):
    rows = ["q,0,1,x,1,3600", "q,10,4,x,1,3600", "q,40,2,x,1,3600", "q,50,2,x,1,"]
    path = write(tmp_path / "trace.csv", *rows, header=TRACE_HEADER)
    mix = JobMix(models=("llama-7b",), span_s=400.0)
    jobs = jobs_from_trace(path, 3, mix, np.random.default_rng(0))
    np.testing.assert_allclose([job.spec.arrival_s for job in jobs], [0, 100, 400])
    # An hour of one V100 at 40 % of 125 TFLOP/s, 6 FLOPs per parameter and token.
    tokens = 3600 * 50e12 / (6 * MODEL_PRESETS["llama-7b"].params)
    steps = np.maximum(np.array([1, 4, 2]) * tokens / (512 * 4096), 1.0)
    np.testing.assert_allclose([job.spec.step_budget for job in jobs], steps)

    # Whenever the trace begins: the first job comes at once.
    later = [row.replace("q,", "q,9", 1) for row in ("q,00,1,x,1,3600", "q,10,4,x,1,3600")]
    path_later = write(tmp_path / "later.csv", *later, header=TRACE_HEADER)
    jobs = jobs_from_trace(path_later, 2, mix, np.random.default_rng(0))
    assert [job.spec.arrival_s for job in jobs] == [0, 400]

    def too_many(path):
        return jobs_from_trace(path, 4, mix, np.random.default_rng(0))

    refuse(too_many, path, ["3 jobs", "4 are wanted"])


def test_random_arrivals_are_poisson_or_come_together():
    mix, rng = JobMix(span_s=1000.0), np.random.default_rng(0)
    lists = {b: [random_jobs(32, mix, 1e7, b, rng) for _ in range(60)] for b in (1.0, 4.0)}
    gaps = {
        b: np.concatenate([np.diff([job.spec.arrival_s for job in one]) for one in many])
        for b, many in lists.items()
    }
    for many in gaps.values():  # as many per hour, one by one or together
        np.testing.assert_allclose(many.mean(), 1000 / 32, rtol=0.15)
    spread = {b: many.std() / many.mean() for b, many in gaps.items()}
    np.testing.assert_allclose(spread[1.0], 1.0, atol=0.1)
    assert spread[4.0] > 2.0
    # 6 FLOPs per parameter and token; a log-normal factor of mean 1 around what was asked for.
    flops = [
        6.0 * job.spec.model.params * job.spec.step_budget * mix.global_batch * mix.seq
        for one in lists[1.0]
        for job in one
    ]
    np.testing.assert_allclose(np.mean(flops), 1e7 * 1e12 * mix.work_scale, rtol=0.15)
    # However little there is to do, it is one batch.
    assert {job.spec.step_budget for job in random_jobs(4, mix, 1e-12, 1.0, rng)} == {1.0}
    one = lists[1.0][0]
    work = [job.spec.step_budget * job.spec.model.params for job in one]
    large = [job.model == "llama-13b" for job in one]
    assert min(np.array(work)[large]) >= max(np.array(work)[~np.array(large)])


@pytest.mark.skipif(not PHILLY.exists(), reason="the Philly trace is not beside the project")
def test_sixteen_jobs_of_the_philly_trace(tmp_path, capsys):
    argv = ["--trace", str(PHILLY), "--out", str(tmp_path / "jobs.csv"), "--seed", "1"]
    assert jobs_command.main(argv) == 0
    assert "16 jobs" in capsys.readouterr().out
    jobs = read_jobs(tmp_path / "jobs.csv")
    arrivals = [job.spec.arrival_s for job in jobs]
    assert len(jobs) == 16 and arrivals[0] == 0 and arrivals[-1] == pytest.approx(6 * 3600)
    assert {job.model for job in jobs} == {"llama-7b", "llama-13b"}


def test_a_bad_list_is_refused_before_anything_is_written(tmp_path, capsys):
    out = tmp_path / "jobs.csv"
    assert jobs_command.main(["--out", str(out), "--count", "65"]) == 2
    assert "count" in capsys.readouterr().err
    for burst in (".inf", "1e10", ".nan", "0.5"):
        assert jobs_command.main(["--out", str(out), "--burst", burst]) == 2
        assert "burst: expected a number from 1 to 64" in capsys.readouterr().err
    assert jobs_command.main(["--out", str(out), "--models", "llama-8b"]) == 2
    assert "llama-8b" in capsys.readouterr().err
    assert not out.exists()
