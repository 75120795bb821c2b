"""Documentation: long commands of the pages are begun, word for word, with --dry-run: what they name is
there, read and accepted, and the work is counted.

With those that `test_docs_walk.py` runs in the small, every command of the pages runs; LEFT says of the
others who runs them.
"""

import ast
import shlex
import shutil
from pathlib import Path

import pytest
from helpers.docs_pages import ROOMS, ROOT, blocks, commands, of_format

import agents.hi_ppo
from experiments.cli import main

DRY = ("evaluate", "foresight", "kpi", "plan", "train")
# The beginning of a command -> why it is not begun here.
LEFT = {
    "hippo wan": "changes the network of the machine: tests/ddp_bench/wan runs it where it may",
    "hippo evaluate --resume": "of a run that was interrupted: tests/experiments/evaluate",
    "hippo train --resume": "of a run that was interrupted: tests/experiments/train",
    "hippo kpi --resume": "of a run that was interrupted: tests/experiments/kpi",
    "hippo sweep --resume": "of a run that was interrupted: tests/experiments/sweep",
    "hippo report outputs/sim-to-real": "of the same: tests/experiments/wan",
    "hippo sweep --config experiments/configs/sweep.yaml --executor ray": "where Ray is installed: "
    "tests/experiments/sweep",
    "hippo fidelity --orders": "of whole tables: tests/experiments/test_fidelity_command.py",
    "hippo sweep --jobs": "of many jobs: tests/experiments/sweep/test_jobs.py",
    "hippo train --processes": "of two machines: tests/experiments/train/test_processes.py",
}
LINES = {
    " ".join(command.words): command.where for command in commands() if command.words[0] == "hippo"
}


def walked():
    """The commands that the walk runs: its strings, and the rooms of the toolbox."""
    tree = ast.parse((Path(__file__).parent / "test_docs_walk.py").read_text())
    constants = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return {x for x in constants if isinstance(x, str)} | {f"hippo {r} --quick" for r in ROOMS}


def left(line):
    return any(line.startswith(beginning) for beginning in LEFT)


BEGUN = [
    line for line in LINES if line.split()[1] in DRY and line not in walked() and not left(line)
]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A folder with what the pages have written before, or ask the reader to have."""
    folder = tmp_path_factory.mktemp("pages")
    readme = next(b for b in blocks("yaml") if b.page == ROOT / "README.md")
    texts = {
        **dict.fromkeys(("three-sites.yaml", "A.yaml", "B.yaml"), readme.text),
        **dict.fromkeys(("four-regions.yaml", "eight-regions.yaml"), readme.text),
        **dict.fromkeys(
            ("four-regions-trace.csv", "eight-regions-trace.csv"), of_format("Trace", "csv")[0]
        ),
        "my-links.yaml": of_format("Link processes", "yaml")[0],
        "my-scenes.yaml": "scenes: {steady: {jitter: none}}\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    (folder / "experiments").symlink_to(ROOT / "experiments")
    (folder / "outputs").mkdir()
    shipped = Path(agents.hi_ppo.__file__).parent / "hi_ppo.msgpack"
    for name in ("my-policy", "whole", "no-graph", "drift-alone"):
        shutil.copy(shipped, folder / "outputs" / name)
    assert main(shlex.split(f"jobs --count 16 --out {folder}/jobs.csv")) == 0
    return folder


@pytest.mark.parametrize("line", BEGUN)
def test_a_long_command_of_a_page_can_begin(written, tmp_path, monkeypatch, capsys, line):
    monkeypatch.chdir(tmp_path)
    _, *words = shlex.split(line)
    for path in written.iterdir():
        if not (words[0] == "train" and path.name == "outputs"):  # it writes the policy
            (tmp_path / path.name).symlink_to(path)
    before = set(tmp_path.iterdir())
    assert main([*words, "--dry-run"]) == 0, f"{LINES[line]}: {line}"
    assert capsys.readouterr().out or "--json" in words
    assert {path.suffix for path in set(tmp_path.iterdir()) - before} <= {".json"}


def test_every_command_of_the_pages_runs_somewhere():
    known = walked() | set(BEGUN)
    assert not [line for line in LINES if line not in known and not left(line)]


def test_what_is_left_out_is_on_a_page():
    assert all(any(x.startswith(beginning) for x in LINES) for beginning in LEFT)
