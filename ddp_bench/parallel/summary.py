"""What came out of a run, in a few numbers."""

from __future__ import annotations

from typing import Any

import pandas

from ddp_bench.parallel.job import Job

WARM_UP = 2  # steps at the start of every plan that connect and allocate


def losses(steps: pandas.DataFrame) -> pandas.Series:
    """Mean loss over the global batch by step: the sum of the ranks' parts."""
    return steps.groupby("step")["loss_part"].sum(min_count=1)


def step_seconds(steps: pandas.DataFrame) -> pandas.Series:
    """[s] by step from the moment at which all ranks have ended it to the next such moment."""
    ended = steps.groupby("step")["ended_s"].max()
    return ended.diff().dropna()


def steady(steps: pandas.DataFrame) -> pandas.Series:
    """`step_seconds` without the first steps of each plan, where there are others."""
    seconds = step_seconds(steps)
    plan = steps.groupby("step")["plan_number"].max()
    first = plan.ne(plan.shift()).cumsum()
    number = plan.groupby(first).cumcount()
    chosen = seconds[number.loc[seconds.index] >= WARM_UP]
    return chosen if len(chosen) else seconds


def summarise(job: Job, frames: dict[str, pandas.DataFrame]) -> dict[str, Any]:
    """Steps, seconds, losses, bytes; what was not measured is None."""
    steps = frames.get("steps")
    if steps is None:
        return {"steps": 0}
    seconds, loss = steady(steps), losses(steps)
    links, moved = frames.get("links"), frames.get("transitions")
    spread = steps.groupby("step")[["compute_s", "wait_s", "sync_s"]].mean()
    return {
        "steps": int(steps["step"].max()) + 1,
        "params": job.model.params,
        "step_s": float(seconds.mean()) if len(seconds) else None,
        "step_s_std": float(seconds.std()) if len(seconds) > 1 else None,
        "tokens_per_s": job.global_batch * job.seq / float(seconds.mean())
        if len(seconds)
        else None,
        **{key: float(spread[key].mean()) for key in spread},
        "loss_first": _number(loss.iloc[0]),
        "loss_last": _number(loss.iloc[-1]),
        "wan_mb_per_step": None
        if links is None
        else float(links.groupby("step")["sent_mb"].sum().mean()),
        "replans": 0 if moved is None else int(moved["plan_number"].max()),
        "lost_s": None
        if moved is None
        else float(moved.groupby("plan_number")["lost_s"].max().sum()),
    }


def _number(value: float) -> float | None:
    return None if pandas.isna(value) else float(value)
