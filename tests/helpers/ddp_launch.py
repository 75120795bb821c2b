"""Jobs of several ranks under torchrun's own agent, without importing torch once more per rank.

The agent that `torchrun` starts also launches functions. Its ranks are forked here from one server
that has imported everything, so that a start takes no seconds of importing. Rendezvous, restarts,
signals to survivors and exit codes are those of `torchrun`.
"""

import multiprocessing
import os
import runpy
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
}
PRELOAD = ["torch", "transformers", "ddp_bench.training", "helpers.ddp_launch"]
LIMIT_S = 240


@dataclass(frozen=True)
class Done:
    """How a job ended: 0 or 1 as `torchrun` would, what ranks and agent wrote, its duration."""

    returncode: int
    stderr: str
    seconds: float


def run_module(module: str, arguments: tuple[str, ...]) -> None:
    """What `python -m module arguments` does, in this process."""
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _too_long(*_: object) -> None:
    raise TimeoutError(f"the job took longer than {LIMIT_S} s")


def launch(
    logs: Path, module: str, *arguments: object, ranks: int = 2, max_restarts: int = 0
) -> Done:
    """Run `module` on `ranks` ranks; their output goes to files below `logs`, which is made."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOAD)
    logs.mkdir(parents=True)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        max_restarts=max_restarts,
        start_method="forkserver",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        monitor_interval=0.05,
        logs_specs=DefaultLogsSpecs(log_dir=str(logs), redirects=Std.ALL),
    )
    begin = time.monotonic()
    code, text = 0, ""
    before = signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(LIMIT_S)
    try:
        elastic_launch(config, run_module)(module, tuple(map(str, arguments)))
    except ChildFailedError as error:
        code, text = 1, str(error)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    seconds = time.monotonic() - begin
    written = [path.read_text() for path in sorted(logs.rglob("stderr.log"))]
    return Done(code, "\n".join([*written, text]), seconds)
