"""Try the sample of deliberate errors; the last line says how many were noticed.

    PYTHONPATH=tests python -m mutants --out outputs/mutants

The tests of an error are those that stand near it, first the fast ones; what they do not notice, those
for the night are asked about. The work tree is never touched: every worker has a copy of it. A run
that was interrupted goes on from its results.jsonl; an error that was judged is judged again after its
file has changed, and one that survived after its tests have, too.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import yaml

from mutants.operators import Mutant
from mutants.rooms import ROOMS, near_tests
from mutants.sample import SEED, draw

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
COPIED = ("jaxsim", "agents", "analysis", "experiments", "ddp_bench", "tests", "pyproject.toml")
SLOWER, SLACK_S = 4.0, 60.0  # a pytest may take so many times what it takes without an error
DAY, NIGHT, NIGHT_S = (
    "not nightly",
    "nightly",
    1800.0,
)  # marks of tests, and the most the latter take


def main() -> int:
    """Parse, try, report; 1 where too few were noticed or a survivor has no reason."""
    options = parse()
    sample = draw(ROOT, options.seed, options.count, options.only)
    if options.list:
        for mutant in sample:
            print(line_of(mutant))
        print(f"{len(sample)} errors")
        return 0
    run = Run(Path(options.out), options.workers)
    run.check_tests({near_tests(m.room, m.file) for m in sample if run.known(m) is None})
    run.try_all(sample)
    return report(sample, run, options.at_least)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--out", default="outputs/mutants", help="results and logs; resumed")
    parser.add_argument("--only", nargs="+", default=(), metavar="WORD", help="rooms or paths")
    parser.add_argument("--seed", type=int, default=SEED, help="of the sample")
    parser.add_argument("--count", type=int, help="errors in all rooms together")
    parser.add_argument("--workers", type=int, default=2, help="processes; each takes a core")
    parser.add_argument("--at-least", type=float, default=88.0, help="per cent to be noticed")
    parser.add_argument("--list", action="store_true", help="name the errors, try none")
    options = parser.parse_args()
    unknown = [w for w in options.only if w not in ROOMS and "/" not in w and ".py" not in w]
    if unknown:
        parser.error(f"--only {' '.join(unknown)}: rooms are {', '.join(ROOMS)}")
    return options


class Run:
    """Results so far, and the workers that add to them."""

    def __init__(self, out: Path, workers: int):
        self.out, self.workers = out.resolve(), workers
        self.out.mkdir(parents=True, exist_ok=True)
        self.file = self.out / "results.jsonl"
        self.lock = threading.Lock()
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        self.results = {r["id"]: r for r in map(json.loads, lines)}
        self.normal_s: dict[tuple[str, ...], float] = {}
        self.code = ""

    def known(self, mutant: Mutant) -> dict | None:
        """The judgement of an earlier run, where it still holds."""
        result = self.results.get(mutant.id)
        if result is None or result["file"] != _digest([mutant.file]):
            return None
        survived = result["outcome"] == "survived"
        return None if survived and result["tests"] != _tests_digest(mutant) else result

    def check_tests(self, wanted: set[tuple[str, ...]]) -> None:
        """Run every list of tests without an error: it must pass, and its time sets the limit. It
        also fills the compile cache."""
        files = sorted(f for name in COPIED for f in (ROOT / name).rglob("*.py"))
        self.code = _digest([str(f.relative_to(ROOT)) for f in files])
        for tests in wanted:
            passed = self.results.get(f"passes: {' '.join(tests)}")
            if passed and passed["file"] == self.code:
                self.normal_s[tests] = passed["seconds"]
        self._share(sorted(wanted - set(self.normal_s)), self._check)

    def try_all(self, sample: list[Mutant]) -> None:
        """Judge every error that is not judged yet."""
        self._share([m for m in sample if self.known(m) is None], self._try)

    def _share(self, work: list, do) -> None:
        queue, failures = list(reversed(work)), []

        def worker():
            try:
                with _Worker(self.out) as one:
                    while not failures:
                        with self.lock:
                            if not queue:
                                return
                            item = queue.pop()
                        do(one, item)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=worker) for _ in range(min(self.workers, len(work)))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]

    def _check(self, worker: _Worker, tests: tuple[str, ...]) -> None:
        answer = worker.ask(tests, DAY, NIGHT_S)
        if answer["outcome"] == "untested":
            answer = worker.ask(tests, NIGHT, NIGHT_S)
        if answer["outcome"] != "survived":
            sys.exit(f"{' '.join(tests)}: {answer} without any error; see {worker.log}")
        with self.lock:
            self.normal_s[tests] = answer["seconds"]
            passed = {"id": f"passes: {' '.join(tests)}", "file": self.code}
            self._record(passed | {"seconds": answer["seconds"]})
            print(
                f"passes in {answer['seconds']:5.1f} s without an error: {' '.join(tests)}",
                flush=True,
            )

    def _try(self, worker: _Worker, mutant: Mutant) -> None:
        tests = near_tests(mutant.room, mutant.file)
        with worker.with_error(mutant):
            answer = worker.ask(tests, DAY, SLOWER * self.normal_s[tests] + SLACK_S)
            if answer["outcome"] in ("survived", "untested"):
                night = worker.ask(tests, NIGHT, NIGHT_S)
                answer = answer if night["outcome"] == "untested" else night
        if answer["outcome"] == "error":
            sys.exit(f"{line_of(mutant)}: pytest did not run; see {worker.log}")
        with self.lock:
            holds_for = {"file": _digest([mutant.file]), "tests": _tests_digest(mutant)}
            self._record({"id": mutant.id, **holds_for, **answer})
            shown = f"{answer['outcome']:8} {answer['seconds']:5.1f} s  {line_of(mutant)}"
            print(f"{shown}  [{answer['test']}]" if answer["test"] else shown, flush=True)

    def _record(self, result: dict) -> None:
        self.results[result["id"]] = result
        with self.file.open("a") as handle:
            handle.write(json.dumps(result) + "\n")


class _Worker:
    """A copy of the tree and the process that runs tests in it."""

    def __init__(self, out: Path):
        self.folder = Path(tempfile.mkdtemp(prefix="mutants-"))
        self.tree = self.folder / "tree"
        self.log = out / f"{self.folder.name}.log"
        self.tree.mkdir()
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                ignored = shutil.ignore_patterns("__pycache__", ".hypothesis", "outputs")
                shutil.copytree(source, self.tree / name, ignore=ignored)
            else:
                shutil.copy(source, self.tree)
        self.clock = int(time.time())
        # PYTHONPATH: whatever is installed, the copy is what is imported.
        extra = {"PYTHONPATH": str(self.tree), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
        cache = os.environ.get("JAX_COMPILATION_CACHE_DIR", str(self.folder / "jax"))
        self.nursery = subprocess.Popen(
            [sys.executable, str(HERE / "nursery.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=self.tree,
            env=os.environ | extra | {"JAX_COMPILATION_CACHE_DIR": cache},
        )

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, *_) -> None:
        self.nursery.stdin.close()
        self.nursery.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def ask(self, tests: tuple[str, ...], marks: str, limit_s: float) -> dict:
        """Run tests with these marks in the copy."""
        job = {"tree": str(self.tree), "tests": tests, "marks": marks}
        job |= {"limit_s": limit_s, "log": str(self.log)}
        self.nursery.stdin.write(json.dumps(job) + "\n")
        self.nursery.stdin.flush()
        return json.loads(self.nursery.stdout.readline())

    def with_error(self, mutant: Mutant):
        """A context in which the copy has the error."""
        return _Error(self, self.tree / mutant.file, mutant)

    def write(self, file: Path, text: bytes) -> None:
        """Compiled modules are told apart by the second they were written in."""
        file.write_bytes(text)
        self.clock += 2
        os.utime(file, (self.clock, self.clock))


class _Error:
    def __init__(self, worker: _Worker, file: Path, mutant: Mutant):
        self.worker, self.file, self.mutant = worker, file, mutant
        self.source = file.read_bytes()

    def __enter__(self) -> None:
        self.worker.write(self.file, self.mutant.apply(self.source))

    def __exit__(self, *_) -> None:
        self.worker.write(self.file, self.source)


def report(sample: list[Mutant], run: Run, at_least_pct: float) -> int:
    """List the survivors with their reasons, then the count."""
    reasons = read_reasons()
    survivors = [m for m in sample if run.known(m)["outcome"] == "survived"]
    unexplained = [m for m in survivors if m.id not in reasons]
    if survivors:
        print("\nsurvivors")
    for mutant in survivors:
        print(f"{line_of(mutant)}\n    {reasons.get(mutant.id, 'NOT EXPLAINED')}")
    killed = len(sample) - len(survivors)
    print(f"{killed} of {len(sample)} killed")
    return int(bool(unexplained) or 100.0 * killed < at_least_pct * len(sample))


def read_reasons() -> dict[str, str]:
    """Why survivors are harmless, by id."""
    return yaml.safe_load((HERE / "harmless.yaml").read_text())


def line_of(mutant: Mutant) -> str:
    """One error on one line."""
    before, after = (" ".join(text.split()) for text in (mutant.before, mutant.after))
    place = f"{mutant.file}:{mutant.line}:{mutant.column}"
    return f"{mutant.id} {place}: {mutant.kind}: {before} -> {after}"


def _tests_digest(mutant: Mutant) -> str:
    paths = [ROOT / test for test in near_tests(mutant.room, mutant.file)]
    inside = (sorted(p.rglob("*.py")) if p.is_dir() else [p] for p in paths)
    return _digest([str(f.relative_to(ROOT)) for files in inside for f in files])


def _digest(files: list[str]) -> str:
    return hashlib.sha256(b"".join((ROOT / f).read_bytes() for f in files)).hexdigest()[:10]


if __name__ == "__main__":
    sys.exit(main())
