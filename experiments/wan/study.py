"""Sim-to-real: calibrate jaxsim on a few conditions, predict the others, then measure them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import kendalltau

from analysis.records import RunWriter, load
from experiments.wan import start
from experiments.wan.predict import Case, Fit, Predictor
from experiments.wan.protocol import (
    RANKS_PER_DOMAIN,
    ROW_S,
    WARM_UP,
    Condition,
    Protocol,
    read_protocol,
)
from experiments.wan.resolve import NetworkOptions, resolve
from experiments.wan.runs import RunFailed, carried_out
from experiments.wan.training import TrainingOptions, job_spec, plan_of, resolved_job
from jaxsim.cluster import ClusterSpec, load_cluster
from jaxsim.network import read_network_trace
from jaxsim.plan import Plan
from jaxsim.workload import JobSpec

TRACE_INTERVAL_S = 1.0  # of a condition's trace file, whose rows are ROW_S of real time
NEAR_PCT = 5.0  # a choice this close to the best counts as right


@dataclasses.dataclass(frozen=True)
class Subject:
    """A model, and the plans that it is trained by."""

    job: JobSpec
    predictor: Predictor
    plans: Mapping[str, Plan]
    trained: Mapping[str, Any]  # the same as `ddp_bench.parallel` reads them


def _subject(protocol: Protocol, job: JobSpec, deeper: int, spec: ClusterSpec) -> Subject:
    """Of a model of `deeper` times the layers of the protocol's."""
    job = dataclasses.replace(
        job, model=dataclasses.replace(job.model, layers=deeper * job.model.layers)
    )
    found = {
        name: plan_of(body, f"plans: {name}", spec, job)
        for name, body in protocol.plans_of(deeper).items()
    }
    plans, trained = ({n: pair[i] for n, pair in found.items()} for i in (0, 1))
    return Subject(job, Predictor(job), plans, trained)


class Study:
    """One protocol on its way from conditions to tables. Everything goes into the run's folder."""

    def __init__(self, protocol: Protocol, writer: RunWriter) -> None:
        self.protocol, self._writer = protocol, writer
        self._options = TrainingOptions(
            model=protocol.model,
            global_batch=protocol.global_batch,
            seq=protocol.seq,
            steps=1,  # how many there are depends on the plans
            seed=protocol.seed,
            ranks_per_domain=RANKS_PER_DOMAIN,
        )
        job = job_spec(self._options)
        self._specs = {c.name: self._write_cluster(c) for c in protocol.conditions}
        first = next(iter(self._specs.values()))
        sizes = {c.deeper for c in protocol.conditions} | {1}
        of = {n: _subject(protocol, job, n, first) for n in sorted(sizes)}
        self._base = of[1]  # what does not depend on the number of layers is read from it
        self._subjects = {c.name: of[c.deeper] for c in protocol.conditions}

    def _begins(self, condition: Condition) -> list[int]:
        """The first step of every plan, and the end."""
        lengths = (
            WARM_UP + self.protocol.counted(condition, trained["sync_period"])
            for trained in self._base.trained.values()
        )
        return list(itertools.accumulate(lengths, initial=0))

    def run(self) -> dict[str, Any]:
        """Measure, fit, predict, measure; the summary. Raises RunFailed."""
        seen = [c for c in self.protocol.conditions if c.calibrate]
        others = [c for c in self.protocol.conditions if not c.calibrate]
        steps, moves = self._measured(seen)
        fit = self._fit(steps)
        restart = self._restart(moves)
        predicted = self._predictions(fit)
        # On disk before the conditions that it speaks of are measured.
        self._writer.write_table("predictions", predicted)
        self._writer.append("fit", [{"what": k, "value": v} for k, v in _flat(fit, *restart)])
        more, more_moves = self._measured(others)
        runs = predicted.merge(pd.concat([steps, more]), on=["condition", "plan"])
        runs["error_pct"] = 100.0 * (runs["predicted_s"] / runs["measured_s"] - 1.0)
        moved = pd.concat([moves, more_moves])
        moved["predicted_s"] = [self._transition_s(row, *restart) for row in moved.itertuples()]
        self._writer.write_table("runs", runs)
        self._writer.write_table("moves", moved)
        return summary(runs, moved)

    # --- measuring --------------------------------------------------------------------------------

    def _write_cluster(self, condition: Condition) -> ClusterSpec:
        """The condition's cluster, from the file that the emulated network is made of as well; beside
        it its trace, if its links move."""
        file = self._file(condition, "yaml")
        file.parent.mkdir(exist_ok=True)
        file.write_text(condition.cluster(self.protocol.domains).to_yaml())
        trace = condition.trace(self.protocol.domains, self.protocol.seed)
        if trace is not None:
            self._file(condition, "csv").write_text(trace)
        return load_cluster(file)

    def _file(self, condition: Condition, kind: str) -> Path:
        return self._writer.dir / "conditions" / f"{condition.name}.{kind}"

    def _measured(self, conditions: list[Condition]) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Step times by condition and plan, and changes of plan."""
        found = [self._measure(condition) for condition in conditions]
        return tuple(pd.concat(tables, ignore_index=True) for tables in zip(*found, strict=True))

    def _measure(self, condition: Condition) -> tuple[pd.DataFrame, pd.DataFrame]:
        """All plans under one condition, one after the other in one training run."""
        trace = self._file(condition, "csv")
        network = resolve(
            NetworkOptions(
                cluster=str(self._file(condition, "yaml")),
                trace=str(trace) if trace.exists() else None,
                interval_s=TRACE_INTERVAL_S,
                time_scale=ROW_S / TRACE_INTERVAL_S,
                name=f"study-{condition.name}"[:24].rstrip("-"),
            )
        )
        subject, spec = self._subjects[condition.name], self._specs[condition.name]
        names, begins = list(subject.trained), self._begins(condition)
        first, *others = subject.trained.values()
        job = resolved_job(self._options, spec, subject.job, first, network["name"])
        job["then"] = list(zip(begins[1:-1], others, strict=True))
        job |= {"steps": begins[-1], "pace_s": self.protocol.pace_ms / 1e3}
        out = self._writer.dir / "conditions" / condition.name
        if start.train(network, job, str(out)):
            raise RunFailed(f"condition {condition.name}: training failed; see {out}")
        record = load(out)
        steps = record.table("steps")
        return self._step_times(condition, steps, names), self._moves(
            condition, record.table("transitions"), names
        )

    def _step_times(self, condition: Condition, steps: pd.DataFrame, names: list[str]):
        """Step time of every plan [s], its first steps left out: the median, since this machine has
        other work too; the mean where links move, and over whole periods where a sync comes every H
        steps."""
        ended = steps.groupby("step")["ended_s"].max().diff()
        rows = []
        for number, name in enumerate(names):
            own = steps[steps["plan_number"] == number]
            kept = sorted(own["step"].unique())[WARM_UP:]
            later = own[own["step"].isin(kept)]
            seconds = ended.loc[kept]
            period = self._base.trained[name]["sync_period"]
            local = period > 1
            # Steps at whose end nothing is sent: what computing takes where all ranks do it at once.
            still = seconds[(seconds.index + 1) % period != 0]
            rows.append(
                {
                    "condition": condition.name,
                    "plan": name,
                    "measured_s": seconds.mean() if local or condition.moves else seconds.median(),
                    "measured_std_s": seconds.std(),
                    "still_s": still.mean() if local else None,
                    "compute_s": later["compute_s"].median(),
                    "wait_s": later["wait_s"].median(),
                }
            )
        return pd.DataFrame(rows)

    def _moves(self, condition: Condition, moved: pd.DataFrame, names: list[str]) -> pd.DataFrame:
        """Changes of plan: what training lost by each [s], and what crossed the network [MB]."""
        by = moved.groupby("plan_number")
        lost, sent = by["lost_s"].max(), by["sent_mb"].sum()
        return pd.DataFrame(
            [
                {
                    "condition": condition.name,
                    "before": names[number - 1],
                    "after": names[number],
                    "lost_s": lost[number],
                    "sent_mb": sent[number],
                }
                for number in lost.index
            ]
        )

    # --- predicting -------------------------------------------------------------------------------

    def _case(self, condition: str, plan: str, measured_s: float | None = None) -> Case:
        factors, spec = None, self._specs[condition]
        trace = self._writer.dir / "conditions" / f"{condition}.csv"
        if trace.exists():  # what the links will do is known before they do it
            factors = read_network_trace(trace, spec, TRACE_INTERVAL_S)
        return Case(self._subjects[condition].plans[plan], spec, measured_s, factors)

    def _fit(self, steps: pd.DataFrame) -> Fit:
        """From the conditions that are calibrated on."""
        cases = [self._case(r.condition, r.plan, r.measured_s) for r in steps.itertuples()]
        whole = [n for n, t in self._base.trained.items() if len(t["pipelines"][0]["domains"]) == 1]
        counts = {n: self._base.trained[n]["pipelines"][0]["micro_batches"] for n in whole}
        sizes = {n: self._base.trained[n]["pipelines"][0]["micro_batch"] for n in whole}
        # A rank that holds the whole model: its CPU time is that of all layers and micro-batches.
        each = [
            r.compute_s / (counts[r.plan] * self._base.job.model.layers)
            + sizes[r.plan] * self.protocol.pace_ms / 1e3
            for r in steps[steps["plan"].isin(whole)].itertuples()
        ]
        layer_s = float(np.median(each))
        return self._base.predictor.fit(cases, layer_s, self._at_once_s(steps, counts, layer_s))

    def _at_once_s(self, steps: pd.DataFrame, counts: dict[str, int], layer_s: float) -> float:
        """[s] of a layer for a micro-batch where all ranks compute at once, by steps of local plans at
        whose end nothing is sent; where there are none it is that of ranks that compute in turn."""
        local = steps[steps["still_s"].notna() & steps["plan"].isin(list(counts))]
        each = [
            r.still_s / (counts[r.plan] * self._base.job.model.layers)
            for r in local.itertuples()
            if self._base.trained[r.plan].get("fragments", 1) == 1
        ]
        return float(np.median(each)) if each else layer_s

    def _predictions(self, fit: Fit) -> pd.DataFrame:
        return pd.DataFrame(
            [
                {
                    "condition": condition.name,
                    "plan": plan,
                    "family": self.protocol.families[plan],
                    "calibrated_on": condition.calibrate,
                    "synchronous": self._base.trained[plan]["sync_period"] == 1,
                    "predicted_s": self._subjects[condition.name].predictor.predict(
                        self._case(condition.name, plan), fit
                    ),
                }
                for condition in self.protocol.conditions
                for plan in self._base.plans
            ]
        )

    def _transition_s(self, row: Any, restart_s: float, trips: float) -> float:
        subject, spec = self._subjects[row.condition], self._specs[row.condition]
        old, new = subject.plans[row.before], subject.plans[row.after]
        return subject.predictor.transition_s(old, new, spec, restart_s, trips)

    def _restart(self, moves: pd.DataFrame) -> tuple[float, float]:
        """Of a change of plan beside the bytes that it moves: [s] of a restart, by changes that move
        none, and the round trips that domains wait for, by those that do."""
        rows = list(moves.itertuples())
        # Where replicas of a local plan come together first, more than a restart is lost.
        apart = {name for name, trained in self._base.trained.items() if trained["sync_period"] > 1}
        still = [r.lost_s for r in rows if r.sent_mb == 0.0 and r.before not in apart]
        restart_s = float(np.median(still)) if still else 0.0
        trips = []
        for row in (row for row in rows if row.sent_mb > 0.0):
            bare, one = (self._transition_s(row, restart_s, n) for n in (0.0, 1.0))
            if one > bare:
                trips.append(max(row.lost_s - bare, 0.0) / (one - bare))
        return restart_s, float(np.median(trips)) if trips else 0.0


def _flat(fit: Fit, restart_s: float, trips: float) -> list[tuple[str, float]]:
    rows = [("layer_s", fit.layer_s), ("at_once_s", fit.at_once_s)]
    rows += [("restart_s", restart_s), ("trips of a change of plan", trips)]
    for name in ("share", "trips"):
        rows += [(f"{name} of {kind}", value) for kind, value in getattr(fit, name).items()]
    return rows


def summary(runs: pd.DataFrame, moves: pd.DataFrame) -> dict[str, Any]:
    """Errors on conditions that were not calibrated on, ranks of plans, choices, changes of plan."""
    new = runs[~runs["calibrated_on"].astype(bool)]
    families = {str(family): _errors(group["error_pct"]) for family, group in new.groupby("family")}
    worst = new.reindex(new["error_pct"].abs().sort_values(ascending=False).index).head(3)
    chosen = {str(name): _choice(group) for name, group in new.groupby("condition")}
    loss = [c["loss_pct"] for c in chosen.values()]
    moves = moves[moves["condition"].isin(chosen)]
    of_moves = _errors(100.0 * (moves["predicted_s"] / moves["lost_s"] - 1.0))
    return {
        "families": families,
        "all": _errors(new["error_pct"]),
        "choices": chosen,
        "choices_near_best_pct": 100.0 * float(np.mean(np.array(loss) <= NEAR_PCT)),
        "largest_errors": worst[
            ["condition", "plan", "measured_s", "predicted_s", "error_pct"]
        ].to_dict("records"),
        "moves": {"lost_s_median": float(moves["lost_s"].median()), **of_moves},
    }


def _errors(errors: pd.Series) -> dict[str, float]:
    size = errors.abs()
    return {
        "n": len(size),
        "median_ape_pct": float(size.median()),
        "p90_ape_pct": float(size.quantile(0.9)),
        "bias_pct": float(errors.mean()),
    }


def _choice(group: pd.DataFrame) -> dict[str, Any]:
    """How the plans of one condition are ranked; which is chosen of those whose steps learn the same,
    the synchronous ones, and what that costs."""
    alike = group[group["synchronous"].astype(bool)]
    best = alike.loc[alike["measured_s"].idxmin()]
    first = alike.loc[alike["predicted_s"].idxmin()]
    tau = kendalltau(group["predicted_s"], group["measured_s"]).statistic
    return {
        "kendall_tau": float(tau),
        "chosen": str(first["plan"]),
        "best": str(best["plan"]),
        "loss_pct": 100.0 * float(first["measured_s"] / best["measured_s"] - 1.0),
    }


def study(config: str, out: str | None) -> int:
    """Carry out a protocol; the exit status."""
    protocol = read_protocol(config)
    body = {**dataclasses.asdict(protocol), "config": config}
    return carried_out(
        "wan_study", body, protocol.seed, out, lambda writer: Study(protocol, writer).run()
    )
