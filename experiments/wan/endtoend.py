"""End to end: a recorded trace moves emulated links, and `hippo watch` steers real training over them.

Every scheduler plays the same stretch of the trace. First the simulator says how many steps each gets
done, from the decisions that it takes on the recorded rates. Then the links are emulated, the watching
process reads what they carry, its plans are put into force while training goes on, and the steps that
were really done are counted.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from jaxtyping import Float

from analysis.records import RunWriter, load
from experiments.respond import RespondConfig, Responder, make_responder
from experiments.wan import start
from experiments.wan.predict import plain_step_s
from experiments.wan.resolve import NetworkOptions, resolve
from experiments.wan.runs import RunFailed, carried_out, steps_done
from experiments.wan.scene import Scene, busiest, read_scene
from experiments.wan.times import Fitted, Times
from experiments.wan.training import TrainingOptions, job_spec, resolved_job
from experiments.watch import plan_file
from jaxsim.cluster import ClusterSpec, load_cluster
from jaxsim.files import InputError
from jaxsim.network import read_network_trace
from jaxsim.plan import FULL_PRECISION_BITS, Plan

GPU = "A100-80GB"  # a type must be named for a calibration of one's own; its figures play no part
# What describes such a GPU's host and kernels and has no meaning here, as small as a file may say.
NOTHING, NO_SHARE, FULL = 1e-9, 1e-6, 1.0 - 1e-6
NONE = ("launch_forward_s", "launch_backward_s", "micro_batch_s", "step_fixed_s", "sync_fixed_s")
NONE += ("kernel_s", "optimizer_bytes", "slow_link_gbps", "gemm_tail_tiles", "gemm_depth")
NONE += ("hop_alpha_s", "accumulation_passes", "head_passes", "eager_passes", "straggler")
COMPUTE = ("gemm_efficiency", "batched_gemm_efficiency", "flash_efficiency")
PROBE_STEPS, PROBE_WARM_UP = 7, 2
START_S, READY_S, SPARE_S = 60.0, 400.0, 8.0  # most that starting takes; training beyond the trace


class EndToEnd:
    """One scene on one stretch of a trace. Everything goes into the run's folder."""

    def __init__(
        self,
        scene: Scene,
        trace: str,
        interval_s: int,
        writer: RunWriter,
        fitted: Fitted | None = None,
    ) -> None:
        """`fitted`: what a study found of messages here; None = jaxsim's own form predicts. Whatever
        predicts, schedulers decide by jaxsim's own form."""
        self.scene, self._writer, self._fitted = scene, writer, fitted
        self._options = TrainingOptions(
            model=scene.model, global_batch=scene.global_batch, seq=scene.seq, steps=10**6
        )
        self._job = job_spec(self._options)
        self._interval_s = interval_s
        self.spec = bare = self._write_cluster(FULL)
        factors = read_network_trace(trace, self.spec, float(interval_s))
        if len(factors) < scene.rows:
            raise InputError(f"{trace}: has {len(factors)} rows; expected {scene.rows} or more")
        self.begin = busiest(factors, scene.rows)
        self._factors = np.asarray(factors[self.begin : self.begin + scene.rows])
        self._write_trace()
        self._bare = bare  # in which computing takes no time

    def run(self) -> dict[str, Any]:
        """Calibrate, predict, train; the summary. Raises RunFailed."""
        alone_s = self._calibrate()
        known = self.spec if self._fitted is None else self._bare
        self._times = Times(known, self._job, self._fitted, alone_s)
        responders = {name: self._responder(name) for name in self.scene.schedulers}
        foreseen = pd.concat([self._foreseen(name, r) for name, r in responders.items()])
        # On disk before anything is trained.
        self._writer.write_table("foreseen", foreseen)
        rows, progress = [], []
        for name in self.scene.schedulers:
            lines = self._steered(name)
            done, replans, loss = self._measured(name)
            along = self._along(name, self._responder(name), lines)
            ahead = foreseen[foreseen["scheduler"] == name]
            progress.append(ahead.assign(measured=done, along=along["steps"].to_numpy()))
            rows.append(
                {
                    "scheduler": name,
                    "measured_steps": float(done[-1]),
                    "foreseen_steps": float(ahead["steps"].iloc[-1]),
                    "along_steps": float(along["steps"].iloc[-1]),
                    "decisions": sum("decision" in line for line in lines),
                    "foreseen_decisions": int(ahead["switched"].sum()),
                    "replans": replans,
                    "loss_last": loss,
                }
            )
            # What is measured is kept, whatever becomes of the next one.
            self._writer.write_table("progress", pd.concat(progress))
            self._writer.write_table("schedulers", pd.DataFrame(rows))
        table = pd.DataFrame(rows)
        return {
            "first_row": self.begin,
            "alone_s": alone_s,
            "schedulers": table.to_dict("records"),
            "order_foreseen": _order(table, "foreseen_steps"),
            "order_measured": _order(table, "measured_steps"),
        }

    # --- files ------------------------------------------------------------------------------------

    def _write_cluster(self, speed: float) -> ClusterSpec:
        """The cluster file and, beside it, the calibration of these processes; `speed` is the share of
        the named GPU's products."""
        scene, size = self.scene, len(self.scene.domains)
        between = 1.0 - np.eye(size)
        parameters = dict.fromkeys(NONE, NOTHING)
        parameters |= dict.fromkeys(COMPUTE, speed)
        parameters |= {"dp_overlap": NO_SHARE, "vocabulary_efficiency": FULL}
        parameters |= {"wan_efficiency": FULL, "wan_ring_efficiency": FULL}
        parameters |= {"outer_sync_efficiency": 1.0, "restart_s": scene.restart_s}
        body = {"calibrations": {GPU: {"parameters": parameters}}}
        (self._writer.dir / "calibration.yaml").write_text(yaml.safe_dump(body))
        one = {"gpus": 1, "gpus_per_node": 1, "usd_per_gpu_hour": 0.1}
        cluster = {
            "name": "end-to-end",
            "gpu": GPU,
            "calibration": "calibration.yaml",
            "domains": [{"name": name, **one} for name in scene.domains],
            "intra_domain": {"bandwidth_gbps": 100, "rtt_ms": 0.05},
            "wan": {
                "bandwidth_gbps": (scene.rate_mbps / 1e3 * between).tolist(),
                "rtt_ms": (scene.rtt_ms * between).tolist(),
                "egress_usd_per_gb": (0.02 * between).tolist(),
            },
        }
        self._cluster.write_text(yaml.safe_dump(cluster))
        return load_cluster(self._cluster)

    @property
    def _cluster(self) -> Path:
        return self._writer.dir / "cluster.yaml"

    def _write_trace(self) -> None:
        """The stretch as a trace of its own."""
        names = self.scene.domains
        rows = [
            (t * self._interval_s, names[i], names[j], self._factors[t, i, j])
            for t, i, j in np.ndindex(*self._factors.shape)
            if i != j
        ]
        table = pd.DataFrame(rows, columns=["t_s", "src", "dst", "factor"])
        table.to_csv(self._writer.dir / "stretch.csv", index=False)

    # --- calibrating ------------------------------------------------------------------------------

    def _calibrate(self) -> float:
        """Give the simulator the speed at which one domain alone trains; [s] of its step."""
        plan = {
            "pipelines": [
                {
                    "domains": [{"domain": "alone", "layers": self._job.model.layers}],
                    "micro_batches": self.scene.global_batch,
                }
            ]
        }
        job = resolved_job(self._options, self.spec, self._job, _nobody(plan), "")
        job |= {"ranks": ["alone"], "domains": ["alone"], "plan": plan, "network": None}
        job |= {"steps": PROBE_STEPS, "pace_s": self.scene.pace_ms / 1e3}
        out = self._writer.dir / "alone"
        if start.train_here(job, str(out)):
            raise RunFailed(f"training of one domain alone failed; see {out}")
        wall = load(out).table("steps")["wall_s"].iloc[PROBE_WARM_UP:]
        alone_s = float(wall.median())
        # Time falls as the speed rises, all else being nothing: two tries fix it to rounding.
        speed = 1e-4
        for _ in range(3):
            speed *= self._alone_s(speed) / alone_s
        self.spec = self._write_cluster(speed)
        return alone_s

    def _alone_s(self, speed: float) -> float:
        """[s] of a step of one domain alone, as the simulator has it."""
        spec = self._write_cluster(speed)
        micro = [self.scene.global_batch]
        plan = Plan.build(
            spec, self._job, [[spec.domains[0]]], micro_batch=1, batch_share=micro, pp=1
        )
        return plain_step_s(plan, spec, self._job)

    # --- predicting -------------------------------------------------------------------------------

    def _responder(self, scheduler: str) -> Responder:
        return make_responder(
            RespondConfig(
                scheduler=scheduler,
                cluster=str(self._cluster),
                model=self.scene.model,
                global_batch=self.scene.global_batch,
                seq=self.scene.seq,
                interval_s=self.scene.row_s,
            )
        )

    def _rows(self, responder: Responder) -> Iterator[int]:
        """Row by row, with the links as they are in it."""
        names = self.scene.domains
        for t, factors in enumerate(self._factors):
            for i, j in np.argwhere(~np.eye(len(names), dtype=bool)):
                gbps = float(factors[i, j]) * self.scene.rate_mbps / 1e3
                link = {"src": names[i], "dst": names[j], "bandwidth_gbps": max(gbps, 1e-6)}
                responder.measured.take(link)
            yield t

    def _foreseen(self, name: str, responder: Responder) -> pd.DataFrame:
        """Steps done by the end of every row, as the simulator has it with the scheduler's own
        decisions."""
        done, busy_s, out = 0.0, 0.0, []
        for t in self._rows(responder):
            proposal, before = responder.propose(), responder.plan
            answer = proposal.answer
            switched = bool(answer["switch"]) and busy_s <= 0.0
            responder.accept(proposal, keep_plan=bool(answer["switch"]) and busy_s > 0.0)
            if switched:
                busy_s += self._times.switch_s(before, responder.plan, answer["switch_s"])
            worked = max(self.scene.row_s - busy_s, 0.0)
            busy_s = max(busy_s - self.scene.row_s, 0.0)
            done += worked / self._times.step_s(responder.plan, responder.measured.view)
            out.append(
                {
                    "scheduler": name,
                    "t_s": (t + 1) * self.scene.row_s,
                    "steps": done,
                    "switched": switched,
                    "plan": responder.in_force["plan"],
                }
            )
        return pd.DataFrame(out)

    def _along(self, name: str, responder: Responder, lines: list[dict]) -> pd.DataFrame:
        """The same along the decisions that the watching process really took."""
        taken = {}
        for line in (x for x in lines if x.get("feasible")):
            taken[round(line["time"] / self.scene.row_s)] = line
        plan, done, busy_s, out = responder.plan, 0.0, 0.0, []
        for t in self._rows(responder):
            if t in taken:
                before, plan = plan, _plan_of(taken[t]["fields"], plan)
                if taken[t]["switch"]:
                    busy_s += self._times.switch_s(before, plan, taken[t]["switch_s"])
            worked = max(self.scene.row_s - busy_s, 0.0)
            busy_s = max(busy_s - self.scene.row_s, 0.0)
            done += worked / self._times.step_s(plan, responder.measured.view)
            out.append({"scheduler": name, "steps": done})
        return pd.DataFrame(out)

    # --- measuring --------------------------------------------------------------------------------

    def _steered(self, name: str) -> list[dict[str, Any]]:
        """Train while a watching process steers; its lines. Raises RunFailed."""
        scene, folder = self.scene, self._writer.dir / name
        folder.mkdir()
        said = folder / "watch.jsonl"
        words = ["--cluster", str(self._cluster), "--model", scene.model, "--scheduler", name]
        words += ["--global_batch", str(scene.global_batch), "--seq", str(scene.seq)]
        words += ["--interval_s", str(scene.row_s), "--apply", "true"]
        words += ["--plan_file", str(folder / "plan.json")]
        with open(said, "wb") as output, open(folder / "watch.log", "wb") as log:
            watching = start.spawn(
                "experiments.watch", *words, stdin=subprocess.PIPE, stdout=output, stderr=log
            )
            try:
                ready = _first_line(said, watching, f"hippo watch of {name}; see {folder}")
                self._train(name, ready, watching, folder)
            finally:
                start.end(watching)
        return [json.loads(line) for line in said.read_text().splitlines()]

    def _train(self, name: str, ready: dict, watching: subprocess.Popen, folder: Path) -> None:
        """One run over the stretch, from the plan that the watching process takes to be in force."""
        scene = self.scene
        first = _plan_of(ready["fields"], self._responder_plan)
        network = resolve(
            NetworkOptions(
                cluster=str(self._cluster),
                trace=str(self._writer.dir / "stretch.csv"),
                interval_s=float(self._interval_s),
                time_scale=scene.row_s / self._interval_s,
                name="end-to-end",
            )
        )
        plan = plan_file(first, self.spec.domains)
        job = resolved_job(self._options, self.spec, self._job, plan, network["name"])
        job |= {"watch": str(folder / "plan.json"), "pace_s": scene.pace_ms / 1e3}
        job["activation_bits"] = FULL_PRECISION_BITS  # as the simulator counts them
        job["seconds"] = scene.seconds + SPARE_S
        out = folder / "training"
        with start.training(network, job, str(out)) as process:
            _wait_for_steps(out / "ranks", process, f"training under {name}; see {out}")
            every = ["--every", str(scene.row_s), "--seconds", str(scene.seconds), "--rewind"]
            following = start.spawn(
                "ddp_bench.wan", "follow", "--name", network["name"], *every, stdout=watching.stdin
            )
            watching.stdin.close()  # its only writer is the other process now
            try:
                if process.wait(scene.seconds + 60.0) or following.wait(30.0):
                    raise RunFailed(f"training under {name} failed; see {out}")
                watching.wait(30.0)
            except subprocess.TimeoutExpired as late:
                what = f"training under {name}: {late.timeout:.0f} s were not enough; see {out}"
                raise RunFailed(what) from None
            finally:
                start.end(following)

    @property
    def _responder_plan(self) -> Plan:
        """Any plan of these domains: it says which fields a plan has, and of which type."""
        names = self.spec.domains
        return Plan.build(self.spec, self._job, [[names[0]]], micro_batch=1, pp=1)

    def _measured(self, name: str) -> tuple[Float[np.ndarray, " R"], int, float | None]:
        """Steps done by the end of every row; changes of plan; the last loss."""
        record = load(self._writer.dir / name / "training")
        ends = np.arange(1, self.scene.rows + 1) * self.scene.row_s
        done = steps_done(record.table("links"), record.table("steps"), ends)
        summary = record.summary
        return done, int(summary["replans"]), summary["loss_last"]


def _nobody(plan: dict[str, Any]) -> dict[str, Any]:
    """A plan of no domain: whose ranks are dealt by hand."""
    return {**plan, "pipelines": []}


def _order(table: pd.DataFrame, by: str) -> list[str]:
    return table.sort_values(by, ascending=False)["scheduler"].to_list()


def _plan_of(fields: dict[str, Any], like: Plan) -> Plan:
    """A plan from the fields that `hippo watch` prints."""
    return Plan(
        **{name: np.asarray(fields[name], getattr(like, name).dtype) for name in vars(like)}
    )


def _first_line(file: Path, process: subprocess.Popen, what: str) -> dict[str, Any]:
    """The first line that a process prints into a file. Raises RunFailed."""
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline and process.poll() is None:
        line, ended, _ = file.read_text().partition("\n")
        if ended:
            return json.loads(line)
        time.sleep(0.1)
    raise RunFailed(f"{what}: it did not become ready")


def _wait_for_steps(folder: Path, process: subprocess.Popen, what: str) -> None:
    """Until a first step is done. Raises RunFailed."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        if any('"steps"' in file.read_text() for file in folder.glob("rank*.jsonl")):
            return
        time.sleep(0.05)
    raise RunFailed(f"{what}: it did not start")


def end_to_end(
    config: str, trace: str, interval_s: int, out: str | None, study: str | None = None
) -> int:
    """Carry out a scene, predicted with what a study's run folder has fitted if one is given; the exit
    status."""
    scene = read_scene(config)
    fitted = None if study is None else Fitted.of(study)
    body = {**dataclasses.asdict(scene), "config": config, "trace": trace, "interval": interval_s}
    body["study"] = study
    return carried_out(
        "wan_end_to_end",
        body,
        0,
        out,
        lambda writer: EndToEnd(scene, trace, interval_s, writer, fitted).run(),
    )
