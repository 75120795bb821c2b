"""The ns-3 scenario: its tables carry the plan's bytes, a replay over ideal links takes the simulator's
time, and where ns-3 is installed the program runs."""

import csv
import dataclasses
import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.launches import LAUNCHES, MODEL, PREDICTED, named, spec

from experiments.plan.export import export_plan, job_of, passes_of
from experiments.plan.export.ns3 import wan_bytes
from jaxsim.files.errors import InputError
from jaxsim.learning import read_efficiency
from jaxsim.plan import Plan, Problem, schedules_among
from jaxsim.planning import PlanFamily, base_view
from jaxsim.step_time import EventBounds, event_step_cost
from jaxsim.workload import JobSpec, build_workload

# A model whose messages take a while on links of 5 Gbit/s, as a pipeline and as replicas.
WIDE = dataclasses.replace(MODEL, hidden=1024, ffn=2816, heads=16, vocab=4000)
PLANS = {
    "pipeline": ((["a", "b"],), {"tp": 2, "dp": 1, "schedule": "1f1b"}),
    "replicas": ((["a"], ["b"]), {"tp": 2, "dp": 1, "pp": 2, "schedule": "1f1b"}),
    "three": ((["a"], ["b"], ["c"]), {"tp": 2, "dp": 1, "pp": 1}),
}
FULL = {
    "wan_efficiency": 1.0,
    "wan_ring_efficiency": 1.0,
    "slow_link_gbps": 1e-9,
    "dp_overlap": 0.0,  # the ring follows the pipeline
}


def simulated(name, batch=9):
    """(job, cost) of one of PLANS, event-exact, over links whose whole rate messages reach."""
    cluster, groups = spec(), PLANS[name][0]
    asked = JobSpec(WIDE, batch // len(groups) * len(groups), 1024)
    plan = Plan.build(cluster, asked, groups, micro_batch=1, **PLANS[name][1])
    problem = Problem(
        build_workload([asked]).job(0),
        cluster.to_arrays(),
        cluster.calibration.replace(**{k: jnp.float32(v) for k, v in FULL.items()}),
        PlanFamily(cuts=("even",)).menu,
        read_efficiency("none"),
    )
    view = base_view(problem.cluster)
    bounds = EventBounds(8, 16, schedules=schedules_among(np.asarray(plan.schedule)))
    cost = event_step_cost(jax.tree.map(jnp.asarray, plan), problem, view, bounds)
    plan = jax.tree.map(np.asarray, plan)
    passes = passes_of(plan, problem, view)
    return job_of(plan, cluster, asked, "tiny", PREDICTED, passes), cost


def table(folder, name):
    with (folder / name).open() as file:
        return list(csv.DictReader(file))


def replayed_s(folder):
    """[s] of the tables over ideal links: one message at a time each way, first come, first served."""
    node = [int(row["node"]) for row in table(folder, "ranks.csv")]
    way = {}
    for row in table(folder, "links.csv"):
        ends, one_way_s = (int(row["node"]), int(row["other"])), float(row["one_way_s"])
        way[ends] = 8e-9 / float(row["gbps_out"]), one_way_s
        way[ends[::-1]] = 8e-9 / float(row["gbps_back"]), one_way_s
    rows = table(folder, "operations.csv")
    needs = [list(map(int, row["after"].split())) for row in rows]
    ends_s, arrives_s, free_s = {}, {}, {}

    def key(row):
        return row["source"], row["target"], row["tag"]

    def ready_s(row):
        before = needs[int(row["number"])]
        if not all(n in ends_s for n in before):
            return None
        at = max((ends_s[n] for n in before), default=0.0)
        if row["kind"] == "receive":
            return max(at, arrives_s[key(row)]) if key(row) in arrives_s else None
        return at

    left = {int(row["number"]): row for row in rows}
    while left:
        ready = [(t, n) for n, row in left.items() if (t := ready_s(row)) is not None]
        assert ready, "nothing can go on"
        at, number = min(ready)
        row = left.pop(number)
        ends_s[number] = at + (float(row["seconds"]) if row["kind"] == "compute" else 0.0)
        if row["kind"] == "send":
            source, target = node[int(row["source"])], node[int(row["target"])]
            inside = source == target
            queue = key(row)[:2] if inside else (source, target)
            per_byte_s, one_way_s = (0.0, 0.0) if inside else way[source, target]
            took = float(row["seconds"]) + per_byte_s * int(row["bytes"])
            free_s[queue] = max(at, free_s.get(queue, 0.0)) + took
            arrives_s[key(row)] = free_s[queue] + one_way_s
    return max(ends_s.values())


@pytest.mark.parametrize("name", [name for name in LAUNCHES if name != "one"])
def test_every_message_has_two_ends_and_nothing_waits_for_later_rows(name, tmp_path):
    job = named(name)
    export_plan(job, "ns3", tmp_path / "out")
    ends = {"send": {}, "receive": {}}
    for at, row in enumerate(table(tmp_path / "out", "operations.csv")):
        assert int(row["number"]) == at and all(int(n) < at for n in row["after"].split())
        if row["kind"] in ends:
            key = (row["source"], row["target"], row["tag"])
            assert key not in ends[row["kind"]]
            ends[row["kind"]][key] = row["bytes"]
    assert ends["send"] == ends["receive"] and ends["send"]
    assert replayed_s(tmp_path / "out") > 0
    readme = (tmp_path / "out" / "README.md").read_text()
    assert "ns-3 3.44" in readme and "## Not expressed" in readme
    assert subprocess.run(["bash", "-n", tmp_path / "out" / "run.sh"], check=False).returncode == 0


@pytest.mark.parametrize("name", PLANS)
def test_tables_have_the_bytes_and_take_the_time_of_the_simulator(name, tmp_path):
    job, cost = simulated(name)
    export_plan(job, "ns3", tmp_path / "out")
    assert wan_bytes(job) == pytest.approx(1e9 * float(cost.wan_gb.sum()), rel=1e-5)
    expected = float(cost.step_s - cost.optimizer_s)
    # Later stages are done earlier and begin their rings while the first still computes.
    assert 0.95 * expected < replayed_s(tmp_path / "out") < 1.001 * expected


def test_links_keep_both_their_rates(tmp_path):
    job = named("pipeline")
    slow = {("a", "b"): 2.0, ("b", "a"): 0.5}
    links = tuple(
        dataclasses.replace(link, gbps=slow.get((link.source, link.target), link.gbps))
        for link in job.links
    )
    export_plan(dataclasses.replace(job, links=links), "ns3", tmp_path / "out")
    first = table(tmp_path / "out", "links.csv")[0]
    assert (float(first["gbps_out"]), float(first["gbps_back"])) == (2.0, 0.5)
    assert float(first["one_way_s"]) == pytest.approx(0.015)


def test_what_it_cannot_play_is_refused_in_one_line(tmp_path):
    for job, said in (
        (named("one"), "nothing of this plan crosses"),
        (named("pipeline", schedule="zero_bubble"), "no operations of the schedule"),
        (named("replicas", batch=400_000), "operations a step, at most"),
    ):
        with pytest.raises(InputError, match=said) as error:
            export_plan(job, "ns3", tmp_path / "out")
        assert "\n" not in str(error.value) and not list(tmp_path.iterdir())


def installed():
    """The folder of ns-3: what NS3 says, or that of the Python package."""
    if "NS3" in os.environ:
        return os.environ["NS3"]
    found = importlib.util.find_spec("ns3")
    return None if found is None else str(Path(next(iter(found.submodule_search_locations or ()))))


# A ring under Cubic takes far longer than planned (docs/plan.md).
@pytest.mark.parametrize(
    ("name", "options", "most"), [("pipeline", [], 1.1), ("replicas", ["--segment=65000"], 2.0)]
)
def test_the_program_runs_and_a_warm_step_is_near_the_simulators(name, options, most, tmp_path):
    where = installed()
    if where is None or shutil.which("c++") is None:
        pytest.skip("ns-3 3.44 and a compiler are not installed; NS3 may name the folder of ns-3")
    job, cost = simulated(name)
    export_plan(job, "ns3", tmp_path / "out")
    done = subprocess.run(
        [tmp_path / "out" / "run.sh", "--steps=4", *options],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "NS3": where},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    expected = float(cost.step_s - cost.optimizer_s)
    steps = [float(line.split()[2]) for line in done.stdout.splitlines()]
    print(
        f"{name}: simulator {expected:.3f} s, ns-3 {steps}, tables {replayed_s(tmp_path / 'out')}"
    )
    assert len(steps) == 4 and steps[0] > steps[-1]  # slow start
    assert 0.95 * expected < steps[-1] < most * expected
