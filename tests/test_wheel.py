"""The wheel works in an environment of its own and from a folder that is not the project's."""

import importlib.metadata
import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BUILDER = ("setuptools", (77,))


def ran(*command, cwd=None):
    """Standard output of a command that succeeds; the project is not on its path."""
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=clean, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{command}: {done.stderr[-2000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy: building leaves folders behind."""
    name, least = BUILDER
    try:
        found = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        found = "0"
    if int(found.split(".")[0]) < least[0]:
        pytest.skip(f"{name} {found} cannot build the wheel; {least[0]} can")
    copy, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    files = ran("git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard")
    for file in files.splitlines():
        if (ROOT / file).is_file():
            (copy / file).parent.mkdir(parents=True, exist_ok=True)
            (copy / file).write_bytes((ROOT / file).read_bytes())
    build = ("--no-deps", "--no-build-isolation", "--quiet", "--wheel-dir", out, copy)
    ran(sys.executable, "-m", "pip", "wheel", *build)
    (path,) = out.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def hippo(wheel, tmp_path_factory):
    """The command of an environment that holds the wheel, its dependencies layered under it."""
    home = tmp_path_factory.mktemp("environment")
    ran(sys.executable, "-m", "venv", home)
    site = Path(
        ran(home / "bin" / "python", "-c", "import site; print(site.getsitepackages()[0])").strip()
    )
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    install = ("--no-deps", "--no-index", "--quiet", "--force-reinstall", wheel)
    ran(home / "bin" / "python", "-m", "pip", "install", *install)
    return home / "bin" / "hippo"


@pytest.mark.nightly
def test_the_wheel_holds_the_data_that_ships(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    for wanted in ("hi_ppo.msgpack", "sentences.zh.yaml", "ddp_report.zh.md", "default.yaml"):
        assert any(name.endswith(wanted) for name in names), wanted
    assert not [name for name in names if name.startswith(("tests/", "docs/", "notebooks/"))]


@pytest.mark.nightly
def test_the_command_works_from_another_folder(hippo, tmp_path):
    assert re.fullmatch(r"hippo \d+\.\d+.*", ran(hippo, "--version", cwd=tmp_path).strip())
    assert "jax" in ran(hippo, "doctor", cwd=tmp_path)
    where = "import jaxsim, sys; print(jaxsim.__file__)"
    file = ran(hippo.parent / "python", "-c", where, cwd=tmp_path).strip()
    assert file.startswith(str(hippo.parents[1])), "another copy of the project was tried"
    asked = ("--cluster", "four-aws-regions", "--model", "llama-7b", "--dry-run")
    assert "four-aws-regions" in ran(hippo, "plan", *asked, cwd=tmp_path)
