"""`cluster from-grid` and `cluster trace`: exact on hand-made files, one line for a bad one."""

import gzip
import itertools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from experiments.cluster.__main__ import main
from experiments.common.files import write_text
from jaxsim.cluster.cluster import load_cluster
from jaxsim.files.errors import InputError
from jaxsim.network.replay import (
    FLOOR,
    MIN_INTERVALS,
    ROUNDS,
    draw_paths,
    interval_means,
    read_measurements,
    relative_movement,
)
from jaxsim.network.trace import read_network_trace

DATA = Path(__file__).parents[2].parent / "shared" / "data"
GRIDS = {
    "throughput": DATA / "wan" / "skyplane_throughput_2022-01-30.csv",
    "latency": DATA / "wan" / "skyplane_latency_2022-04-16.csv",
    "cost": DATA / "wan" / "skyplane_egress_cost_usd_per_gb_2022-05.csv",
}
TESTS_CSV = DATA / "traces" / "cloudpilot_iperf3_tests.csv"
SAMPLES_CSV = DATA / "traces" / "cloudpilot_iperf3_1s.csv.gz"
REAL_REGIONS = "aws:eu-south-1,aws:us-east-2,azure:canadacentral,gcp:europe-west2-a"

needs_grids = pytest.mark.skipif(
    not all(path.is_file() for path in GRIDS.values()), reason=f"no measured grids in {DATA}/wan"
)
needs_paths = pytest.mark.skipif(
    not (TESTS_CSV.is_file() and SAMPLES_CSV.is_file()),
    reason=f"no measured paths in {DATA}/traces",
)

REGIONS = ("aws:east", "aws:west", "gcp:north-a")
PAIRS = [(a, b) for a in REGIONS for b in REGIONS if a != b]
GBPS = dict(zip(PAIRS, (5.0, 4.0, 3.0, 2.5, 6.25, 7.125), strict=True))
RTT_MS = dict(zip(PAIRS, (60.5, 90.0, 61.0, 140.0, 91.0, 139.0), strict=True))
USD = dict(zip(PAIRS, (0.02, 0.09, 0.02, 0.09, 0.12, 0.0), strict=True))


class Grids:
    """Three small grid files that a test may spoil before it runs the command on them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out = folder / "made.yaml"
        throughput = [
            {"src_region": a, "src_tier": "PREMIUM", "dst_region": b, "dst_tier": "PREMIUM",
             "sent_gbps": 2 * x, "recv_gbps": x}
            for (a, b), x in GBPS.items()
        ]  # fmt: skip
        latency = [
            {"src_region": a, "src_tier": "PREMIUM", "dst_region": b, "dst_tier": "PREMIUM",
             "min_rtt": x - 9, "avg_rtt": x, "max_rtt": x + 9}
            for (a, b), x in RTT_MS.items()
        ]  # fmt: skip
        cost = [
            {"src": a, "dest": b, "src_tier": "PREMIUM", "dest_tier": "PREMIUM", "cost": x}
            for (a, b), x in USD.items()
        ]
        # What must not be read: the other tier, a region with itself, a region not asked for.
        throughput += [
            throughput[0] | {"src_tier": "STANDARD", "recv_gbps": 99.0},
            throughput[0] | {"dst_tier": "STANDARD", "recv_gbps": 99.0},
            throughput[0] | {"dst_region": "aws:east", "recv_gbps": 99.0},
            throughput[0] | {"src_region": "azure:south", "recv_gbps": "never tested"},
        ]
        self.rows = {"throughput": throughput, "latency": latency, "cost": cost}

    def path(self, name: str) -> Path:
        return self.folder / f"{name}.csv"

    def run(self, **changes) -> int:
        for name, rows in self.rows.items():
            pd.DataFrame(rows).to_csv(self.path(name), index=False)
        options = {
            **{name: self.path(name) for name in self.rows},
            "regions": ",".join(REGIONS),
            "gpu": "A100-80GB",
            "gpus": "16,8,4",
            "out": self.out,
        } | changes
        arguments = [f"--{key.replace('_', '-')}={value}" for key, value in options.items()]
        return main(["from-grid", *arguments])


@pytest.fixture
def grids(tmp_path):
    return Grids(tmp_path)


@pytest.fixture
def refuses(capsys, tmp_path):
    """Check that a command ended with status 2, one line naming `words`, and no new file."""

    def check(status, *words, out="made.*"):
        captured = capsys.readouterr()
        assert status == 2
        assert captured.out == ""
        assert captured.err.startswith("error: ")
        assert captured.err.count("\n") == 1
        for word in words:
            assert word in captured.err
        assert not list(tmp_path.glob(out))
        assert not list(tmp_path.glob(".*"))

    return check


def matrix(values):
    return [[values.get((a, b), 0.0) for b in REGIONS] for a in REGIONS]


# --- from-grid ----------------------------------------------------------------------------------


def test_from_grid_puts_every_pair_where_it_belongs(grids, capsys):
    assert grids.run(usd_per_gpu_hour="1.5,2.5,3", gpus_per_node=4, intra_gbps=100) == 0
    made = load_cluster(grids.out)
    assert made.domains == REGIONS
    assert made.bandwidth_gbps.tolist() == matrix(GBPS)
    assert made.rtt_ms.tolist() == matrix(RTT_MS)
    assert made.egress_usd_per_gb.tolist() == matrix(USD)
    assert (made.name, made.gpu, made.gpus) == ("made", "A100-80GB", (16, 8, 4))
    assert made.usd_per_gpu_hour == (1.5, 2.5, 3.0)
    assert made.gpus_per_node == (4, 4, 4)
    assert (made.intra_bandwidth_gbps, made.intra_rtt_ms) == (100.0, 0.05)
    printed = capsys.readouterr().out
    assert "28 A100-80GB GPUs" in printed and "2.5 to 7.12 (median 4.5) Gbps" in printed


def test_from_grid_says_where_each_figure_came_from(grids):
    grids.run(name="three", gpus=8)
    head = [line for line in grids.out.read_text().splitlines() if line.startswith("#")]
    for name, column in (("throughput", "recv_gbps"), ("latency", "avg_rtt"), ("cost", "cost")):
        assert any(f"{name}.csv" in line and f"column {column} " in line for line in head)
    assert str(grids.folder) not in "".join(head)
    made = load_cluster(grids.out)
    assert made.name == "three"
    assert made.gpus == (8, 8, 8)
    assert made.usd_per_gpu_hour == (2.0, 2.0, 2.0)
    assert made.gpus_per_node == (8, 8, 8)


def test_regions_with_gpus_of_different_types(grids, capsys):
    assert grids.run(gpu="A100-80GB,H100-80GB,A100-80GB") == 0
    made = load_cluster(grids.out)
    assert made.gpu_of == ("A100-80GB", "H100-80GB", "A100-80GB")
    assert "28 A100-80GB and H100-80GB GPUs" in capsys.readouterr().out


def test_a_gpu_type_too_many_or_unknown_is_refused(grids, refuses):
    refuses(grids.run(gpu="A100-80GB,H100-80GB"), "--gpu", "2 values for the 3 regions")
    refuses(grids.run(gpu="A100-80GB,H100-80GB,H99"), "--gpu", "'H99'")


def test_domains_follow_the_order_asked_for(grids):
    grids.run(regions="gcp:north-a,aws:east", gpus="4,16")
    made = load_cluster(grids.out)
    assert made.domains == ("gcp:north-a", "aws:east")
    assert made.gpus == (4, 16)
    assert made.bandwidth_gbps[0, 1] == GBPS["gcp:north-a", "aws:east"]
    assert made.bandwidth_gbps[1, 0] == GBPS["aws:east", "gcp:north-a"]


def test_a_pair_tested_twice_is_the_mean_and_is_named(grids):
    grids.rows["throughput"].append(grids.rows["throughput"][0] | {"recv_gbps": 6.0})
    grids.run()
    assert load_cluster(grids.out).bandwidth_gbps[0, 1] == 5.5
    assert "# " + "  aws:east -> aws:west is the mean of 5, 6\n" in grids.out.read_text()


@pytest.mark.parametrize("name", ["throughput", "latency", "cost"])
def test_a_missing_pair_is_named_with_its_file(grids, refuses, name):
    del grids.rows[name][3]
    refuses(grids.run(), f"{name}.csv", "aws:west -> gcp:north-a")


def test_a_pair_of_the_other_tier_alone_is_missing(grids, refuses):
    grids.rows["latency"][5]["dst_tier"] = "STANDARD"
    refuses(grids.run(), "latency.csv", "gcp:north-a -> aws:west")


def test_a_region_without_any_row_is_named(grids, refuses):
    grids.rows["latency"] = [r for r in grids.rows["latency"] if "aws:west" not in r.values()]
    refuses(grids.run(), "latency.csv", "no row at all names aws:west")


@pytest.mark.parametrize(
    ("asked", "offered"),
    [("north", "gcp:north-a"), ("aws:eest", "aws:east"), ("azure:xyzzy", "aws:east")],
)
def test_an_unknown_region_gets_offers(grids, refuses, asked, offered):
    status = grids.run(regions=f"aws:west,{asked}", gpus=8)
    refuses(status, "--regions", repr(asked), "throughput.csv", offered)


@pytest.mark.parametrize("regions", ["aws:east", "aws:east,aws:east", "aws:east,,aws:west", ""])
def test_regions_that_make_no_network_are_refused(grids, refuses, regions):
    refuses(grids.run(regions=regions, gpus=8), "--regions")


@pytest.mark.parametrize("bad", ["nan", "inf", "-1", "", "fast", "0"])
@pytest.mark.parametrize(("name", "column"), [("throughput", "recv_gbps"), ("latency", "avg_rtt")])
def test_a_bad_figure_is_named_by_its_line(grids, refuses, name, column, bad):
    grids.rows[name][1][column] = bad
    refuses(grids.run(), f"{name}.csv", "line 3", column, repr(bad))


def test_a_rate_too_small_for_a_cluster_file_is_named_by_it(grids, refuses):
    grids.rows["throughput"][0]["recv_gbps"] = 1e-8
    refuses(grids.run(), f"{grids.out}: wan.bandwidth_gbps[aws:east][aws:west]")


@pytest.mark.parametrize("bad", ["nan", "-0.01"])
def test_a_bad_price_is_refused_where_a_price_of_zero_is_not(grids, refuses, bad):
    grids.rows["cost"][4]["cost"] = bad
    refuses(grids.run(), "cost.csv", "line 6", "cost", repr(bad))


def test_a_grid_without_its_column_is_refused(grids, refuses):
    for row in grids.rows["throughput"]:
        del row["recv_gbps"]
    refuses(grids.run(), "throughput.csv", "missing column recv_gbps", "sent_gbps")


def test_grids_in_the_wrong_places_are_refused(grids, refuses):
    refuses(grids.run(cost=grids.path("latency")), "latency.csv", "missing column src", "cost")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"gpus": "16,8"}, ("--gpus", "2 values for the 3 regions")),
        ({"gpus": "16,8,4,4"}, ("--gpus", "4 values for the 3 regions")),
        ({"gpus": "16,0,4"}, ("--gpus", "whole number >= 1", "'0'")),
        ({"gpus": "1.5"}, ("--gpus", "whole number >= 1")),
        ({"gpu": "A100"}, ("--gpu", "'A100'", "A100-80GB", "H100-80GB")),
        ({"usd_per_gpu_hour": "nan"}, ("--usd-per-gpu-hour", "number >= 0")),
        ({"usd_per_gpu_hour": "1,2"}, ("--usd-per-gpu-hour", "2 values")),
        ({"gpus_per_node": "-8"}, ("--gpus-per-node", "whole number >= 1")),
        ({"intra_gbps": "0"}, ("--intra-gbps", "number > 0")),
        ({"intra_rtt": "1"}, ("unknown argument '--intra-rtt=1'", "--intra-rtt-ms")),
    ],
)
def test_a_bad_option_is_named(grids, refuses, change, words):
    refuses(grids.run(**change), *words)


def test_a_missing_folder_is_named(grids, refuses):
    refuses(grids.run(out=grids.folder / "nowhere" / "made.yaml"), "--out", "nowhere")
    assert not (grids.folder / "nowhere").exists()


def test_a_folder_is_not_written_over(grids, refuses):
    (grids.folder / "folder").mkdir()
    refuses(grids.run(out=grids.folder / "folder"), "--out", "not a file")


def test_a_fault_leaves_the_older_file(grids):
    assert grids.run() == 0
    before = grids.out.read_bytes()
    grids.rows["latency"][0]["avg_rtt"] = "nan"
    assert grids.run() == 2
    assert grids.out.read_bytes() == before


def test_a_file_that_does_not_load_back_is_never_put_in_place(tmp_path):
    path = tmp_path / "made.yaml"
    path.write_text("older")

    def check(written):
        assert written.read_text() == "newer"
        raise InputError("does not load")

    with pytest.raises(InputError, match="does not load"):
        write_text(path, "newer", check)
    assert path.read_text() == "older"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "content",
    [b"", b"a,b\n", b"\xff\xfe\x00", b"a,b\n1,2,3\n"],
    ids=["empty", "head", "bytes", "long"],
)
def test_a_file_that_is_no_table_is_refused(grids, refuses, content):
    path = grids.folder / "broken.csv"
    path.write_bytes(content)
    refuses(grids.run(latency=path), "broken.csv")


def test_a_missing_file_is_named(grids, refuses):
    refuses(grids.run(cost=grids.folder / "absent.csv"), "absent.csv", "No such file")


# --- trace --------------------------------------------------------------------------------------


def measured(folder, paths, name="tests.csv"):
    """Write tests: {path: [(unix_s, received_mbps), ...]}."""
    rows = [
        {"path": path, "unix_s": t, "host": "h", "duration_s": 10, "received_mbps": rate}
        for path, tests in paths.items()
        for t, rate in tests
    ]
    pd.DataFrame(rows).to_csv(folder / name, index=False)
    return folder / name


def steady(n=6, rate=100.0, start=1_600_000_000):
    return [(start + 60 * i, rate) for i in range(n)]


@pytest.fixture
def cluster(tmp_path):
    grids = Grids(tmp_path)
    grids.out = tmp_path / "cluster.yaml"
    assert grids.run() == 0
    return grids.out


@pytest.fixture
def make(cluster, tmp_path, capsys):
    capsys.readouterr()

    def run(measurements, **changes):
        options = {
            "measurements": measurements,
            "cluster": cluster,
            "interval": 60,
            "seed": 0,
            "out": tmp_path / "made.csv",
        } | changes
        return main(["trace", *(f"--{key}={value}" for key, value in options.items())])

    return run


def links(path):
    """{(src, dst): factors in order of time}, after checking that time is complete."""
    frame = pd.read_csv(path)
    assert list(frame.columns) == ["t_s", "src", "dst", "factor"]
    series = {}
    for link, rows in frame.groupby(["src", "dst"]):
        assert rows["t_s"].tolist() == [60 * i for i in range(len(rows))]
        series[link] = rows["factor"].tolist()
    return series


def test_intervals_are_means_of_their_tests_and_gaps_are_dropped():
    t_s = np.array([1000.0, 1020.0, 1059.0, 1060.0, 9999.0, 10_000.0, 1065.0])
    mbps = np.array([1.0, 2.0, 6.0, 10.0, 7.0, 9.0, 20.0])
    # From t = 1000: [1, 2, 6] | [10, 20] | nothing for hours | 9999 is in row 149, 10000 in row 150.
    assert interval_means(t_s, mbps, 60).tolist() == [3.0, 15.0, 7.0, 9.0]


def test_trace_is_exact_on_one_hand_made_path(make, tmp_path):
    base = 1_600_000_000
    tests = [
        *[(base, 100.0), (base + 30, 300.0)],  # mean 200
        *[(base + 60, 100.0), (base + 119, 100.0)],  # mean 100
        (base + 120, 50.0),
        (base + 7200, 150.0),  # after a gap of two hours: the next interval
        (base + 7260, 80.0),
    ]
    assert make(measured(tmp_path, {"only": tests})) == 0
    want = [2.0, 1.0, 0.5, 1.5, 0.8]  # over the median, 100
    series = links(tmp_path / "made.csv")
    assert sorted(series) == sorted(PAIRS)
    entries = set()
    for factors in series.values():
        starts = [s for s in range(5) if factors == ROUNDS * (want[s:] + want[:s])]
        assert len(starts) == 1
        entries.add(starts[0])
    assert 0 in entries and len(entries) > 1  # one path, six links, not all in step


def test_every_link_has_the_same_rows_and_shorter_paths_repeat(make, tmp_path):
    base = 1_600_000_000
    ramp = {
        f"p{n}": [(base + 60 * i, 100.0 + 10 * i) for i in range(n)] for n in (5, 6, 7, 8, 9, 11)
    }
    assert make(measured(tmp_path, ramp)) == 0
    periods = []
    for factors in links(tmp_path / "made.csv").values():
        assert len(factors) == ROUNDS * 11
        period = next(n for n in (5, 6, 7, 8, 9, 11) if factors[n] == factors[0])
        assert factors == (factors[:period] * len(factors))[: len(factors)]
        assert factors[:period] == sorted(factors[:period])  # from its first interval
        assert np.median(factors[:period]) == pytest.approx(1.0, rel=1e-5)
        periods.append(period)
    assert sorted(periods) == [5, 6, 7, 8, 9, 11]  # without replacement


def test_the_seed_alone_decides(make, tmp_path):
    base = 1_600_000_000
    rng = np.random.default_rng(7)
    paths = {
        f"p{k}": [(base + 30 * i, float(x)) for i, x in enumerate(rng.uniform(50, 90, 20))]
        for k in range(8)
    }
    made = {}
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        assert make(measured(tmp_path, paths), seed=seed, out=tmp_path / f"{name}.csv") == 0
        made[name] = (tmp_path / f"{name}.csv").read_bytes()
        paths = dict(reversed(paths.items()))  # the order in the file must not matter
    assert made["a"] == made["b"] != made["c"]


def test_paths_are_drawn_without_replacement_until_they_run_out():
    lengths = {"a": 10, "b": 20, "c": 30}
    for seed in range(20):
        paths, starts = draw_paths(lengths, 8, seed)
        assert sorted(paths[:3]) == sorted(paths[3:6]) == ["a", "b", "c"]
        assert len(set(paths[6:])) == 2
        assert starts[:3] == (0, 0, 0)
        assert all(0 <= start < lengths[path] for path, start in zip(paths, starts, strict=True))
        assert draw_paths(dict(reversed(lengths.items())), 8, seed) == (paths, starts)
    assert len({draw_paths(lengths, 8, seed) for seed in range(20)}) > 10


def test_the_trace_loads_as_written(make, tmp_path, cluster):
    base = 1_600_000_000
    tests = [(base + 60 * i, x) for i, x in enumerate((90.0, 100.0, 120.0, 40.0, 101.0))]
    assert make(measured(tmp_path, {"only": tests})) == 0
    spec = load_cluster(cluster)
    factors = read_network_trace(tmp_path / "made.csv", spec, 60.0)
    assert factors.shape == (ROUNDS * 5, 3, 3)
    for (a, b), series in links(tmp_path / "made.csv").items():
        i, j = spec.domains.index(a), spec.domains.index(b)
        np.testing.assert_allclose(factors[:, i, j], series, rtol=1e-6)
    assert (factors[:, range(3), range(3)] == 1.0).all()


def test_short_and_dead_paths_are_left_out_and_named(make, tmp_path, capsys):
    paths = {
        "good": steady(),
        "short": steady(MIN_INTERVALS - 1),
        "burst": [(1_600_000_000 + i, 100.0) for i in range(50)],  # many tests, one interval
        "dead": steady(rate=0.0),
    }
    assert make(measured(tmp_path, paths)) == 0
    printed = capsys.readouterr().out
    assert "6 links replay 1 of 4 measured paths in tests.csv (6 measurements in 6" in printed
    assert "short (tests in 4 intervals" in printed
    assert "burst (tests in 1 intervals" in printed
    assert "dead (nothing received" in printed
    assert printed.count("\n") == 1


def test_no_path_to_replay_is_an_error(make, tmp_path, refuses):
    refuses(make(measured(tmp_path, {"short": steady(2)})), "--measurements", "short")


def test_a_stalled_interval_becomes_a_small_factor(make, tmp_path, capsys):
    tests = [*steady(5), (1_600_000_900, 0.0)]
    assert make(measured(tmp_path, {"only": tests})) == 0
    assert min(links(tmp_path / "made.csv")["aws:east", "aws:west"]) == FLOOR
    printed = capsys.readouterr().out
    assert "Stalled intervals raised to 0.01 of the base: 1." in printed
    assert "16.7% of the samples lie outside +-30%" in printed


def test_samples_of_a_gzipped_file_are_read_by_their_own_time(tmp_path):
    # unix_s is when the test began; the sample's own time is t_s.
    text = "path,t_s,unix_s,start_s,mbps,retransmits\n" + "".join(
        f"p,{1_600_000_000 + 20.0 * i},1600000000,{20.0 * i},{10.0 * (1 + i % 3)},0\n"
        for i in range(18)
    )
    path = tmp_path / "samples.csv.gz"
    path.write_bytes(gzip.compress(text.encode()))
    movement = relative_movement(read_measurements(path), 60)
    assert movement.factors["p"].tolist() == [1.0] * 6
    assert movement.n_measured == {"p": 18}


@pytest.mark.parametrize("bad", ["nan", "-5", "", "fast", "inf"])
@pytest.mark.parametrize("column", ["unix_s", "received_mbps"])
def test_a_bad_measurement_is_named_by_its_line(make, tmp_path, refuses, column, bad):
    path = measured(tmp_path, {"only": steady(8)})
    frame = pd.read_csv(path, dtype=str)
    frame.loc[2, column] = bad
    frame.to_csv(path, index=False)
    refuses(make(path), "tests.csv", "line 4", column, repr(bad))


def test_blank_lines_do_not_shift_the_line_that_is_named(make, tmp_path, refuses):
    path = measured(tmp_path, {"only": [*steady(), (1_600_000_900, -1.0)]})
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:3], "", "", *lines[3:], ""]))
    refuses(make(path), "line 10", "received_mbps", "'-1.0'")


def test_unknown_columns_are_refused(make, tmp_path, refuses):
    path = measured(tmp_path, {"only": steady()})
    path.write_text(path.read_text().replace("received_mbps", "speed"))
    refuses(make(path), "tests.csv", "received_mbps", "mbps", "speed")


def test_a_truncated_gzip_is_refused(make, tmp_path, refuses):
    path = tmp_path / "samples.csv.gz"
    path.write_bytes(gzip.compress(b"path,t_s,mbps\n" + b"p,1.5,10\n" * 900)[:-20])
    refuses(make(path), "samples.csv.gz")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"interval": "0"}, ("--interval", "whole seconds >= 1")),
        ({"interval": "1.5"}, ("--interval", "whole seconds >= 1")),
        ({"seed": "-1"}, ("--seed", "whole number >= 0")),
        ({"cluster": "absent.yaml"}, ("absent.yaml",)),
        ({"inter": "60"}, ("unknown argument '--inter=60'", "--interval")),
    ],
)
def test_a_bad_trace_option_is_named(make, tmp_path, refuses, change, words):
    refuses(make(measured(tmp_path, {"only": steady()}), **change), *words)


@pytest.mark.parametrize("name", ["nowhere/made.csv", "made.csv.gz"])
def test_an_output_that_cannot_be_written_is_named(make, tmp_path, refuses, name):
    status = make(measured(tmp_path, {"only": steady()}), out=tmp_path / name)
    refuses(status, "--out", name)


@pytest.mark.parametrize("argv", [[], ["plot"], ["trace"], ["from-grid", "--gpus", "8"]])
def test_an_incomplete_command_line_is_one_line(refuses, argv):
    refuses(main(argv), "hippo cluster")


# --- on real measurements -------------------------------------------------------------------------


@pytest.fixture
def real_cluster(tmp_path):
    grids = [f"--{name}={path}" for name, path in GRIDS.items()]
    out = tmp_path / "real.yaml"
    arguments = [f"--regions={REAL_REGIONS}", "--gpu=A100-80GB", "--gpus=16", f"--out={out}"]
    assert main(["from-grid", *grids, *arguments]) == 0
    return load_cluster(out)


@needs_grids
def test_real_grids_give_the_figures_in_their_files(real_cluster):
    read = {name: pd.read_csv(path) for name, path in GRIDS.items()}
    names = real_cluster.domains
    for (i, a), (j, b) in itertools.permutations(enumerate(names), 2):
        for name, value, made in (
            ("throughput", "recv_gbps", real_cluster.bandwidth_gbps),
            ("latency", "avg_rtt", real_cluster.rtt_ms),
        ):
            rows = read[name]
            rows = rows[(rows["src_region"] == a) & (rows["dst_region"] == b)]
            rows = rows[(rows["src_tier"] == "PREMIUM") & (rows["dst_tier"] == "PREMIUM")]
            assert made[i, j] == pytest.approx(rows[value].item(), abs=1e-6)
        prices = read["cost"]
        price = prices[(prices["src"] == a) & (prices["dest"] == b)]["cost"].item()
        assert real_cluster.egress_usd_per_gb[i, j] == pytest.approx(price, abs=1e-6)


@needs_grids
def test_a_real_region_without_latency_is_named(tmp_path, refuses):
    grids = [f"--{name}={path}" for name, path in GRIDS.items()]
    arguments = ["--gpu=A100-80GB", "--gpus=8", f"--out={tmp_path / 'made.yaml'}"]
    status = main(["from-grid", *grids, *arguments, "--regions=azure:eastus2,aws:us-east-1"])
    refuses(status, GRIDS["latency"].name, "azure:eastus2 -> aws:us-east-1")


@needs_grids
@needs_paths
@pytest.mark.parametrize("measurements", [TESTS_CSV, SAMPLES_CSV], ids=["tests", "samples"])
def test_real_paths_move_the_links_as_they_were_seen_to_move(
    real_cluster, tmp_path, measurements, capsys
):
    out = tmp_path / "real.csv"
    cluster = f"--cluster={tmp_path / 'real.yaml'}"
    assert main(["trace", f"--measurements={measurements}", cluster, f"--out={out}"]) == 0
    assert "12 links replay 11 of 11 measured paths" in capsys.readouterr().out
    factors = read_network_trace(out, real_cluster, 60.0)
    series = factors[:, ~np.eye(4, dtype=bool)].T
    # 5.6 % of 10 s tests leave +-30 %; a mean over a minute moves less, a path drawn twice counts
    # twice. Cyclic repetition leaves a link's median within 2 % of its base.
    assert 0.03 < np.mean(np.abs(series - 1) > 0.3) < 0.10
    assert np.abs(np.median(series, axis=1) - 1).max() < 0.02
    deviations = np.corrcoef(series)[~np.eye(12, dtype=bool)]
    assert np.abs(deviations).max() < 0.5  # no two links in step


def test_nodes_are_as_large_as_their_region_at_most(grids):
    assert grids.run(gpus="16,8,4") == 0
    assert load_cluster(grids.out).gpus_per_node == (8, 8, 4)


def test_nodes_larger_than_their_region_are_refused(grids, refuses):
    refuses(grids.run(gpus="16,8,4", gpus_per_node="8"), "domains[2].gpus_per_node", "from 1 to 4")
