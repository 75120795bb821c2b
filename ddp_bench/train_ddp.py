"""Entry point: torchrun --nproc_per_node=4 -m ddp_bench.train_ddp --mode dynamic ...

Settings are checked before torch is imported, so that bad input is answered at once: one line,
exit status 2, nothing written.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
from pathlib import Path
from zipfile import is_zipfile

from analysis.records import RecordError, RunWriter
from ddp_bench.config import (
    Settings,
    check_feasible,
    check_model,
    check_ranks,
    parse_caps,
    parse_settings,
)
from ddp_bench.data import load_corpus
from ddp_bench.errors import ConfigError, RankLost

log = logging.getLogger("ddp_bench")


LONGEST_LINE = 480  # characters of a refusal; what a user gave may be of any length


def _line(text: str) -> str:
    """`text` as one printable line of at most LONGEST_LINE bytes, its middle left out if need be."""
    plain = "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))
    line = f"ddp_bench: {plain}".encode()
    if len(line) > LONGEST_LINE:
        half = (LONGEST_LINE - 5) // 2
        line = line[:half] + b" ... " + line[-half:]
    return line.decode(errors="ignore")


def _say(text: str) -> None:
    """One line on standard error, on a line of its own: a progress bar may stand on this one."""
    print(f"\n{_line(text)}", file=sys.stderr, flush=True)


def _complain(text: str) -> None:
    """One line on standard error where all ranks would say the same: from rank 0."""
    if os.environ.get("RANK", "0") == "0":
        print(_line(text), file=sys.stderr, flush=True)


def _limit_threads() -> None:
    """One compute thread per rank: ranks share the machine's cores."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


def _log_to(folder: Path, rank: int) -> None:
    """Every rank to its own file, rank 0 also to the terminal, but for tracebacks."""
    log.setLevel(logging.INFO)
    handlers: list[logging.Handler] = [logging.FileHandler(folder / f"log_rank{rank}.txt")]
    if rank == 0:
        terminal = logging.StreamHandler(sys.stderr)
        terminal.addFilter(lambda record: not record.exc_info)
        handlers.append(terminal)
    for handler in handlers:
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
        log.addHandler(handler)
    log.propagate = False


def _resuming(settings: Settings) -> tuple[str, bool]:
    """(run folder or "", whether to continue the run in it).

    A job that torchrun restarted continues from its own checkpoint if there is one.
    """
    if settings.resume:
        return settings.resume, True
    restarted = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    folder = settings.output_dir
    return folder, restarted and bool(folder) and (Path(folder) / "checkpoint.pt").is_file()


def _run_folder(settings: Settings) -> tuple[str, bool]:
    """`_resuming`, once it is certain that a run may be written there.

    Raises:
        ConfigError: when it may not.
    """
    folder, resume = _resuming(settings)
    restarted = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    if restarted and folder and not resume and Path(folder).is_dir():
        shutil.rmtree(folder)  # this same job's first attempt, which left no checkpoint
    try:
        RunWriter.check("ddp", folder or None, resume)
    except RecordError as error:
        raise ConfigError(str(error)) from None
    return folder, resume


def _train(settings: Settings) -> None:
    """The run on this rank, from joining the group to leaving it.

    Everything that can be wrong with the input is found before the run folder is made.
    """
    import torch

    from ddp_bench.ranks import EXPLAINED, LOST, comm
    from ddp_bench.training import Recorder, Trainer, settings_record

    torch.set_num_threads(1)
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    rank = int(os.environ.get("RANK", "0"))
    check_ranks(settings, ranks)
    check_feasible(settings, ranks, parse_caps(settings.b_max, ranks))
    device = comm.choose_device()
    control = comm.start(comm.choose_backend(settings.backend, ranks), settings.timeout_s)
    if ranks > 1:
        control.roll.on_terminate(_say)
    writer = None
    try:
        folder, resume = control.from_first(lambda: _run_folder(settings))
        trainer = Trainer(settings, control, device)
        first = trainer.restore(Path(folder)) if resume else None
        if rank == 0:
            record = settings_record(settings, ranks)
            writer = RunWriter.create("ddp", record, settings.seed, folder or None, resume)
        folder = Path(control.share(writer and str(writer.dir)))
        _log_to(folder, rank)
        summary = trainer.run(Recorder(folder, rank, settings.tensorboard), writer, first)
        trainer.finish(summary, writer)
    except ConfigError:
        raise
    except Exception as error:
        log.exception("failed")
        if writer is not None:
            writer.__exit__(type(error), error, None)
        if _is_broken_message(error):
            control.roll.report(LOST, _say, str(error).partition("\n")[0])
            raise RankLost from error
        raise
    finally:
        control.roll.answer(EXPLAINED)
    if rank == 0:
        print(folder, flush=True)
    comm.stop(control)


def _is_broken_message(error: Exception) -> bool:
    """Whether `error` is the consequence of another rank's end, not its cause."""
    import torch.distributed as dist

    text = str(error).lower()
    return isinstance(error, dist.DistError) or "gloo" in text or "timed out" in text


def _run(settings: Settings) -> int:
    _limit_threads()
    try:
        _train(settings)
    except ConfigError as error:
        _complain(str(error))
        return 2
    except KeyboardInterrupt:
        return 130
    except RankLost:
        return 1
    except Exception as error:
        _say(f"rank {os.environ.get('RANK', '0')}: {type(error).__name__}: {error}")
        return 1
    return 0


def _check(settings: Settings, ranks: int) -> None:
    """Everything that can be wrong before processes start; ConfigError says what."""
    check_ranks(settings, ranks)
    check_feasible(settings, ranks, parse_caps(settings.b_max, ranks))
    check_model(settings.model)
    if settings.dataset not in ("sst2", "synthetic"):
        load_corpus(settings)
    folder, resume = _run_folder(settings)
    checkpoint = Path(folder) / "checkpoint.pt"
    # A checkpoint is a zip archive, whose directory comes last: one that was cut off has none.
    if resume and not (checkpoint.is_file() and is_zipfile(checkpoint)):
        raise ConfigError(f"{checkpoint}: missing or damaged; allowed is a whole checkpoint")


def main(argv: list[str] | None = None) -> int:
    """Parse, check, train; the exit status."""
    try:
        settings, check_for = parse_settings(argv)
        if check_for:
            _check(settings, check_for)
    except ConfigError as error:
        _complain(str(error))
        return 2
    return 0 if check_for else _run(settings)


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    if status:
        os._exit(status)  # a broken process group must not hold up the end of a failed rank
