"""Documentation: links lead somewhere, files it names are there, the drawing is of this project."""

import ast
import importlib.util
import re
from xml.etree import ElementTree

import pytest
import yaml
from helpers.docs_pages import ROOT, pages

PAGES = pages()
LINK = re.compile(r"\]\(([^()\s]+)\)")
PACKAGES = ("jaxsim", "agents", "ddp_bench", "experiments", "analysis", "tests", "docs")
QUOTED = re.compile(rf"`((?:{'|'.join(PACKAGES)})/[\w./-]*)`")


def name_of(page):
    return str(page.relative_to(ROOT))


def text_of(page):
    return page.read_text(encoding="utf-8")


def prose(page):
    """The page without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", text_of(page), flags=re.MULTILINE | re.DOTALL)


def anchors(page):
    """What `#...` may follow the page's name: its headings, as they are numbered on the web."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_to_files_and_headings(page):
    for link in LINK.findall(prose(page)):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{name_of(page)}: {link}"
        assert target.is_relative_to(ROOT), f"{name_of(page)}: {link} leaves the project"
        if anchor:
            assert anchor in anchors(target), f"{name_of(page)}: no heading for {link}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_and_folders_that_are_named_are_there(page):
    missing = [path for path in QUOTED.findall(text_of(page)) if not (ROOT / path).exists()]
    assert not missing, missing


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_blocks_of_code_name_their_language(page):
    fences = re.findall(r"^```(.*)$", text_of(page), re.MULTILINE)
    assert len(fences) % 2 == 0
    assert all(fences[::2]), fences[::2]
    assert not any(fences[1::2])


def test_every_page_of_docs_is_reached_from_its_index():
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / link).resolve() for link in LINK.findall(text_of(index))}
    missing = [name_of(p) for p in (ROOT / "docs").rglob("*.md") if p != index and p not in linked]
    assert not missing, missing


def test_the_readme_is_short():
    assert len(text_of(ROOT / "README.md").splitlines()) <= 160


def test_the_readme_leads_to_link_plan_rival_and_figure():
    """What a reader who does not know the project looks for, and the folder that must be named."""
    readme = text_of(ROOT / "README.md")
    for folder in ("jaxsim/network/", "jaxsim/planning/", "agents/planners/", "analysis/figures/"):
        assert f"`{folder}`" in readme


def drawing():
    file = ROOT / "docs" / "images" / "draw_loop.py"
    spec = importlib.util.spec_from_file_location("draw_loop", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_drawing_that_is_kept_is_what_its_script_draws():
    drawn = {text.get_text() for text in drawing().draw().axes[0].texts}
    kept = ElementTree.parse(ROOT / "docs" / "images" / "loop.svg")
    words = {"".join(text.itertext()) for text in kept.iter("{http://www.w3.org/2000/svg}text")}
    assert words == drawn


def test_the_drawing_names_packages_and_commands_that_there_are():
    from experiments.cli import COMMANDS

    for _, package, _, command in drawing().STEPS:
        assert (ROOT / package.replace(".", "/")).is_dir(), package
        if command.startswith("hippo "):
            assert set(command.removeprefix("hippo ").split(", ")) <= set(COMMANDS), command


def test_import_paths_of_the_changelog_are_there():
    rows = re.findall(r"^\| `.*` \| `([\w.]+)` \|$", text_of(ROOT / "CHANGELOG.md"), re.MULTILINE)
    missing = [module for module in rows if not (ROOT / module.replace(".", "/")).is_dir()]
    assert len(rows) > 10 and not missing, missing


def named_in(page):
    return set(re.findall(r"`([^`\n]+)`", text_of(ROOT / page)))


def test_every_scheduler_is_among_the_rivals():
    import agents

    assert not set(agents.names()) - named_in("docs/rivals.md") - {"hi_ppo"}


def test_every_suite_and_every_way_in_which_links_move_is_listed():
    from experiments.evaluate.suites import SHIPPED
    from jaxsim.network import FITTED_KINDS

    assert not set(yaml.safe_load(SHIPPED.read_text())["suites"]) - named_in("docs/scoreboard.md")
    kinds = {"none", "uniform", "ou", *FITTED_KINDS}
    assert not kinds - named_in("docs/simulator.md")


def test_the_map_of_the_simulator_names_every_folder():
    folders = {f"{index.parent.name}/" for index in (ROOT / "jaxsim").glob("*/__init__.py")}
    assert not folders - named_in("jaxsim/README.md")


def test_the_citation_is_complete():
    body = yaml.safe_load(text_of(ROOT / "CITATION.cff"))
    must = {"cff-version", "message", "title", "authors", "license", "version", "type"}
    assert must <= set(body)
    assert body["license"] == "Apache-2.0"
    project = (ROOT / "pyproject.toml").read_text()
    assert f'version = "{body["version"]}"' in project


# --- indexes of folders -----------------------------------------------------------------------

INDEXES = [
    path for package in PACKAGES[:5] for path in sorted((ROOT / package).rglob("__init__.py"))
]


@pytest.mark.parametrize("index", INDEXES, ids=name_of)
def test_an_index_names_every_module_of_its_folder(index):
    """Its docstring is a map: one line each, and nothing that is not there."""
    folder = index.parent
    there = {file.stem for file in folder.glob("*.py")} | {
        f.parent.name for f in folder.glob("*/__init__.py")
    }
    there -= {"__init__", "__main__"}
    told = ast.get_docstring(ast.parse(text_of(index))) or ""
    named = set(re.findall(r"^(\w+)  +\S", told, re.MULTILINE))
    assert named >= there, f"not named: {sorted(there - named)}"
    strange = {name for name in named - there if not (folder / name).is_dir()}
    assert not strange, strange
