"""Documentation: its Python runs, its files are read by the readers of such files."""

import importlib
import json

import pytest
from helpers.docs_pages import ROOT, blocks, of_format, pages

from experiments.evaluate.suites import load_suite
from jaxsim.cluster import parse_cluster
from jaxsim.load import read_jobs, read_load_trace
from jaxsim.network import load_link_processes, read_network_trace
from jaxsim.workload import load_model

# What a snippet uses -> where it lives: a page is run once all that it uses is there.
USED = {
    "jaxsim.make": ("jaxsim", "make"),
    "agents.make": ("agents", "make"),
    "TableScheduler": ("agents.protocol", "TableScheduler"),
}
PYTHON = {page: [b for b in blocks("python") if b.page == page] for page in pages()}


def name_of(page):
    return str(page.relative_to(ROOT))


def missing(code):
    """What of USED the code names and is not there."""
    names = [USED[word] for word in USED if word in code]
    return [f"{m}.{name}" for m, name in names if not hasattr(importlib.import_module(m), name)]


@pytest.mark.usefixtures("scoring_is_optimised")
@pytest.mark.parametrize(
    "page",
    [
        # Its scheduler is played at full size.
        pytest.param(
            p, marks=pytest.mark.nightly if p.stem == "add-a-scheduler" else pytest.mark.slow
        )
        for p, found in PYTHON.items()
        if found
    ],
    ids=name_of,
)
def test_python_of_a_page_runs_from_top_to_bottom(page, monkeypatch, tmp_path):
    lacking = missing("\n".join(block.text for block in PYTHON[page]))
    if lacking:
        pytest.skip(f"uses {', '.join(lacking)}, which is not there")
    monkeypatch.chdir(tmp_path)
    space = {"__name__": "__main__"}
    for block in PYTHON[page]:
        exec(compile("\n" * block.line + block.text, block.name, "exec"), space)


def test_the_readme_starts_with_five_lines_of_simulator_and_ten_of_a_scheduler():
    simulator, scheduler = (b.text.strip().splitlines() for b in PYTHON[ROOT / "README.md"])
    assert len([line for line in simulator if line and not line.startswith("import")]) <= 5
    definition = next(i for i, line in enumerate(scheduler) if line.startswith("class "))
    assert len(scheduler[definition:]) <= 10


# --- files ------------------------------------------------------------------------------------


@pytest.fixture
def cluster():
    return parse_cluster(of_format("Cluster", "yaml")[0], "docs")


def test_clusters_are_read(cluster):
    assert cluster.domains == ("north", "south", "west")
    whole, gpu, domains = of_format("Cluster", "yaml")
    assert (
        parse_cluster(whole.replace("gpu: A100-80GB\n", gpu), "docs").gpu_specs[0].memory_gb == 85.9
    )
    plain = whole[whole.index("domains:") : whole.index("intra_domain:")]
    mixed = parse_cluster(whole.replace(plain, domains), "docs")
    assert mixed.gpu_of == ("A100-80GB", "H100-80GB", "A100-80GB")
    readme = [b for b in blocks("yaml") if b.page == ROOT / "README.md"]
    assert parse_cluster(readme[0].text, "README").to_yaml() == cluster.to_yaml()


def test_a_model_is_read(tmp_path):
    (tmp_path / "model.yaml").write_text(of_format("Model", "yaml")[0])
    assert load_model(str(tmp_path / "model.yaml")) == load_model("llama-7b")


def test_traces_are_read(cluster, tmp_path):
    for text in of_format("Trace", "csv"):
        (tmp_path / "trace.csv").write_text(text)
        factors = read_network_trace(tmp_path / "trace.csv", cluster, 60.0)
        assert factors[1, 0, 1] == pytest.approx(0.47, abs=1e-3)


def test_link_processes_are_read(tmp_path):
    (tmp_path / "links.yaml").write_text(of_format("Link processes", "yaml")[0])
    assert load_link_processes(tmp_path / "links.yaml").kind == "heavy"


def test_a_load_is_read(cluster, tmp_path):
    (tmp_path / "load.csv").write_text(of_format("Load", "csv")[0])
    held = read_load_trace(tmp_path / "load.csv", cluster.domains, cluster.gpus, 60.0)
    assert held[0, 0] == 4.0


def test_jobs_are_read(tmp_path):
    (tmp_path / "jobs.csv").write_text(of_format("Jobs", "csv")[0])
    assert [job.model for job in read_jobs(tmp_path / "jobs.csv")] == ["llama-7b", "llama-13b"]


def test_a_suite_is_read(tmp_path):
    (tmp_path / "suite.yaml").write_text(of_format("Suites", "yaml")[0])
    assert list(load_suite(str(tmp_path / "suite.yaml")).scenes) == [
        "four",
        "sixteen",
        "loaded",
        "bursts",
    ]


def test_json_is_json():
    for block in blocks("json"):
        for line in block.text.splitlines():
            json.loads(line)
