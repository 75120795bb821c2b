"""Imports run along the arrows, and nobody reaches inside another folder: its index is the door."""

import ast
import functools
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("jaxsim", "agents", "ddp_bench", "experiments", "analysis")
MAY_IMPORT = {
    "jaxsim": set(),
    "agents": {"jaxsim"},
    "experiments": {"jaxsim", "agents", "analysis"},
    "ddp_bench": {"analysis.records"},
    "analysis": set(),
}
MODULES = {
    ".".join(f.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): f
    for package in PACKAGES
    for f in (ROOT / package).rglob("*.py")
}
FOLDERS = {m for m, f in MODULES.items() if f.name == "__init__.py"}


def folder(module):
    return module if module in FOLDERS else module.rpartition(".")[0]


@functools.cache
def doors(module):
    """Names that a folder's index offers."""
    if module not in FOLDERS:
        return set()
    index = MODULES[module]
    lazy = index.with_suffix(".pyi")  # of an index whose modules load when a name is first used
    tree = ast.parse((lazy if lazy.exists() else index).read_text(encoding="utf-8"))
    lists = (n.value for n in tree.body if isinstance(n, ast.Assign) and "__all__" in ast.dump(n))
    return {name for value in lists for name in ast.literal_eval(value)}


def imported(file):
    """Modules of this project that a file imports, with the names taken from each."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            for name in node.names:
                full = f"{node.module}.{name.name}"
                whole = full in MODULES and name.name not in doors(node.module)
                yield full if whole else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def arrows():
    for module, file in MODULES.items():
        for target in imported(file):
            if target.split(".")[0] in PACKAGES:
                yield module, target


def test_imports_run_along_the_arrows():
    wrong = [
        f"{module} -> {target}"
        for module, target in arrows()
        if (package := module.split(".")[0]) != target.split(".")[0]
        and not any(f"{target}.".startswith(f"{m}.") for m in MAY_IMPORT[package])
    ]
    assert not wrong, wrong


def test_nobody_reaches_inside_a_folder():
    """From outside a folder, `from folder import name`: modules in the root of a package are open."""
    wrong = [
        f"{module} -> {target}"
        for module, target in arrows()
        if target in MODULES
        and target not in FOLDERS
        and folder(target) not in (folder(module), *PACKAGES)
    ]
    assert not wrong, wrong


def test_folders_form_no_circle():
    edges = {(folder(m), folder(t)) for m, t in arrows() if folder(m) != folder(t)}
    edges = {(a, b) for a, b in edges if a not in PACKAGES and b not in PACKAGES}
    while edges:  # peel off folders that import nobody
        leaves = {b for _, b in edges} - {a for a, _ in edges}
        assert leaves, f"circle among {sorted(edges)}"
        edges = {(a, b) for a, b in edges if b not in leaves}


def test_modules_and_folders_stay_readable():
    long = {m: n for m, f in MODULES.items() if (n := len(f.read_text().splitlines())) > 400}
    assert not long, long
    crowded = {d: n for d in FOLDERS if (n := sum(folder(m) == d for m in MODULES) - 1) > 16}
    assert not crowded, crowded


def test_tests_mirror_the_packages():
    """Every folder of tests is a folder of the code, but for the helpers and the notebooks."""
    tests = ROOT / "tests"
    folders = {f.parent.relative_to(tests) for f in tests.rglob("test_*.py")} - {
        Path("."),
        Path("notebooks"),
    }
    strange = {str(f) for f in folders if ".".join(f.parts) not in FOLDERS}
    strange -= {f for f in strange if (ROOT / f"{f}.py").exists()}
    assert not strange, strange


def defined(file):
    """Names that a module defines, or takes from another, at its top level."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name))


def test_lazy_indexes_offer_what_is_there():
    """A name that is missing would be noticed only by whoever asks for it."""
    stubs = [stub for package in PACKAGES for stub in (ROOT / package).rglob("__init__.pyi")]
    assert stubs
    for stub in stubs:
        listed = set()
        for node in ast.parse(stub.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ImportFrom):
                names = {alias.name for alias in node.names}
                here = stub.parent if node.module is None else stub.parent / f"{node.module}.py"
                modules = {f.stem for f in here.glob("*.py")} | {
                    f.parent.name for f in here.glob("*/*.py")
                }
                there = modules if here.is_dir() else set(defined(here))
                assert names <= there, (stub, names - there)
                listed |= names
        package = ".".join(stub.parent.relative_to(ROOT).parts)
        assert listed == doors(package), stub


def test_importing_the_commands_computes_nothing():
    """Options of JAX and XLA that a command sets would come too late after the first computation."""
    modules = sorted(
        f"experiments.{f.parent.name}.__main__" for f in ROOT.glob("experiments/*/__main__.py")
    )
    assert len(modules) > 5
    lines = [f"import {', '.join(modules)}", "import experiments.evaluate.evaluation"]
    lines += ["import experiments.train.training, experiments.respond.responder, jax"]
    lines += ["import experiments.kpi.scoreboard, experiments.bench.measure"]
    lines += ["jax.config.update('jax_num_cpu_devices', 2)", "assert jax.device_count() == 2"]
    command = [sys.executable, "-c", "\n".join(lines)]
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
