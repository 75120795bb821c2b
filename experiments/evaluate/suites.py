"""Suites: named lists of scenes, evaluated one after another into one folder, one table of all."""

from __future__ import annotations

import dataclasses
import re
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from tqdm import tqdm

from analysis.records import RunWriter, load
from analysis.statistics import SceneMean, scene_means, with_headroom
from experiments.common import by_headroom, from_mapping, progress
from experiments.evaluate.alternatives import alternatives_rows
from jaxsim.files import InputError, is_file, listed, meant, read_yaml, shown, values

SHIPPED = Path(__file__).parents[1] / "configs" / "suites" / "suites.yaml"
KEYS = ("defaults", "scenes", "suites")
# Found beside the file that names them, if they are there: some may be a preset's name instead.
FILE_KEYS = ("cluster", "trace", "load", "jobs", "model", "checkpoint", "jitter")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")  # of a scene: it becomes a folder
# One evaluation: what came out and the folder with its records.
Evaluate = Callable[[Any], tuple[dict, Path]]
Check = Callable[[Any], None]  # raises InputError for a scene that cannot be evaluated


@dataclasses.dataclass(frozen=True)
class Suite:
    """Scenes in the order in which they are played.

    Attributes:
        name: what it was asked for by
        defaults: keys of an evaluation, weaker than the command line's
        scenes: name -> keys of an evaluation, stronger than the command line's
    """

    name: str
    defaults: Mapping[str, Any]
    scenes: Mapping[str, Mapping[str, Any]]


def is_suite_file(text: str) -> bool:
    """Does this name a suite in a file of the user's?"""
    return text.endswith(".yaml") or ".yaml:" in text


def load_suite(text: str) -> Suite:
    """The suite `NAME` of those that ship, or `FILE.yaml` (all scenes) or `FILE.yaml:NAME`.

    Raises InputError that names the file, the key and the known suites.
    """
    if is_suite_file(text):
        file, colon, name = text.partition(".yaml:")
        path = Path(f"{file}.yaml" if colon else text)
        return _suite(read_yaml(path, "a suite"), name, str(path), path.parent)
    return _suite(read_yaml(SHIPPED, "a suite"), text, "suite", SHIPPED.parent)


def _suite(body: Any, name: str, source: str, folder: Path) -> Suite:
    if not isinstance(body, Mapping) or not isinstance(body.get("scenes"), Mapping):
        raise InputError(f"{source}: expected a mapping with the keys {', '.join(KEYS)}")
    values.mapping(body, source, may=KEYS)
    suites = {"": list(body["scenes"]), **_mapping(body, "suites", source)}
    if name not in suites:
        known = listed(key for key in suites if key)
        near = meant(name, suites)
        raise InputError(f"{source}: {shown(name)} is no suite{near}; known: {known}")
    if not isinstance(suites[name], list) or not suites[name]:
        raise InputError(f"{source}: {name or 'scenes'}: expected at least one scene")
    scenes = {}
    for scene in suites[name]:
        if not isinstance(scene, str) or not NAME.fullmatch(scene):
            allowed = "letters, digits, _ and -, a letter or digit first, at most 100"
            raise InputError(f"{source}: {shown(scene)} names no scene; allowed: text of {allowed}")
        if not isinstance(body["scenes"].get(scene), Mapping):
            known = listed(body["scenes"])
            near = meant(scene, body["scenes"])
            raise InputError(f"{source}: {name}: {shown(scene)} is no scene{near}; known: {known}")
        scenes[scene] = _beside(body["scenes"][scene], folder)
    defaults = _beside(_mapping(body, "defaults", source), folder)
    return Suite(name or Path(source).stem, defaults, scenes)


def _mapping(body: Mapping[str, Any], key: str, source: str) -> Mapping[str, Any]:
    """What a suite's file says under a key that may be left out; InputError unless a mapping."""
    value = {} if body.get(key) is None else body[key]
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise InputError(
            f"{source}: {key}: expected a mapping with names as keys, got {shown(value)}"
        )
    return value


def _beside(keys: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """An evaluation's keys with the files among them looked for beside the suite's own."""
    return {k: _found(v, folder) if k in FILE_KEYS else v for k, v in keys.items()}


def _found(text: Any, folder: Path) -> Any:
    """A file's path, where `text` is the name of one in the folder; a jitter file may be followed
    by :NAME."""
    if not isinstance(text, str) or not text:
        return text  # the evaluation's own check names the key
    file, colon, name = text.partition(".yaml:")
    path = folder / (f"{file}.yaml" if colon else text)
    return f"{path}{':' if colon else ''}{name}" if is_file(str(path)) else text


def merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` laid on `under`, nested mappings key by key."""
    out = dict(under)
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(out.get(key), Mapping)
        out[key] = merged(out[key], value) if both else value
    return out


def scene_configs(suite: Suite, config: Any, given: list[str]) -> dict[str, Any]:
    """The evaluation of each scene: defaults of the class, of the suite, what the command line has
    `given`, what the scene says; the last wins. Raises InputError that names the scene."""
    whole = dataclasses.asdict(config)
    asked: dict[str, Any] = {}
    for key in given:
        value, place = whole, asked
        *parents, last = key.split(".")
        for parent in parents:
            value, place = value[parent], place.setdefault(parent, {})
        place[last] = value[last]
    base = {**merged(suite.defaults, asked), "suite": None, "json": None, "out": None}
    return {
        name: from_mapping(type(config), merged(base, scene), f"{suite.name}: {name}")
        for name, scene in suite.scenes.items()
    }


def checked_scenes(suite: Suite, config: Any, given: list[str], check: Check) -> dict[str, Any]:
    """`scene_configs`, each of which was checked. Raises InputError that names the scene."""
    scenes = scene_configs(suite, config, given)
    for name, scene in scenes.items():
        try:
            check(scene)
        except InputError as error:
            raise InputError(f"{suite.name}: {name}: {error}") from None
    return scenes


def run_suite(config: Any, given: list[str], evaluate: Evaluate, check: Check) -> tuple[dict, Path]:
    """Evaluate every scene that the folder has not finished yet, each in a folder of its own, after
    a check of them all.

    Returns the summary, `{"suite", "wall_s", "scenes": {NAME: an evaluation's summary}, "means":
    {SCHEDULER: a mean over scenes}}`, and the run folder. `wall_s` counts an interrupted scene from
    its last resumption on, and scenes finished before the suite was resumed without loading their
    worlds. Raises InputError, RecordError, KeyboardInterrupt.
    """
    resume = config.resume is not None
    if resume:
        given = load(config.resume).run["config"]["given"]
    folder = config.resume or config.out
    RunWriter.check("suite", folder, resume)
    suite = load_suite(config.suite)
    scenes = checked_scenes(suite, config, given, check)
    body = {"given": given, **dataclasses.asdict(dataclasses.replace(config, resume=None))}
    with RunWriter.create("suite", body, config.seeds, folder, resume) as writer:
        try:
            summary = _play(suite.name, scenes, writer, evaluate)
        except KeyboardInterrupt:
            tqdm.write(f"interrupted; go on with --resume {writer.dir}", file=sys.stderr)
            raise
        writer.finish(summary)
    return summary, writer.dir


def _play(name: str, scenes: dict[str, Any], writer: RunWriter, evaluate: Evaluate) -> dict:
    summaries, wall_s = {}, 0.0
    with progress(total=len(scenes), desc=f"suite {name}", unit="scene") as bar:
        for scene, config in scenes.items():
            bar.set_postfix_str(scene)
            folder = writer.dir / scene
            kept, start = (folder / "summary.json").is_file(), time.perf_counter()
            if not kept:
                where = "resume" if (folder / "run.json").is_file() else "out"
                evaluate(dataclasses.replace(config, **{where: str(folder)}))
            record = load(folder)
            summaries[scene] = record.summary
            wall_s += record.seconds if kept else time.perf_counter() - start
            writer.write_table("scenes", _rows(summaries))
            writer.write_table("alternatives", alternatives_rows(summaries))
            bar.update()
    means = _means(summaries, writer.dir)
    return {"suite": name, "wall_s": wall_s, "scenes": summaries, "means": means}


def _means(summaries: dict[str, dict], folder: Path) -> dict[str, SceneMean]:
    """Who plays in all scenes worth deciding in, in the mean over them; many jobs have no regret."""
    worth, _ = by_headroom(summaries)
    if len(worth) < 2:
        return {}
    records = {scene: load(folder / scene) for scene in worth}
    if not all("scenarios" in record.tables() for record in records.values()):
        return {}
    tables = {scene: record.table("scenarios") for scene, record in records.items()}
    if not all("regret_pct" in table for table in tables.values()):
        return {}
    return scene_means(
        {
            scene: with_headroom(table, summaries[scene]["headroom"]["threshold_pct"])
            for scene, table in tables.items()
        }
    )


def _rows(summaries: dict[str, dict]) -> pd.DataFrame:
    """scenes.csv: every scheduler of every scene; what a scene does not measure is missing."""
    keys = ("headroom_pct", "regret_pct", "bound_pct", "tokens_per_s", "usd_per_mtoken")
    rows = []
    for scene, summary in summaries.items():
        kept = (summary.get("headroom") or {}).get("n_kept")
        for name, row in summary["schedulers"].items():
            low, high = row.get("regret_ci95_pct") or (None, None)
            values = {key: row.get(key) for key in keys}
            values |= {"regret_lo_pct": low, "regret_hi_pct": high, "n_scenarios": kept}
            values["jct_normalised"] = row.get("jobs", {}).get("jct_normalised_mean")
            rows.append({"scene": scene, "scheduler": name, **values})
    return pd.DataFrame(rows)
