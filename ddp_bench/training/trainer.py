"""A run: set-up on all ranks, the step loop over one or several arms, evaluation, records."""

from __future__ import annotations

import logging
import time
import zlib
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from analysis.records import RunWriter, write_json
from ddp_bench.arms import make_arm
from ddp_bench.config import MAY_CHANGE, Settings, check_feasible, parse_arm, parse_caps
from ddp_bench.data import (
    Collator,
    PrefixDigest,
    encode,
    load_corpus,
    make_tokenizer,
    resolve_model,
)
from ddp_bench.errors import ConfigError
from ddp_bench.ranks import Control, Drill, comm
from ddp_bench.training import capacity, checkpoint
from ddp_bench.training.check import check_gradients
from ddp_bench.training.evaluate import evaluate, verify_stream
from ddp_bench.training.metrics import Recorder, summarise
from ddp_bench.training.model import Classifier, build_classifier
from ddp_bench.training.runner import Precision, Runner

log = logging.getLogger("ddp_bench")


class Trainer:
    """Everything one rank needs; `run` trains all arms step by step on the same stream."""

    def __init__(self, settings: Settings, control: Control, device: torch.device) -> None:
        """Set up on all ranks; nothing is written.

        Raises:
            ConfigError: on every rank, when data, model or memory do not do for the settings.
        """
        self.settings, self.control, self.device = settings, control, device
        self.precision = Precision.detect(settings.amp, device)
        self.notes: list[str] = []
        self._load_data()
        self.caps = self._caps()
        check_feasible(settings, control.ranks, self.caps)
        rate = settings.learning_rate or (5e-4 if self.model_name == "small" else 5e-5)
        drill = Drill(settings.inject, control.rank)
        self.runners: dict[str, Runner] = {}
        for spec in (parse_arm(text, settings) for text in settings.arm_specs()):
            arm = make_arm(spec, settings, self.train.lengths, control, self.caps)
            self.runners[spec.label] = Runner(
                arm,
                self.new_model(),
                settings,
                self.train,
                self.collate,
                control,
                self.precision,
                rate,
                drill.fire,
            )
        self.prefixes = {label: PrefixDigest(r.arm.stream) for label, r in self.runners.items()}
        self.labels = list(self.runners)
        # Dropout differs between ranks, data order and weights do not.
        torch.manual_seed(settings.seed * 1000 + control.rank + 1)

    def _load_data(self) -> None:
        """Rank 0 reads and tokenises; everybody gets the same arrays and model name."""
        loaded = self.control.from_first(self._read)
        self.train, self.held_out, self.tokenizer, self.model_name, self.source, notes = loaded
        self.notes += notes
        self.collate = Collator(self.tokenizer, self.settings.pad_to_multiple_of)

    def _read(self) -> tuple:
        corpus = load_corpus(self.settings)
        name, note = resolve_model(self.settings)
        tokenizer = make_tokenizer(name, corpus)
        longest = self.settings.max_length
        train = encode(corpus.train_text, corpus.train_label, tokenizer, longest)
        held = encode(corpus.eval_text, corpus.eval_label, tokenizer, longest)
        cut = sum(int((part.lengths >= longest).sum()) for part in (train, held))
        notes = [note, corpus.note, f"{cut} sentence(s) cut at {longest} tokens" if cut else ""]
        return train, held, tokenizer, name, corpus.source, [n for n in notes if n]

    def new_model(self) -> Classifier:
        """A model with the run's initial weights, on the device."""
        model = build_classifier(
            self.model_name, len(self.tokenizer), self.settings.max_length, self.settings.seed
        )
        return model.to(self.device).train()

    def _caps(self) -> list[int] | None:
        """b_max per rank: as given, or probed on GPUs; None where memory sets no bound."""
        given = parse_caps(self.settings.b_max, self.control.ranks)
        if given is not None or self.device.type != "cuda":
            return given
        probed = 0
        torch.zeros(1, device=self.device)  # what the library itself needs is taken on all ranks
        self.control.barrier()
        # One after another: ranks that share a GPU must not probe its memory at the same time.
        for rank in range(self.control.ranks):
            if rank == self.control.rank:
                probed = capacity.probe(
                    self.new_model(),
                    self.settings.max_length,
                    len(self.tokenizer),
                    self.settings.global_batch,
                    self.settings.capacity_margin,
                    self.device,
                    self.precision.autocast(),
                    len(self.settings.arm_specs()),
                    comm.ranks_per_device(),
                )
            self.control.barrier()
        mine = np.zeros(self.control.ranks, np.int64)
        mine[self.control.rank] = probed
        return self.control.post_sum(mine).wait().tolist()

    def describe(self) -> dict:
        """What is being run, for the log and the records."""
        lengths = self.train.lengths
        model = self.runners[self.labels[0]].model
        return {
            "model": self.model_name,
            "parameters": sum(p.numel() for p in model.parameters()),
            "data_source": self.source,
            "train_rows": len(self.train),
            "held_out_rows": len(self.held_out),
            "mean_length": float(lengths.mean()),
            "p95_length": float(np.percentile(lengths, 95)),
            "max_length_seen": int(lengths.max()),
            "ranks": self.control.ranks,
            "backend": torch.distributed.get_backend(),
            "device": str(self.device),
            "precision": self.precision.name,
            "b_max": self.caps,
            "notes": self.notes,
        }

    def run(self, recorder: Recorder, writer: RunWriter | None, resumed_at: int | None) -> dict:
        """Train to the end; returns the summary (on every rank).

        Args:
            writer: of the run folder on rank 0, None elsewhere.
            resumed_at: the step that `restore` gave, None for a new run.
        """
        self._say_what_runs()
        summary = {"setup": self.describe(), "gradient_check": None}
        if self.settings.check_gradients:
            devices = [self.device] if self.device.type == "cuda" else []
            with torch.random.fork_rng(devices):  # dropout is the same with and without the check
                summary["gradient_check"] = check_gradients(self.runners, self.new_model)
        summary["resumed_at"] = resumed_at
        first = resumed_at or 0
        if resumed_at is not None:
            self._forget_from(first, recorder, writer)
        begin = time.perf_counter()
        steps = range(first, self.settings.steps)
        for step in tqdm(steps, disable=self.control.rank != 0, desc="steps", mininterval=2):
            self._one_step(step, recorder)
            self._after_step(step + 1, recorder, writer)
        summary["wall_s"] = time.perf_counter() - begin
        recorder.flush()
        self.control.barrier()
        return summary

    def _one_step(self, step: int, recorder: Recorder) -> None:
        """One step of every arm, in an order that rotates, so that no arm is always first."""
        turn = step % len(self.labels)
        for label in self.labels[turn:] + self.labels[:turn]:
            recorder.add(self.runners[label].step(step))

    def _after_step(self, done: int, recorder: Recorder, writer: RunWriter | None) -> None:
        settings = self.settings
        last = done == settings.steps
        if last or (settings.eval_every and done % settings.eval_every == 0):
            self._evaluate(done, recorder, writer, last)
        if settings.checkpoint_every and (last or done % settings.checkpoint_every == 0):
            recorder.flush()
            folder = writer and writer.dir
            checkpoint.save(folder, done, self.runners, self.control, self._key())

    def _evaluate(
        self, done: int, recorder: Recorder, writer: RunWriter | None, last: bool
    ) -> None:
        for label, runner in self.runners.items():
            result, hits = evaluate(runner, self.held_out, self.control)
            stream = verify_stream(runner.arm, self.control, self.prefixes[label])
            if not stream["stream_ok"]:
                raise RuntimeError(f"step {done}: arm {label} lost or repeated samples: {stream}")
            if writer is None:
                continue
            row = {"step": done, "arm": label, **result, **stream}
            writer.append("eval", row)
            recorder.scalars(label, done, {"eval/accuracy": result["accuracy"]})
            log.info("step %d %s: accuracy %.3f", done, label, result["accuracy"])
            if last:
                rows = [{"arm": label, "row": i, "correct": int(h)} for i, h in enumerate(hits)]
                writer.append("eval_rows", rows)

    def restore(self, folder: Path) -> int:
        """Go back to the checkpoint in `folder`; returns the next step to train.

        Raises:
            ConfigError: on every rank, when it is damaged or of another run.
        """
        first, problem = 0, None
        try:
            first = checkpoint.load(folder, self.runners, self.control, self._key())
        except ConfigError as error:
            problem = error
        self.control.agree(problem)
        return first

    def _key(self) -> dict:
        """What a checkpoint must agree in: settings, ranks, and the samples and model in use."""
        settings = settings_record(self.settings, self.control.ranks)
        content = zlib.crc32(self.train.tokens.tobytes() + self.train.labels.tobytes())
        used = {
            "training data": f"{self.source}, {len(self.train)} rows, checksum {content:08x}",
            "model in use": self.model_name,
            "precision in use": self.precision.name,
        }
        return {name: value for name, value in settings.items() if name not in MAY_CHANGE} | used

    def _forget_from(self, first: int, recorder: Recorder, writer: RunWriter | None) -> None:
        """Drop what was recorded after the checkpoint."""
        recorder.truncate(first)
        if writer is None:
            return
        writer.truncate("eval", "step", first + 1)
        if first < self.settings.steps:
            (writer.dir / "eval_rows.csv").unlink(missing_ok=True)
        log.info("resumed at step %d", first)

    def _say_what_runs(self) -> None:
        if self.control.rank:
            return
        what = self.describe()
        for note in what["notes"]:
            log.warning("NOTE: %s", note)
        log.info(
            "model %s (%.1fM parameters), data %s (%d rows), %d ranks, %s on %s, arms: %s",
            what["model"],
            what["parameters"] / 1e6,
            what["data_source"],
            what["train_rows"],
            what["ranks"],
            what["backend"],
            what["device"],
            ", ".join(self.labels),
        )

    def finish(self, summary: dict, writer: RunWriter | None) -> None:
        """Merge the ranks' tables and write the summary (rank 0)."""
        if writer is None:
            return
        fits = {}
        for label, runner in self.runners.items():
            fit = runner.arm.fit
            fits[label] = {
                "coefficients_ms": fit.coefficients,
                "mape_pct": fit.mape_pct,
                "oom_redone": runner.redone,
                "overflow_skipped": runner.skipped,
            }
        if self.model_name == "small":
            self.tokenizer.save_pretrained(writer.dir / "tokenizer")
        counts = np.bincount(self.train.lengths)
        write_json(writer.dir / "lengths.json", {"unit": "tokens", "count": counts})
        merged = summarise(writer, self.control.ranks)
        writer.finish(summary | {"fit": fits, "arms": merged})


def settings_record(settings: Settings, ranks: int) -> dict:
    """Settings as run.json holds them."""
    return asdict(settings) | {"ranks": ranks}
