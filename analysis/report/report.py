"""A report from run folders: `python -m analysis.report RUN [RUN ...]`.

It writes report.md, its figures and their data into the first run's folder (overview.md where that
run is a data-parallel one, which has a report.md of its own). Every number comes from the records.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath
from typing import NamedTuple

from analysis import figures
from analysis.records import RecordError, RunRecord, load, replacing
from analysis.report import html
from analysis.report.language import LANGUAGES, translated
from analysis.report.sections import (
    MISSING,
    VALIDATION_METHOD,
    Section,
    cell,
    compared_training,
    sections_of,
    table,
)
from analysis.statistics import bootstrap as statistics

# In a data-parallel run, report.md is what `analysis.analyze_metrics` writes.
_TARGETS = {"ddp": "overview"}
PACKAGES = ("analysis", "ddp_bench", "experiments")  # whose modules are commands
_MISSING_VALUES = "- A dash means that a value was not measured."
METHOD = f"""\
- **Progress** is training work really done in an episode: downtime, transfers and stalls count as
  no progress. Progress relative to clairvoyant is taken on each scenario, then averaged.
- **Clairvoyant** knows the future of every link and load and plays the best sequence of plans of
  the plan table, moves paid for. It cannot be built; it says what was possible. The sequence is
  exact but for one thing: it never gives up a move halfway, which the simulator allows where the
  move's target has lost a domain.
- **Regret** [%] = 100 (1 - progress / clairvoyant's progress).
- **To bound** [%] is the same against the best plan of every interval with moves free of charge.
  No sequence of plans of that family can beat it; batch shares are proportional to the groups'
  speed, and other shares lie outside the family.
- **Headroom** of a scenario [%] is what clairvoyant gains over the best plan that never changes;
  headroom of a scheduler what it gains over that scheduler, from the mean of relative progress.
- **Intervals** are percentile bootstrap intervals of the mean, {100 * statistics.LEVEL:g} % nominal
  coverage, {statistics.RESAMPLES:,} resamples. Scenarios are resampled as the independent units
  they are; where a scheduler has several policy seeds these are resampled as well, crossed with the
  scenarios. With few policy seeds the part of the interval that comes from them is too narrow.
- **Paired gains** compare two schedulers on the same scenario, hence under the same links and load,
  before averaging.
- **Utilisation** is useful FLOPs over the peak FLOPs of the GPUs that were available."""

DDP_METHOD = """\
- **Compute time** is forward plus backward of one rank before the gradient sum: CUDA events on a
  GPU, thread CPU time on a CPU. A step's time is that of its slowest rank. The first 10 steps of a
  run of at least 40 are left out.
- **Changes** are of the mean or the 95th percentile over steps, with 95 % bootstrap intervals over
  the same steps of both arms."""


class Page(NamedTuple):
    """A section of the report, the run it is about, and the file name of each of its pictures."""

    record: RunRecord
    section: Section
    files: list[str]


def _method(records: Sequence[RunRecord]) -> str:
    """Definitions of the numbers that runs of these kinds report."""
    kinds = {record.run["kind"] for record in records}
    parts = [VALIDATION_METHOD] if kinds & {"validate", "calibrate"} else []
    parts += [METHOD] if kinds - {"validate", "calibrate", "fidelity", "ddp"} else []
    parts += [DDP_METHOD] if "ddp" in kinds else []
    return "\n".join([*parts, _MISSING_VALUES])


def command_of(argv: Sequence[str] | None) -> str:
    """The command line that starts the same run, from the `argv` a run recorded.

    A run that was started from within Python has no command; a comment says so.
    """
    program, *arguments = argv or [""]
    path = PurePath(program)
    if path.name in ("", "-c", "-m"):
        return "# a run that was started from Python code, not by a command"
    if path.suffix == ".py" and path.parent.name.isidentifier():
        parts = path.with_suffix("").parts
        first = max((i for i, part in enumerate(parts) if part in PACKAGES), default=-2)
        module = ".".join(parts[first:]).removesuffix(".__main__")
        return shlex.join(["python", "-m", module, *arguments])
    return shlex.join([path.name, *arguments])


def _pages(records: Sequence[RunRecord], notes: list[str]) -> Iterator[Page]:
    """Every section of every run with file names for its pictures; repeated names are numbered."""
    seen: Counter[str] = Counter()
    found = [(record, section) for record in records for section in sections_of(record, notes)]
    found += [(records[0], section) for section in compared_training(records, notes)]
    for record, section in found:
        files = []
        for picture in section.pictures:
            seen[picture.name] += 1
            number = "" if seen[picture.name] == 1 else f"-{seen[picture.name]}"
            files.append(f"{picture.name}{number}.png")
        yield Page(record, section, files)


def _page_text(page: Page, suffix: str) -> list[str]:
    """Title, text, and each picture with its caption."""
    title = page.section.title
    parts = [f"## {title}{suffix}"]
    if page.section.text:
        parts.append(page.section.text)
    for picture, file in zip(page.section.pictures, page.files, strict=True):
        parts += [f"![{title}](figures/{file})", f"*{picture.caption}*"]
        parts.append(f"[Data of the figure](figures/{PurePath(file).with_suffix('.csv')})")
    return [*parts, f"Numbers from `{page.record.dir}`."]


def _run_text(record: RunRecord) -> list[str]:
    """What ran, where and with which settings."""
    run = record.run
    machine = run.get("machine") or {}
    commit = run.get("git_commit") or "outside version control"
    if run.get("git_dirty"):
        commit += ", with uncommitted changes"
    packages = ", ".join(f"{name} {v}" for name, v in (run.get("packages") or {}).items())
    rows = {
        "folder": record.dir,
        "kind, status": f"{run['kind']}, {run['status']}",
        "seed": run["seed"],
        "started, ended (UTC)": f"{run.get('started')}, {run.get('ended') or MISSING}",
        "commit": commit,
        "machine": ", ".join(f"{key} {v}" for key, v in machine.items() if v is not None),
        "packages": packages,
    }
    config = json.dumps(run["config"], indent=2, ensure_ascii=False)
    return [
        f"### {run['run_id']}",
        table(["what", "value"], ([key, cell(str(value))] for key, value in rows.items()), 2),
        f"```json\n{config}\n```",
    ]


def _reproduction(records: Sequence[RunRecord]) -> list[str]:
    """The commands that make the runs again, in the order in which they were started."""
    lines = []
    ordered = sorted(records, key=lambda record: str(record.run.get("started")))
    for commit in dict.fromkeys(record.run.get("git_commit") for record in ordered):
        lines += [f"git checkout {commit}"] if commit else []
        same = [record for record in ordered if record.run.get("git_commit") == commit]
        lines += [command_of(record.run.get("argv")) for record in same]
    folders = [str(record.dir) for record in records]
    lines.append(shlex.join(["python", "-m", "analysis.report", *folders]))
    return ["## Reproduce", "```bash\n" + "\n".join(dict.fromkeys(lines)) + "\n```"]


def _compose(records: Sequence[RunRecord], pages: Sequence[Page], notes: Sequence[str]) -> str:
    """The whole report as Markdown."""
    parts = ["# Report: " + ", ".join(record.run["run_id"] for record in records)]
    for record in records:
        if record.run["status"] != "finished":
            run_id, status = record.run["run_id"], record.run["status"]
            parts.append(f"**Warning.** The run {run_id} is marked `{status}`.")
    kinds = Counter(record.run["kind"] for record in records)
    for page in pages:
        run = page.record.run
        alone = kinds[run["kind"]] == 1 or page.section.joint
        parts += _page_text(page, "" if alone else f" ({run['run_id']})")
    if notes:
        parts += ["## Left out", "\n".join(f"- {note}" for note in notes)]
    parts += ["## What was run", *(text for record in records for text in _run_text(record))]
    parts += ["## How the numbers are made", _method(records), *_reproduction(records)]
    return "\n\n".join(parts) + "\n"


def write_report(runs: Sequence[str | Path], language: str = "en", as_html: bool = False) -> Path:
    """Write report.md and figures/ into the first run's folder; everything is drawn before.

    Where the first run is a data-parallel one, whose own report is report.md, this is overview.md.
    In another language than English it is report.zh.md. Beside each picture lies a CSV file of what
    it shows.

    Args:
        runs: run folders; an evaluation first and the training run it came from beside it gives
            the whole story, but any mixture of kinds will do.
        language: one of LANGUAGES.
        as_html: also write one HTML file that holds everything, with tooltips on the figures.

    Returns:
        The path of the report, of the HTML file if there is one.

    Raises:
        RecordError: when `runs` is empty, a folder is no run, a table that is there lacks a column,
            the language is unknown, HTML cannot be written for want of a package, or the first
            folder cannot be written.
    """
    folders = list(dict.fromkeys(Path(run) for run in runs))
    if not folders:
        raise RecordError("no run folder given; allowed is one or more")
    if language not in LANGUAGES:
        raise RecordError(f"language {language!r}; allowed are {', '.join(LANGUAGES)}")
    if as_html:
        html.require()
    notes: list[str] = []
    records = [load(folder) for folder in folders]
    pages = list(_pages(records, notes))
    text, unknown = translated(_compose(records, pages, notes), language)
    if unknown:
        count = f"{len(unknown)} sentence{'s' if len(unknown) > 1 else ''}"
        print(f"report: {count} without a form in {language!r}: in English", file=sys.stderr)
    stem = _TARGETS.get(records[0].run["kind"], "report")
    target = folders[0] / f"{stem}{'' if language == 'en' else f'.{language}'}.md"
    try:
        shown = _save_pictures(pages, folders[0] / "figures", as_html)
        with replacing(target) as file:
            file.write(text)
        if as_html:
            target = target.with_suffix(".html")
            with replacing(target) as file:
                file.write(html.page(text, shown, language))
    except OSError as error:
        raise RecordError(f"{folders[0]}: cannot be written: {error.strerror}") from None
    return target


def _save_pictures(pages: Sequence[Page], folder: Path, placed: bool) -> dict[str, html.Shown]:
    """Every picture with its data beside it; `placed`: also where on it the marks are."""
    folder.mkdir(exist_ok=True)
    shown = {}
    for page in pages:
        for picture, name in zip(page.section.pictures, page.files, strict=True):
            path = folder / name
            figures.save(picture.figure, path)
            table = figures.marks(picture.figure)
            with replacing(path.with_suffix(".csv")) as file:
                table.drop(columns="axes").dropna(axis=1, how="all").to_csv(file, index=False)
            if placed:
                shown[name] = html.Shown(path, table, figures.places(picture.figure, table))
    return shown
