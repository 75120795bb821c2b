"""The TAB key: a shell starts `hippo` with the unfinished line, and reads how it may go on."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.cli import COMMANDS
from experiments.common.known import MODELS, WORLDS
from experiments.completion import REAL_TRAINING, _parser_of

ROOT = Path(__file__).parents[2]


def completed(tmp_path, line):
    """What argcomplete's shell function would be told of `line`."""
    answer = tmp_path / "answer"
    asked = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n", "COMP_LINE": line}
    asked |= {"COMP_POINT": str(len(line)), "_ARGCOMPLETE_STDOUT_FILENAME": str(answer)}
    environment = {**os.environ, **asked, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "experiments.cli"]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, timeout=60)
    assert done.returncode == 0 and not done.stdout, done.stderr
    assert list(tmp_path.iterdir()) in ([], [answer])
    return {x.strip() for x in answer.read_text().split("\n")} if answer.exists() else set()


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("hippo ev", {"evaluate"}),
        ("hippo ", set(COMMANDS)),
        ("hippo wan co", {"counters"}),
        ("hippo plan --model llama-", {m for m in MODELS if m.startswith("llama-")}),
        ("hippo train --worlds drift,he", {"drift," + w for w in WORLDS if w.startswith("he")}),
        ("hippo train --scenario.ji", {"--scenario.jitter"}),
        ("hippo report --lang", {"--language"}),
        ("hippo nothing --", set()),
        ("hippo memory --", set()),
    ],
)
def test_a_line_is_completed(tmp_path, line, wanted):
    found = completed(tmp_path, line)
    assert found == wanted if line != "hippo " else found >= wanted


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in REAL_TRAINING])
def test_every_command_shows_its_options_before_it_does_anything(name):
    options = _parser_of(COMMANDS[name][0])._option_string_actions
    assert "--help" in options
