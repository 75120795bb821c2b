"""Suites: named lists of scenes, evaluated one after another into one folder, one table of all."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from tqdm import tqdm

from analysis.records import RunWriter, load
from experiments.options import from_mapping
from jaxsim.errors import InputError

SHIPPED = Path(__file__).parent / "configs" / "suites" / "suites.yaml"
KEYS = ("defaults", "scenes", "suites")
FILE_KEYS = ("cluster", "trace", "load")  # found beside the file that names them
# One evaluation: what came out and the folder with its records.
Evaluate = Callable[[Any], tuple[dict, Path]]


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


def load_suite(text: str) -> Suite:
    """The suite `NAME` of those that ship, or `FILE.yaml` (all scenes) or `FILE.yaml:NAME`.

    Raises InputError that names the file, the key and the known suites.
    """
    file, colon, name = text.partition(".yaml:")
    if colon or text.endswith(".yaml"):
        path = Path(f"{file}.yaml" if colon else text)
        try:
            body = yaml.safe_load(path.read_text())
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            why = " ".join(str(error).split())
            raise InputError(f"{path}: cannot be read as a suite: {why}") from None
        return _suite(body, name, str(path), path.parent)
    return _suite(yaml.safe_load(SHIPPED.read_text()), text, "suite", SHIPPED.parent)


def _suite(body: Any, name: str, source: str, folder: Path) -> Suite:
    if not isinstance(body, Mapping) or not isinstance(body.get("scenes"), Mapping):
        raise InputError(f"{source}: expected a mapping with the keys {', '.join(KEYS)}")
    unknown = sorted(set(body) - set(KEYS))
    if unknown:
        raise InputError(f"{source}: unknown key {unknown[0]!r}; allowed: {', '.join(KEYS)}")
    suites = {"": list(body["scenes"]), **(body.get("suites") or {})}
    if name not in suites:
        known = ", ".join(key for key in suites if key)
        raise InputError(f"{source}: {name!r} is no suite; known: {known}")
    scenes = {}
    for scene in suites[name]:
        if not isinstance(body["scenes"].get(scene), Mapping):
            known = ", ".join(body["scenes"])
            raise InputError(f"{source}: {name}: {scene!r} is no scene; known: {known}")
        scenes[scene] = _beside(body["scenes"][scene], folder)
    return Suite(name or Path(source).stem, body.get("defaults") or {}, scenes)


def _beside(scene: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The scene with its files looked for beside the suite's own."""
    found = {k: str(folder / scene[k]) for k in FILE_KEYS if scene.get(k)}
    return {**scene, **{k: path for k, path in found.items() if Path(path).exists()}}


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


def run_suite(config: Any, given: list[str], evaluate: Evaluate) -> tuple[dict, Path]:
    """Evaluate every scene that the folder has not finished yet, each in a folder of its own.

    Returns the summary, `{"suite", "wall_s", "scenes": {NAME: an evaluation's summary}}`, and the
    run folder. Raises InputError, RecordError, KeyboardInterrupt.
    """
    resume = config.resume is not None
    if resume:
        given = load(config.resume).run["config"]["given"]
    folder = config.resume or config.out
    RunWriter.check("suite", folder, resume)
    suite = load_suite(config.suite)
    scenes = scene_configs(suite, config, given)
    body = {"given": given, **dataclasses.asdict(dataclasses.replace(config, resume=None))}
    with RunWriter.create("suite", body, config.seeds, folder, resume) as writer:
        try:
            summary = _play(suite.name, scenes, writer, evaluate)
        except KeyboardInterrupt:
            tqdm.write(f"interrupted; go on with --resume {writer.dir}")
            raise
        writer.finish(summary)
    return summary, writer.dir


def _play(name: str, scenes: dict[str, Any], writer: RunWriter, evaluate: Evaluate) -> dict:
    summaries, wall_s = {}, 0.0
    with tqdm(total=len(scenes), desc=f"suite {name}", unit="scene") as bar:
        for scene, config in scenes.items():
            bar.set_postfix_str(scene)
            folder = writer.dir / scene
            if not (folder / "summary.json").is_file():
                where = "resume" if (folder / "run.json").is_file() else "out"
                evaluate(dataclasses.replace(config, **{where: str(folder)}))
            record = load(folder)
            summaries[scene] = record.summary
            wall_s += _seconds(record.run)
            writer.write_table("scenes", _rows(summaries))
            bar.update()
    return {"suite": name, "wall_s": wall_s, "scenes": summaries}


def _seconds(run: dict) -> float:
    """[s] from the first start of a run, or from its last resumption, to its end."""
    begun = [run["started"], *run.get("resumed", [])][-1]
    return (datetime.fromisoformat(run["ended"]) - datetime.fromisoformat(begun)).total_seconds()


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
            rows.append({"scene": scene, "scheduler": name, **values})
    return pd.DataFrame(rows)
