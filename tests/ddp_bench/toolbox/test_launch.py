"""Functions on real ranks: what they return, and who is named when one fails."""

import os
import time

import pytest

pytest.importorskip("torch")

from helpers import toolbox_ranks

from ddp_bench.toolbox import RanksFailed, on_ranks
from ddp_bench.toolbox.launch import ROOT


@pytest.fixture(autouse=True)
def path(monkeypatch):
    """Ranks find the tests' helpers."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "tests")]))


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_every_rank_returns_its_own(ranks):
    total = sum(10 + rank for rank in range(ranks))
    assert on_ranks(toolbox_ranks.add_up, ranks, 10) == [(rank, total) for rank in range(ranks)]


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize(
    ("how", "said"), [("raise", "ValueError: three is too many"), ("kill", "ended by SIGKILL")]
)
def test_the_rank_that_failed_is_named(how, said, which):
    begin = time.monotonic()
    with pytest.raises(RanksFailed) as caught:
        on_ranks(toolbox_ranks.fail, 2, how, which)
    assert str(caught.value) == f"rank {which}: {said}"
    assert time.monotonic() - begin < 20


def test_a_silent_rank_ends_the_job_after_the_timeout():
    begin = time.monotonic()
    with pytest.raises(RanksFailed, match="rank 0 lost another rank"):
        on_ranks(toolbox_ranks.fail, 2, "stall", 1, timeout_s=2.0)
    assert time.monotonic() - begin < 60


def test_a_restarted_job_succeeds():
    assert on_ranks(toolbox_ranks.fail_once, 2, "", max_restarts=1) == [1, 1]


def test_the_environment_of_the_caller_stays(monkeypatch):
    before = dict(os.environ)
    on_ranks(toolbox_ranks.add_up, 1, 0)
    assert dict(os.environ) == before
