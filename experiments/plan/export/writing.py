"""The folder of launch files: all of it or nothing, with a README of what is exact and what is not."""

from __future__ import annotations

import dataclasses
import importlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.plan.export.layout import Job, Pipeline, Site
from jaxsim.files import InputError

SHAPE = "Layers, widths and heads of the model; global batch, sequence length."


@dataclasses.dataclass(frozen=True)
class Export:
    """What a format makes of a job."""

    framework: str  # name and release that it is for
    files: Mapping[str, str | bytes]  # path -> content; scripts end in .sh
    exact: tuple[str, ...]  # what runs as planned
    nearest: tuple[str, ...]  # what the framework cannot express, and what it does instead
    run: tuple[str, ...]  # how to start, line by line


def check_folder(path: str | Path) -> Path:
    """The folder to write into, which must not exist or be empty. Raises InputError."""
    folder = Path(path)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"--export {path}: exists and is not an empty folder")
    if not folder.resolve().parent.is_dir():
        raise InputError(f"--export {path}: the folder {folder.resolve().parent} does not exist")
    return folder


def exported(job: Job, form: str) -> Export:
    """The files of a format. Raises InputError, one line, for what it cannot run at all."""
    module = importlib.import_module(f"experiments.plan.export.{form}")
    return module.export(job)


def export_plan(job: Job, form: str, path: str | Path) -> list[str]:
    """Write the files of a format into a new folder; returns their names. Raises InputError."""
    folder, made = check_folder(path), exported(job, form)
    files = {**made.files, "README.md": readme(job, made)}
    aside = Path(tempfile.mkdtemp(prefix=".export-", dir=folder.resolve().parent))
    try:
        for name, text in files.items():
            (aside / name).write_bytes(text if isinstance(text, bytes) else text.encode())
            if name.endswith(".sh"):
                (aside / name).chmod(0o755)
        aside.chmod(0o755)
        if folder.exists():
            folder.rmdir()
        os.replace(aside, folder)
    except OSError as error:
        raise InputError(f"--export {path}: cannot be written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return sorted(files)


def readme(job: Job, made: Export) -> str:
    """What the folder holds, how to start it, what is exact and what is not."""
    told = job.predicted
    low, high = told["step_s_band"]
    lines = [
        f"# {job.model_name} on {job.cluster}",
        "",
        f"Written by `hippo plan` for {made.framework}.",
        "",
        f"Plan: {told['plan']['label']} ({told['talks']}). Predicted: {told['step_s']:.2f} s a step "
        f"({low:.2f} to {high:.2f}), {told['effective_tokens_per_s']:,.0f} effective tokens/s, for the "
        f"stack {job.stack} and the plan as it is. Where other things run (below), it does not hold."
        f"{_other_stack(job, made)}",
        *_memory(told),
        "",
        "| group | domain | nodes | processes a node | stages | layers |",
        "|---|---|---|---|---|---|",
    ]
    for g, pipeline in enumerate(job.pipelines, start=1):
        for site in pipeline.sites:
            held = ", ".join(map(str, site.stages))
            lines.append(
                f"| {g} | {site.name} | {site.nodes} | {site.per_node} | {len(site.stages)} | {held} |"
            )
    lines += ["", "## Start", "", *made.run, "", "## Exact", ""]
    lines += [f"- {text}" for text in made.exact]
    lines += ["", "## Not expressed, and what runs instead", ""]
    lines += [f"- {text}" for text in made.nearest] or ["- nothing"]
    return "\n".join(lines) + "\n"


def _other_stack(job: Job, made: Export) -> str:
    """What is said where step times are of another stack than the one that is launched."""
    if made.framework.lower().startswith(job.stack.partition("-")[0]):
        return ""
    framework = made.framework.split()[0]
    return f" {framework} is another stack: name its own in the cluster file, if one is known."


def _memory(told: Mapping[str, Any]) -> list[str]:
    """Whether the fullest GPU may be too small."""
    most, high, held = (told[f"memory_gb_{k}"] for k in ("max", "max_hi", "held"))
    if high <= held:
        return []
    return [
        "",
        f"Memory is tight: {most:.0f} GB on the fullest GPU, up to {high:.0f} at the upper end of its "
        f"band, of {held:.0f}. See in a short run that it fits, or plan again with `--reserve-pct`.",
    ]


def script(site: Site, first_node: int, nodes: int, body: list[str]) -> str:
    """The launch script of a domain's nodes: `body` follows the variables that the user sets."""
    return "\n".join(
        [
            "#!/usr/bin/env bash",
            f"# Runs on each of the {site.nodes} node(s) of {site.name}, from this folder.",
            "# Set before: MASTER_ADDR, a host that all nodes of the job reach; NODE_RANK, this node's",
            f"# number inside {site.name}, from 0 to {site.nodes - 1}.",
            "set -euo pipefail",
            'cd "$(dirname "$0")"',
            ': "${MASTER_ADDR:?set it to a host that all nodes of the job reach}"',
            f': "${{NODE_RANK:?set it to the number of this node, 0 to {site.nodes - 1}}}"',
            ': "${MASTER_PORT:=29500}"',
            f"TORCHRUN=(torchrun --nnodes {nodes} --nproc_per_node {site.per_node}",
            f"  --node_rank $(({first_node} + NODE_RANK))",
            '  --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT")',
            *body,
            "",
        ]
    )


def details(block: str) -> str:
    """What a plan does not know of a model, and the framework's block has in its own way."""
    return (
        "What differs between families of models (biases, norms of queries and keys, positions): this "
        f"is {block}, so set what yours has before its weights are loaded."
    )


def one_layout(job: Job, framework: str) -> Pipeline:
    """The settings of a job that one layout serves. Raises InputError where groups differ."""
    if not job.alike:
        raise InputError(
            f"format: {framework} runs one layout for all ranks, and the groups of this plan differ "
            "(stages, tp, dp, micro-batches): export to torchtitan, or try --allow synchronous"
        )
    first = job.pipelines[0]
    if len(job.pipelines) > 1 and any(len(p.sites) > 1 for p in job.pipelines) and first.dp > 1:
        raise InputError(
            f"format: {framework}: several groups, each a pipeline over domains with dp {first.dp}: no "
            "order of hosts keeps their replicas apart; export to torchtitan"
        )
    return first


def synchronous_instead(job: Job, framework: str) -> list[str]:
    """What is said where a framework has no local SGD."""
    notes = []
    if len(job.pipelines) > 1 and job.sync_period > 1:
        notes.append(
            f"Sync every {job.sync_period} steps: {framework} has no local SGD. The nearest is a sync "
            "at every step: a step then waits for the links, and the predicted one is not reached."
        )
    return notes + few_bits(job, framework)


def few_bits(job: Job, framework: str) -> list[str]:
    """What is said of values that are sent in fewer than 16 bits and cannot be."""
    notes = []
    if len(job.pipelines) > 1 and job.wire_bits < 16 and job.sync_period == 1:
        notes.append(f"Gradients in {job.wire_bits} bits: {framework} sends 16 or 32.")
    if job.crosses and job.activation_bits < 16:
        notes.append(
            f"Activations in {job.activation_bits} bits between domains: {framework} sends 16."
        )
    return notes
