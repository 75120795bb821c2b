"""The run-folder schema: what is written comes back, and nothing is half-written."""

import dataclasses
import enum
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis import provenance, records
from analysis.records import RecordError, RunWriter, load, to_jsonable, write_json


@dataclasses.dataclass
class Settings:
    rate: float
    where: Path


class Mode(enum.Enum):
    FAST = "fast"


def make(tmp_path, **changes):
    arguments = {"kind": "train", "config": {"lr": 3e-4}, "seed": [0, 1], "out": tmp_path / "run"}
    return RunWriter.create(**(arguments | changes))


def listing(folder):
    return sorted(path.name for path in Path(folder).iterdir())


# --- JSON ---------------------------------------------------------------------------------------


def test_to_jsonable_turns_numpy_dataclasses_paths_and_enums_into_plain_values():
    obj = {
        "array": np.arange(3),
        "scalar": np.float32(0.5),
        "flag": np.bool_(True),
        "settings": Settings(np.nan, Path("a/b")),
        "mode": Mode.FAST,
        "pair": (1, 2),
        3: {"b", "a"},
    }
    assert to_jsonable(obj) == {
        "array": [0, 1, 2],
        "scalar": 0.5,
        "flag": True,
        "settings": {"rate": None, "where": "a/b"},
        "mode": "fast",
        "pair": [1, 2],
        "3": ["a", "b"],
    }


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, float("nan")])
def test_to_jsonable_turns_what_json_cannot_hold_into_null(value):
    assert to_jsonable([value, np.array([value])]) == [None, [None]]


def test_to_jsonable_names_the_key_of_what_it_refuses():
    with pytest.raises(RecordError, match=r"key config\.nets\[1\]: cannot store a function"):
        to_jsonable({"config": {"nets": [1, lambda: 0]}})


def test_write_json_leaves_the_old_file_and_no_rest_when_refused(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"x": 1})
    with pytest.raises(RecordError):
        write_json(path, {"x": object()})
    assert json.loads(path.read_text()) == {"x": 1}
    assert listing(tmp_path) == ["a.json"]


def test_an_interrupted_replacement_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    write_json(path, {"x": 1})

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_json(path, {"x": 2})
    assert json.loads(path.read_text()) == {"x": 1}
    assert listing(tmp_path) == ["a.json"]


# --- the life of a run --------------------------------------------------------------------------


def test_create_writes_run_json_at_once(tmp_path):
    make(tmp_path)
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert run["schema_version"] == records.SCHEMA_VERSION
    assert (run["run_id"], run["kind"], run["config"]) == ("run", "train", {"lr": 3e-4})
    assert (run["seed"], run["status"], run["ended"]) == ([0, 1], "running", None)
    assert run["packages"]["numpy"] == np.__version__
    assert set(run["machine"]) == {
        "python",
        "platform",
        "processor",
        "cores",
        "memory_gb",
        "accelerator",
    }
    assert run["argv"] == sys.argv


def test_create_without_a_folder_names_it_by_kind_and_time(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first, second = (RunWriter.create("train", {}, 0) for _ in range(2))
    assert first.dir.parent == Path("outputs") and first.dir.name.startswith("train-")
    assert first.dir != second.dir


def test_finish_writes_summary_and_status(tmp_path):
    with make(tmp_path) as run:
        run.finish({"regret_pct": 3.25, "unknown": float("nan")})
    record = load(run.dir)
    assert record.summary == {"regret_pct": 3.25, "unknown": None}
    assert record.run["status"] == "finished" and record.run["ended"] is not None


@pytest.mark.parametrize(
    ("error", "status"), [(RuntimeError, "failed"), (KeyboardInterrupt, "interrupted")]
)
def test_an_exception_marks_the_run_and_passes(tmp_path, error, status):
    with pytest.raises(error), make(tmp_path) as run:
        run.append("metrics", {"update": 0})
        raise error
    record = load(run.dir)
    assert record.run["status"] == status
    assert record.summary == {}
    assert record.tables() == ["metrics"]


def test_a_status_given_to_finish_stays_and_a_block_without_finish_is_incomplete(tmp_path):
    with make(tmp_path) as run:
        run.finish({}, status="interrupted")
    assert load(run.dir).run["status"] == "interrupted"
    with make(tmp_path, out=tmp_path / "other") as run:
        pass
    assert load(run.dir).run["status"] == "incomplete"


def test_finish_refuses_an_unknown_status(tmp_path):
    with make(tmp_path) as run, pytest.raises(RecordError, match="allowed are running, finished"):
        run.finish({}, status="done")
    assert listing(run.dir) == ["run.json"]


def test_create_refuses_what_is_in_the_way_and_changes_nothing(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(RecordError, match="is not empty"):
        make(tmp_path)
    with pytest.raises(RecordError, match="not a run folder"):
        make(tmp_path, resume=True)
    assert listing(folder) == ["notes.txt"]
    with pytest.raises(RecordError, match="is a file"):
        make(tmp_path, out=folder / "notes.txt")


def test_create_leaves_no_folder_when_the_config_cannot_be_stored(tmp_path):
    with pytest.raises(RecordError, match=r"key config\.x"):
        make(tmp_path, config={"x": object()})
    assert listing(tmp_path) == []


def test_create_refuses_a_bad_kind(tmp_path):
    with pytest.raises(RecordError, match="kind"):
        make(tmp_path, kind="../train")


def test_resume_keeps_the_beginning_and_notes_the_resumption(tmp_path):
    with make(tmp_path) as run:
        run.finish({"a": 0}, status="interrupted")
    before = load(run.dir).run
    with make(tmp_path, resume=True) as run:
        assert load(run.dir).run["status"] == "running"
        assert load(run.dir).summary == {}
        run.finish({"a": 1})
    after = load(run.dir).run
    assert after["started"] == before["started"]
    assert len(after["resumed"]) == 1
    with pytest.raises(RecordError, match="kind is 'train'; allowed is 'bench'"):
        make(tmp_path, kind="bench", resume=True)


def test_figures_folder_is_made_on_first_use(tmp_path):
    run = make(tmp_path)
    assert listing(run.dir) == ["run.json"]
    assert run.figures.is_dir() and run.figures == run.dir / "figures"


# --- tables -------------------------------------------------------------------------------------


def test_appended_rows_come_back_exactly_and_at_once(tmp_path):
    run = make(tmp_path)
    run.append("metrics", {"update": 0, "loss": 0.1 + 0.2, "done": False})
    rows = [
        {"loss": np.float32(1 / 3), "update": np.int64(1), "done": np.bool_(True)},
        {"update": 2, "loss": float("nan"), "done": None},
    ]
    run.append("metrics", rows)
    frame = load(run.dir).table("metrics")
    assert list(frame.columns) == ["update", "loss", "done"]
    assert frame["update"].tolist() == [0, 1, 2]
    assert frame["loss"].tolist()[:2] == [0.1 + 0.2, float(np.float32(1 / 3))]
    assert frame["loss"].isna().tolist() == [False, False, True]
    assert frame["done"].tolist()[:2] == [0, 1]


def test_append_refuses_other_columns_and_writes_nothing_of_that_call(tmp_path):
    run = make(tmp_path)
    run.append("metrics", {"a": 1, "b": 2})
    with pytest.raises(RecordError, match=r"metrics\.csv.*\['b', 'c'\].*allowed are \['a', 'b'\]"):
        run.append("metrics", [{"a": 3, "b": 4}, {"a": 5, "c": 6}])
    assert len(load(run.dir).table("metrics")) == 1


@pytest.mark.parametrize("rows", [[], ()])
def test_append_of_nothing_makes_no_file(tmp_path, rows):
    run = make(tmp_path)
    run.append("metrics", rows)
    assert load(run.dir).tables() == []


@pytest.mark.parametrize("name", ["../metrics", "Metrics", "", "a.b"])
def test_table_names_cannot_leave_the_folder(tmp_path, name):
    with pytest.raises(RecordError, match="table"):
        make(tmp_path).append(name, {"a": 1})


def test_text_with_separators_and_names_that_look_like_missing_values_survive(tmp_path):
    run = make(tmp_path)
    row = {"scheduler": "NA", "src": "1", "plan": 'ohio>"va", x | oregon', "x": 1.5}
    run.append("timeline", row)
    assert load(run.dir).table("timeline").iloc[0].to_dict() == row


def test_write_table_replaces_and_append_goes_on_from_it(tmp_path):
    run = make(tmp_path)
    run.append("scenarios", {"old": 1})
    run.write_table("scenarios", pd.DataFrame({"x": [1.5, np.nan], "flag": [True, False]}))
    run.append("scenarios", {"x": 2.0, "flag": True})
    frame = load(run.dir).table("scenarios")
    assert frame["flag"].tolist() == [1, 0, 1]
    np.testing.assert_array_equal(frame["x"], [1.5, np.nan, 2.0])
    assert listing(run.dir) == ["run.json", "scenarios.csv"]


def test_truncate_keeps_earlier_rows_to_the_letter_and_resume_repeats_none(tmp_path):
    with make(tmp_path) as run:
        run.append("metrics", [{"update": i, "loss": i / 3} for i in range(4)])
        run.finish({}, status="interrupted")
    path = run.dir / "metrics.csv"
    whole = path.read_text()
    with make(tmp_path, resume=True) as run:
        run.truncate("metrics", "update", 2)
        assert path.read_text() == "".join(whole.splitlines(keepends=True)[:3])
        run.append("metrics", [{"update": i, "loss": i / 3} for i in range(2, 4)])
    assert path.read_text() == whole


def test_truncate_without_a_table_does_nothing_and_names_a_missing_column(tmp_path):
    run = make(tmp_path)
    run.truncate("metrics", "update", 2)
    assert listing(run.dir) == ["run.json"]
    run.append("metrics", {"step": "first"})
    with pytest.raises(RecordError, match=r"metrics\.csv: no column 'update'"):
        run.truncate("metrics", "update", 2)
    with pytest.raises(RecordError, match=r"column 'step' holds a cell that is no number"):
        run.truncate("metrics", "step", 2)


@pytest.mark.parametrize("torn", ["1,0.", "upd"])
def test_a_line_torn_by_a_killed_process_is_dropped_on_resume(tmp_path, torn):
    with make(tmp_path) as run:
        if torn[0] == "1":
            run.append("metrics", {"update": 0, "loss": 0.5})
    with open(run.dir / "metrics.csv", "a") as file:
        file.write(torn)
    with make(tmp_path, resume=True) as run:
        run.append("metrics", {"update": 1, "loss": 0.25})
    assert load(run.dir).table("metrics")["loss"].tolist()[-1] == 0.25
    assert len(load(run.dir).table("metrics")) == 1 + (torn[0] == "1")


# --- reading ------------------------------------------------------------------------------------


def test_load_refuses_what_is_no_run_folder(tmp_path):
    with pytest.raises(RecordError, match=r"not a run folder \(no run\.json\)"):
        load(tmp_path)


def test_load_refuses_another_schema_version_broken_json_and_missing_keys(tmp_path):
    run = make(tmp_path)
    path = run.dir / "run.json"
    good = json.loads(path.read_text())
    path.write_text(json.dumps(good | {"schema_version": 99}))
    with pytest.raises(RecordError, match=r"run\.json: schema_version is 99; allowed is 1"):
        load(run.dir)
    path.write_text(json.dumps({k: v for k, v in good.items() if k != "kind"}))
    with pytest.raises(RecordError, match=r"run\.json: lacks the keys \['kind'\]"):
        load(run.dir)
    path.write_text('{"run_id": ')
    with pytest.raises(RecordError, match=r"run\.json: not valid JSON"):
        load(run.dir)
    path.write_text(json.dumps(good))
    (run.dir / "summary.json").write_text("[1]")
    with pytest.raises(RecordError, match=r"summary\.json: holds a list"):
        load(run.dir)


def test_table_names_the_file_that_is_absent_empty_or_lacks_a_column(tmp_path):
    run = make(tmp_path)
    run.append("metrics", {"update": 0})
    record = load(run.dir)
    with pytest.raises(RecordError, match=r"eval\.csv: no such table; this run has \['metrics'\]"):
        record.table("eval")
    with pytest.raises(RecordError, match=r"metrics\.csv: lacks the columns \['seed'\]"):
        record.table("metrics", columns=["update", "seed"])
    (run.dir / "links.csv").write_text("")
    with pytest.raises(RecordError, match=r"links\.csv: not a readable CSV table") as caught:
        record.table("links")
    assert "\n" not in str(caught.value)


# --- where a run came from ----------------------------------------------------------------------


def test_git_state_is_that_of_the_repository_that_tracks_the_file(tmp_path):
    source = tmp_path / "code.py"
    source.write_text("x = 1\n")
    assert provenance.git_state(source) == (None, None)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e@example.org"]
    subprocess.run([*git, "init", "-q"], check=True)
    assert provenance.git_state(source) == (None, None)  # inside a repository, yet not part of it
    subprocess.run([*git, "add", "code.py"], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "first"], check=True)
    commit, dirty = provenance.git_state(source)
    assert len(commit) == 40 and dirty is False
    source.write_text("x = 2\n")
    assert provenance.git_state(source) == (commit, True)


def test_records_needs_neither_jax_nor_torch_and_loads_pandas_only_for_tables():
    code = "import sys, analysis.records; print({'jax', 'torch', 'pandas'} & set(sys.modules))"
    root = Path(records.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=True
    )
    assert done.stdout.strip() == "set()"


# --- a full disk, and two writers ---------------------------------------------------------------

FULL_DISK = """
import resource, sys
from pathlib import Path
from analysis.records import RunWriter

folder = Path(sys.argv[1])
try:
    with RunWriter.create("train", {"epochs": 3}, 0, folder) as run:
        run.append("metrics", [{"update": 0}])
        # From here on no file grows beyond what run.json takes, as on a disk without space.
        most = (folder / "run.json").stat().st_size + 5
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
        for update in range(1, 10_000):
            run.append("metrics", [{"update": update}])
except OSError as error:
    print(error.strerror)
"""


def test_a_run_that_ends_on_a_full_disk_is_marked_as_failed_and_holds_whole_rows(tmp_path):
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.stdout.strip() == "File too large" and not done.stderr
    record = load(tmp_path / "run")
    assert record.run["status"] == "failed" and record.run["ended"]
    table = (tmp_path / "run" / "metrics.csv").read_text()
    assert table.endswith("\n")  # nothing is torn
    updates = record.table("metrics")["update"]
    assert len(updates) > 100 and list(updates) == list(range(len(updates)))
    assert sorted(p.name for p in record.dir.iterdir()) == ["metrics.csv", "run.json"]


def test_of_two_writers_in_one_folder_one_wins(tmp_path):
    """Both have passed the check before either begins; resuming what still runs is refused too."""
    folder = tmp_path / "run"
    for _ in range(2):
        RunWriter.check("train", folder)
    with RunWriter.create("train", {}, 0, folder) as run:
        with pytest.raises(RecordError, match="another process is writing there"):
            RunWriter.create("train", {}, 0, folder, resume=True)
        run.finish({"winner": 1})
    with RunWriter.create("train", {}, 0, folder, resume=True) as run:
        run.finish({"winner": 2})
    assert load(folder).summary == {"winner": 2}


RACE = """
import sys, time
from analysis import records
from analysis.records import RecordError, RunWriter

seen = records._folder_state
def slow(*args):
    state = seen(*args)
    time.sleep(0.5)  # both have looked before either writes
    return state
records._folder_state = slow
try:
    with RunWriter.create("train", {}, 0, sys.argv[1]) as run:
        run.finish({})
except RecordError as error:
    sys.exit(f"error: {error}")
"""


def test_of_two_processes_that_start_together_exactly_one_wins(tmp_path):
    command = [sys.executable, "-c", RACE, str(tmp_path / "run")]
    root = Path(__file__).parents[2]
    both = [
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=root) for _ in range(2)
    ]
    errors = [process.communicate()[1] for process in both]
    assert sorted(process.returncode for process in both) == [0, 1], errors
    assert load(tmp_path / "run").run["status"] == "finished"
    assert len([line for line in "".join(errors).splitlines() if line]) == 1, errors
