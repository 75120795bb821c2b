"""One training run: the host loop around compiled epochs, and its records."""

from __future__ import annotations

import dataclasses
import functools
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from tqdm import tqdm

from agents.hi_ppo import (
    FILE_NAME,
    HiPPO,
    Trainer,
    check_sizes,
    load_checkpoint,
    make_tape,
    restore,
    save_checkpoint,
)
from agents.hi_ppo.exact import ExactTrainer, record
from agents.registry import find
from analysis.records import RunWriter, load
from experiments.common import note_efficiency, progress
from experiments.evaluate import Evaluator, tune
from experiments.train.config import TrainConfig, recorded
from experiments.train.processes import Unrecorded, agreed, join, own, shared
from experiments.train.start import starting_policy
from experiments.train.worlds import TrainingWorld, asked_of, training_worlds
from jaxsim.env import EnvParams
from jaxsim.files import InputError
from jaxsim.trees import take

RULES = (*("hysteresis", "smoothed_hysteresis", "shrinkage_hysteresis", "self_tuning_hysteresis"),)


class TrainingRun:
    """The host loop around compiled epochs."""

    def __init__(
        self, config: TrainConfig, mesh: Mesh | None = None, options: dict[str, bool] | None = None
    ):
        """`mesh`: of the devices of all processes that train this policy together; `options`: of the
        compiler for the program of an epoch."""
        self.config, self.options = config, options
        try:
            if config.train.algorithm == "ppo":
                check_sizes(config.train, config.scenario.horizon)
        except ValueError as error:
            raise InputError(f"train: {error}") from None
        start = None if config.resume else config.start
        started = starting_policy(start, config.train.networks, len(config.seeds))
        self.worlds = training_worlds(config)
        trainings = [world.bank(config) for world in self.worlds]
        for world in self.worlds:
            note_efficiency(world.spec)
            sizes = f"{world.info.plans_in_table} plans of {world.info.plans_scored}"
            tqdm.write(f"{world.name}: {sizes}")
        self.mesh = mesh
        self.trainer, self.evaluators = self._prepared(trainings)
        state = self.trainer.init(jnp.asarray(config.seeds, jnp.uint32))
        if started is not None:
            state = state.replace(policy=started)
        self.state = shared(state, mesh)
        self.rivals: dict[str, float] = {}  # their settings, tuned on the same worlds
        self.trained_s = 0.0  # spent in epochs, compilation included

    def _prepared(
        self, trainings: list[tuple[EnvParams, Any]]
    ) -> tuple[Trainer | ExactTrainer, list[Evaluator]]:
        """The trainer, and the held-out scenarios of every world. Those of the first are solved while
        the trainer is made: to compile one's programs leaves a core for the other's. All others come
        after, where programs may make room for new ones."""
        first, *others = self.worlds
        with ThreadPoolExecutor(1) as beside:
            solving = beside.submit(self._held_out, first)
            trainer = self._make_trainer(trainings)
        return trainer, [solving.result(), *(self._held_out(of) for of in others)]

    def _held_out(self, of: TrainingWorld) -> Evaluator:
        """The held-out scenarios of a world."""
        held_out = range(self.config.eval_scenarios), "held-out", self.config.weights
        asked = asked_of(self.config)
        return Evaluator(of.world, of.scenario, *held_out, **of.held_out, objective=asked)

    def _tuned_rivals(self) -> dict[str, float]:
        """Settings of the rules that move between rows of a table, as they do best over all worlds."""
        count, weights = self.config.tuning_scenarios, self.config.weights
        if not count:
            return {}
        found: dict[str, float] = {}
        with progress(total=len(RULES), desc="tune rules", unit="rule") as bar:
            own = range(count), "train", weights
            asked = asked_of(self.config)
            banks = [
                Evaluator(w.world, w.scenario, *own, **w.traces, objective=asked)
                for w in self.worlds
            ]
            for name in RULES:
                settings = tune(banks, [name])
                found |= {t.key: float(settings[t.key]) for t in find(name).tunables if t.grid}
                bar.update()
        return found

    def _make_trainer(self, trainings: list[tuple[EnvParams, Any]]) -> Trainer | ExactTrainer:
        """Record the banks of scenarios [S] as the algorithm needs them."""
        settings = self.config.train
        exact = settings.algorithm == "exact"
        one = functools.partial(record if exact else make_tape, networks=settings.networks)
        make = jax.jit(jax.vmap(one, in_axes=(0, None, 0, None)), static_argnums=3)
        banks = [
            _in_chunks(make, params, of.world.table, keys, of.scenario.horizon)
            for of, (params, keys) in zip(self.worlds, trainings, strict=True)
        ]
        if exact:
            banks = shared(banks, self.mesh)
            options = self.options
            try:
                return ExactTrainer(settings, banks, self.config.epochs, self.mesh, options)
            except ValueError as error:
                raise InputError(f"train: {error}") from None
        of = self.worlds[0]
        sizes = of.scenario.horizon, self.config.epochs
        return Trainer(settings, of.world.table, banks[0], *sizes, self.options)

    def resume(self, writer: RunWriter | Unrecorded) -> tuple[int, float]:
        """Take up where the last checkpoint left off, forget what was recorded after it, and return
        the epochs done and the time they took [s]."""
        checkpoint = load_checkpoint(writer.dir)
        self.state = shared(restore(checkpoint, own(self.state)), self.mesh)
        self.rivals = dict(checkpoint.meta.get("rivals") or {})
        done = int(np.asarray(self.state.epoch)[0])
        writer.truncate("metrics", "update", done + 1)
        for name in ("eval", "worlds"):
            writer.truncate(name, "update", done)
        if not done:
            return 0, 0.0
        metrics = load(writer.dir).table("metrics", ["wall_s"])
        self.trained_s = float(metrics["train_s"].max()) if "train_s" in metrics else 0.0
        return done, float(metrics["wall_s"].max())

    def save(self, writer: RunWriter | Unrecorded) -> None:
        """Write the checkpoint, whole or not at all."""
        if isinstance(writer, Unrecorded):
            return
        settings = self.config.train
        meta = {
            **dataclasses.asdict(settings.networks),
            "every": settings.cadence,
            "seeds": list(self.config.seeds),
            "epoch": int(np.asarray(self.state.epoch)[0]),
            "config": recorded(self.config),
            "rivals": self.rivals,
            "conditioned_on_weights": self.config.preferences == "drawn",
        }
        save_checkpoint(writer.dir / FILE_NAME, own(self.state), meta)

    def loop(self, writer: RunWriter | Unrecorded) -> dict[int, float]:
        """Run the epochs that are left; Ctrl-C saves the last whole epoch, then raises.

        Returns the regret [%] of every seed on held-out scenarios.
        """
        done, spent_s = self.resume(writer) if self.config.resume else (0, 0.0)
        self.rivals = self.rivals or self._tuned_rivals()
        try:
            return self._epochs(writer, done, time.perf_counter() - spent_s)
        except KeyboardInterrupt:
            # The state is always that of a whole epoch; what was recorded after it, resuming drops.
            with _DeferredInterrupt():
                self.save(writer)
            raise

    def _epochs(
        self, writer: RunWriter | Unrecorded, done: int, started: float
    ) -> dict[int, float]:
        config = self.config
        per_epoch = self.trainer.steps_per_epoch * len(config.seeds)
        regrets = self.evaluate(writer, done) if self._evaluates(done) else {}
        steps = {"total": config.epochs * per_epoch, "initial": done * per_epoch}
        with progress(desc="train", unit="step", unit_scale=True, **steps) as bar:
            for epoch in range(done + 1, config.epochs + 1):
                tick = time.perf_counter()
                with _DeferredInterrupt() as interrupt:
                    self.state, metrics = self.trainer.run_epoch(self.state)
                    metrics = jax.tree.map(np.asarray, metrics)
                    took_s = time.perf_counter() - tick
                    self.trained_s += took_s
                    speed = per_epoch / took_s
                    self._record(writer, epoch, metrics, time.perf_counter() - started, speed)
                    bar.update(per_epoch)
                    bar.set_postfix(progress=f"{metrics.progress_rel.mean():.3f}")
                    if epoch % config.checkpoint_every == 0 or epoch == config.epochs:
                        self.save(writer)
                if agreed(interrupt.seen, self.mesh):
                    raise KeyboardInterrupt
                if self._evaluates(epoch):
                    regrets = self.evaluate(writer, epoch)
        return regrets

    def _evaluates(self, epoch: int) -> bool:
        return epoch % self.config.eval_every == 0 or epoch == self.config.epochs

    def _record(
        self, writer: RunWriter | Unrecorded, epoch: int, metrics: Any, wall_s: float, speed: float
    ) -> None:
        rows = []
        for i, seed in enumerate(self.config.seeds):
            steps = epoch * self.trainer.steps_per_epoch
            own = {name: float(column[i]) for name, column in metrics.columns().items()}
            time = {"wall_s": wall_s, "train_s": self.trained_s, "steps_per_s": speed}
            rows.append({"seed": seed, "update": epoch, "env_steps": steps, **time, **own})
        writer.append("metrics", rows)

    def evaluate(self, writer: RunWriter | Unrecorded, epoch: int) -> dict[int, float]:
        """Regret on held-out scenarios, per policy seed; one row each in eval.csv, the mean over
        worlds, and one of each world in worlds.csv."""
        rows, of_worlds, regrets = [], [], {}
        for i, seed in enumerate(self.config.seeds):
            policy = jax.tree.map(jnp.asarray, take(own(self.state.policy), i))
            settings = self.config.train
            scheduler = HiPPO(policy, jnp.int32(settings.cadence), settings.networks)
            spreads = [_regret(evaluator, scheduler) for evaluator in self.evaluators]
            about = {
                "seed": seed,
                "update": epoch,
                "env_steps": epoch * self.trainer.steps_per_epoch,
            }
            for world, spread in zip(self.worlds, spreads, strict=True):
                of_worlds.append({"world": world.name, **about, **spread})
            means = {key: float(np.mean([s[key] for s in spreads])) for key in spreads[0]}
            rows.append({**about, **means})
            regrets[seed] = means["regret_pct"]
        writer.append("eval", rows)
        writer.append("worlds", of_worlds)
        text = ", ".join(f"seed {s}: {r:.2f} %" for s, r in regrets.items())
        tqdm.write(f"epoch {epoch}: regret on held-out scenarios {text}")
        return regrets


def _regret(evaluator: Evaluator, scheduler: HiPPO) -> dict[str, float]:
    """Mean and quartiles [%] over scenarios."""
    regret = evaluator.regret_pct(scheduler)
    # Scenarios in which nothing can run say nothing.
    regret = regret[np.isfinite(regret)] if np.isfinite(regret).any() else regret
    low, high = np.percentile(regret, [25, 75])
    return {"regret_pct": float(regret.mean()), "regret_lo": low, "regret_hi": high}


class _DeferredInterrupt:
    """Hold Ctrl-C back until the block is over, so that an epoch is recorded whole or not at all."""

    def __enter__(self) -> _DeferredInterrupt:
        self.seen = False
        self.previous = None
        # Only the main thread may set handlers, and only there does Ctrl-C arrive.
        if threading.current_thread() is threading.main_thread():
            self.previous = signal.signal(signal.SIGINT, self._note)
        return self

    def _note(self, *_) -> None:
        self.seen = True

    def __exit__(self, *_) -> None:
        if self.previous is not None:
            signal.signal(signal.SIGINT, self.previous)


def _in_chunks(make, params, table, keys, horizon: int, chunk: int = 32):
    """Record the bank in equal chunks with progress; the last chunk repeats scenarios to fill up."""
    count, parts = keys.shape[0], []
    with progress(total=count, unit="scenario", desc="solve training scenarios") as bar:
        for start in range(0, count, chunk):
            index = jnp.arange(start, start + chunk) % count
            pick = take(params, index)
            parts.append(jax.block_until_ready(make(pick, table, keys[index], horizon)))
            bar.update(min(chunk, count - start))
    return jax.tree.map(lambda *xs: jnp.concatenate(xs)[:count], *parts)


def train(config: TrainConfig, options: dict[str, bool] | None = None) -> Path:
    """Train and return the run folder, which is kept by the first of several processes; a `config` with
    `resume` must be that of `resumed_config`; `options` are those of `TrainingRun`.

    Raises InputError, RecordError, KeyboardInterrupt.
    """
    if config.resume:
        # Refuse a damaged one before anything is written.
        done = load_checkpoint(config.resume).meta["epoch"]
        if config.epochs < done:
            raise InputError(f"train: epochs: {done} are done already, got {config.epochs}")
    folder = config.resume or config.out
    mesh = join(config.processes)
    if not config.processes.first:
        run = TrainingRun(config, mesh, options)
        run.loop(unrecorded := Unrecorded(config.resume))
        return unrecorded.dir
    RunWriter.check("train", folder, resume=bool(config.resume))
    run = TrainingRun(config, mesh, options)
    with RunWriter.create(
        "train", recorded(config), list(config.seeds), folder, resume=bool(config.resume)
    ) as writer:
        try:
            regrets = run.loop(writer)
        except KeyboardInterrupt:
            if (writer.dir / FILE_NAME).exists():
                tqdm.write(f"interrupted; go on with --resume {writer.dir}")
            raise
        writer.finish(
            {
                "table": dataclasses.asdict(run.worlds[0].info),
                "worlds": {w.name: dataclasses.asdict(w.info) for w in run.worlds},
                "efficiency": note_efficiency(run.worlds[0].spec),
                "env_steps": run.trainer.steps_per_epoch * config.epochs,
                "checkpoint": FILE_NAME,
                "regret_pct": {str(seed): regret for seed, regret in regrets.items()},
            }
        )
    print(f"run folder: {writer.dir}")
    return writer.dir
