"""`hippo watch` from its settings to the end of the measurements.

Lines on standard output, told apart by their first key:

    ready     what is watched, and the plan in force at the start
    decision  its number; then as `hippo respond` answers (plan, switch, step_s, gain_pct, switch_s,
              switch_gb, switch_usd, reason, decision_ms, fields), `time` of the last measurement if it
              had one, `because`: what is measured otherwise than when the plan in force was
              decided, and
              `latency_ms` from having read the measurement to the line
    stale     links that were silent for longer than `stale_s`, since their last measurement or, where
              there was none, since `ready`: their last values hold
    fresh     stale links that were measured again
    applied   the number of the decision that the apply command put into force, its exit status, seconds
    end       lines read, lines refused, decisions, and `within_ms`: in what time after the measurement
              half of the answers of the scheduler were there, 99 %, and all, told or not
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from experiments.common import check_output
from experiments.respond import Responder, make_responder
from experiments.watch.config import WatchConfig
from experiments.watch.hook import Hook
from experiments.watch.metrics import Metrics, MetricsServer
from experiments.watch.sources import Folder, Listener, Source, Stream
from experiments.watch.state import read_state
from experiments.watch.watcher import Watcher

WAIT_S, WAIT_FOR_HOOK_S = 0.5, 0.02  # for something to come in


def watch(config: WatchConfig, stdin: TextIO, stdout: TextIO) -> None:
    """Follow the measurements to their end. Raises InputError."""

    def say(line: dict[str, Any]) -> None:
        stdout.write(json.dumps(line) + "\n")
        stdout.flush()

    for name in ("state", "plan_file"):
        if getattr(config, name) is not None:
            check_output(getattr(config, name), f"--{name}")
    if config.state is not None:
        read_state(Path(config.state), {})  # one that is damaged is refused before the search
    with contextlib.ExitStack() as opened:
        hook = opened.enter_context(_hook(config))
        source, metrics, server = _source(config, stdin), Metrics(), None
        opened.callback(source.close)
        if config.metrics is not None:
            server = MetricsServer(metrics, config.metrics)
            opened.callback(server.close)
        watcher = Watcher(make_responder(config.service), config, say, hook, metrics)
        source.position = watcher.position
        with _told_to_end() as told:
            say(_greeting(watcher, source, server))
            _note_of_one_domain(watcher.responder)
            watcher.save()
            _follow(watcher, source, config.seconds, told)
    say(watcher.summary())


@contextlib.contextmanager
def _told_to_end() -> Iterator[threading.Event]:
    """Set by SIGTERM, by which services are stopped: it is as if the input ended."""
    told = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield told
        return
    before = signal.signal(signal.SIGTERM, lambda *_: told.set())
    try:
        yield told
    finally:
        signal.signal(signal.SIGTERM, before)


def _note_of_one_domain(responder: Responder) -> None:
    """Who watches links of which the plan uses none will wait for a decision in vain."""
    if int((np.asarray(responder.plan.group) >= 0).sum()) == 1 < len(responder.spec.domains):
        line = (
            "note: the plan in force uses no link; --allow any has more plans over several domains"
        )
        print(line, file=sys.stderr, flush=True)


def _follow(watcher: Watcher, source: Source, seconds: float | None, told: threading.Event) -> None:
    """Until the source or the time ends, or the process is told to; a command that runs then is waited
    for."""
    ends = np.inf if seconds is None else time.monotonic() + seconds
    while time.monotonic() < ends and not told.is_set():
        wait_s = WAIT_FOR_HOOK_S if watcher.applying else WAIT_S
        batch = source.read(max(0.0, min(wait_s, ends - time.monotonic())))
        if batch is None:
            break
        watcher.position = source.position
        watcher.step(batch)
    while watcher.applying:
        time.sleep(WAIT_FOR_HOOK_S)
        watcher.step([])


@contextlib.contextmanager
def _hook(config: WatchConfig) -> Iterator[Hook | None]:
    """The apply command, with a folder for its plan file where none is given."""
    words = config.command
    if words is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="hippo-watch-") as folder:
        path = Path(config.plan_file or Path(folder) / "plan.json").resolve()
        yield Hook(words, path, config.apply_timeout_s)


def _source(config: WatchConfig, stdin: TextIO) -> Source:
    """Opened before the search, which takes a while: what cannot be is refused at once."""
    if config.folder is not None:
        return Folder(config.folder)
    return Stream(stdin) if config.listen is None else Listener(config.listen)


def _greeting(watcher: Watcher, source: Source, server: MetricsServer | None) -> dict[str, Any]:
    listens = source.port if isinstance(source, Listener) else None
    return {
        "ready": True,
        "domains": watcher.responder.spec.domains,
        "restored": watcher.restored,
        "listen": listens,
        "metrics": None if server is None else f"http://127.0.0.1:{server.port}/metrics",
        **watcher.responder.in_force,
    }
