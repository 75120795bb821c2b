"""One fit of all machines on made-up measurements whose truth is known."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from helpers.measured_runs import made_run, measure, varied_runs

from jaxsim.calibration.adapting import adapt
from jaxsim.calibration.choosing import (
    ROWS_PER_PARAMETER,
    evidence_gain,
    fit_machines,
    own_limits,
    pin_twins,
)
from jaxsim.calibration.documented import documented, documented_belief
from jaxsim.calibration.entries import adapted_entries, file_entries, fit_name, own_parameters
from jaxsim.calibration.fitting import (
    MEMORY_NOISE,
    STEP_NOISE,
    Evidence,
    Fitter,
    Posterior,
    build_hierarchy,
    sync_evidence,
    weigh,
)
from jaxsim.calibration.hierarchy import HARDWARE, SHARED, Effect, Machine
from jaxsim.calibration.left_out import domain_of, features, leave_out, left_out_groups
from jaxsim.calibration.shaped_links import SyncRun, predict_sync_s
from jaxsim.cluster.band import UNKNOWN, Band
from jaxsim.cluster.efficiency import PRIORS
from jaxsim.cluster.fits import load_fits
from jaxsim.files import dump_yaml

pytestmark = pytest.mark.nightly  # as a whole: its tests share what takes long to compile

NAMES = list(PRIORS)
MADE = Machine("A100-80GB", "megatron-fused")


def truth_of(machine, **z):
    """The documented values of a machine, some moved by so many spreads."""
    move = jnp.asarray([z.get(name, 0.0) for name in NAMES], jnp.float32)
    return documented_belief(machine).calibration(move)


MOVED = {"straggler": 1.5, "micro_batch_s": 1.5, "gemm_efficiency": 1.0, "framework_gb": 1.5}


@pytest.fixture(scope="module")
def fitted():
    """54 noisy runs of one machine whose parameters are apart from what is documented."""
    rng = np.random.default_rng(1)
    runs = [dataclasses.replace(r, stack=MADE.stack) for r in varied_runs()]
    runs = measure(runs, truth_of(MADE, **MOVED), rng, STEP_NOISE, MEMORY_NOISE)
    choice = fit_machines(runs)
    return choice, *choice.fit()


def test_the_fit_finds_the_runs_and_what_moved(fitted):
    _, fitter, posterior = fitted
    off = fitter.residuals(posterior.z, np.ones(54)).reshape(-1, 2) / fitter.runs.weight
    assert np.abs(off[:, 0]).mean() < 2 * STEP_NOISE and np.abs(off[:, 1]).mean() < 2 * MEMORY_NOISE
    got = posterior.calibration(MADE)
    # Alone on its GPU type, gemm may be the hardware's or the stack's: the product is told.
    for name in ("gemm_efficiency", "framework_gb"):
        want = float(getattr(truth_of(MADE, **MOVED), name))
        np.testing.assert_allclose(float(getattr(got, name)), want, rtol=0.06, err_msg=name)


def test_a_stack_has_fewer_parameters_than_a_fifth_of_its_rows(fitted):
    _, fitter, posterior = fitted
    (row,) = own_parameters(fitter)
    assert row["rows"] == 54 and row["parameters"] < 54 / ROWS_PER_PARAMETER
    machines = fitter.hierarchy.machines
    time, memory = own_limits(fitter.runs, machines, np.ones(54))["megatron-fused"]
    assert time + memory == 10, "the largest whole number below 54 / 5"
    spread = np.sqrt(np.diag(posterior.covariance))
    correlation = posterior.covariance / np.outer(spread, spread) - np.eye(len(spread))
    assert np.abs(correlation).max() < 0.95 + 1e-9


def test_what_no_run_tells_stays_documented(fitted):
    *_, posterior = fitted
    belief, before = posterior.belief(MADE), documented_belief(MADE)
    for name in ("fp32_speed", "float8_speed", "wan_efficiency", "restart_s"):
        i = NAMES.index(name)
        np.testing.assert_allclose(belief.centre[i], before.centre[i], atol=1e-6, err_msg=name)


def test_what_a_file_holds_loads_back(fitted, tmp_path):
    _, fitter, posterior = fitted
    band = Band(0.05, 0.1, 0.25)
    entries = file_entries(fitter, posterior, {"megatron-fused": band}, UNKNOWN)
    path = tmp_path / "c.yaml"
    path.write_text(dump_yaml({"calibrations": entries}, default_flow_style=None))
    fits = load_fits(path)
    assert {fit_name(MADE), "A100-80GB", "any/torchtitan", "H100-80GB/llm-foundry"} <= set(fits)
    mine, want = fits[fit_name(MADE)], posterior.belief(MADE)
    np.testing.assert_allclose(mine.belief.centre, want.centre, atol=2e-3)
    np.testing.assert_allclose(mine.belief.spread, np.maximum(want.spread, 1e-6), rtol=2e-3)
    assert mine.band == band and mine.domain.distance(features(fitter.runs.runs[0])) == 0.0
    # Of a machine that was not measured, the documented spread remains, and nothing is inside.
    other = fits["H100-80GB/llm-foundry"]
    assert other.domain is None and other.band == UNKNOWN
    i = NAMES.index("eager_passes")
    known = documented(Machine("H100-80GB", "llm-foundry"))["eager_passes"][1]
    np.testing.assert_allclose(other.belief.spread[i], known, rtol=1e-3)


def test_groups_are_left_out_whole_and_predicted(fitted):
    choice, fitter, posterior = fitted
    groups = left_out_groups(fitter)
    assert {g.kind for g in groups} == {"model", "parallelism"}, "one scale, one length, one stack"
    assert sum(len(g.places) for g in groups if g.kind == "model") == 54
    (model,) = leave_out(choice, groups[:1])
    assert len(model) == 27 and len({r.run.model_key for r in model}) == 1
    assert np.mean([abs(r.step) for r in model]) < 0.05
    # The other model is half or twice as wide: a doubling outside what was kept.
    assert {r.distance for r in model} == {1.0}
    again = fitter.fit(start=posterior.z)
    np.testing.assert_allclose(again.free(), posterior.free(), atol=0.05)


def test_a_left_out_group_has_no_say_in_what_is_chosen(fitted):
    """Whatever was measured of the runs left out, the same parameters are chosen and fitted."""
    choice, *_ = fitted
    keep = np.arange(54) % 2.0
    _, want = choice.fit(keep)
    residuals, slopes = choice.residuals.copy(), choice.slopes.copy()
    left = np.repeat(keep == 0.0, 2)
    residuals[:108][left], slopes[:108][left] = 1e3, -1e3
    fitter, got = dataclasses.replace(choice, residuals=residuals, slopes=slopes).fit(keep)
    assert fitter.hierarchy.effects == want.hierarchy.effects
    np.testing.assert_allclose(got.z, want.z)
    assert len(fitter.hierarchy.of_stack(MADE.stack)) <= 5, "27 rows are kept"


def test_few_rows_adapt_the_stack_and_leave_the_hardware():
    truth = truth_of(MADE, softmax_passes=1.0, micro_batch_s=2.0, gemm_efficiency=0.0)
    runs = measure(varied_runs(), truth)
    some = runs[::5]
    adapted, found = adapt(some, MADE.stack, documented_belief)
    assert {e.scope for e in adapted.hierarchy.effects} == {"stack megatron-fused"}
    hard = [NAMES.index(n) for n in HARDWARE if n != "gemm_efficiency"]
    np.testing.assert_allclose(
        found.belief(MADE).centre[hard], documented_belief(MADE).centre[hard], atol=1e-9
    )
    (entry,) = adapted_entries(adapted, found).values()
    assert entry["fitted_on"] == {"adapted": len(some)} and entry["band"]["step"] >= 0.04
    rest = weigh([dataclasses.replace(r, stack=MADE.stack) for r in runs], [MADE])
    judge = Fitter(rest, (), adapted.hierarchy)
    off = judge.residuals(found.z, np.ones(54)).reshape(-1, 2)[:, 0] / rest.weight[:, 0]
    before = judge.residuals(0 * found.z, np.ones(54)).reshape(-1, 2)[:, 0] / rest.weight[:, 0]
    assert np.abs(off).mean() < 0.03 < np.abs(before).mean()


def one_effect(noise=0.1, n=8, parameter="straggler", value=0.02):
    """A machine whose one deviation is seen n times, besides a run that says nothing."""

    def residuals(free):
        return jnp.full(n, (free[NAMES.index(parameter)] - np.log(value)) / noise)

    def slope(free):
        out = jnp.zeros((n, len(NAMES)))
        return out.at[:, NAMES.index(parameter)].set(1.0 / noise)

    runs = [dataclasses.replace(made_run(), step_s=None, peak_memory_gib=None, stack=MADE.stack)]
    effect = Effect(parameter, "stack megatron-fused", 0.7)
    hierarchy = build_hierarchy([MADE], [effect])
    seen = Evidence("seen", 0, n, residuals, slope)
    return Fitter(weigh(runs, [MADE]), [seen], hierarchy)


def test_one_parameter_by_hand():
    found = one_effect(value=0.021).fit()
    # Near the data soft L1 is a square: precisions add, of eight sights and of the prior.
    precision = 8 * (0.7 / 0.1) ** 2 + 1.0
    np.testing.assert_allclose(found.covariance[0, 0], 1 / precision, rtol=0.02)
    centre = np.log(documented(MADE)["straggler"][0])
    np.testing.assert_allclose(
        found.z[0], 0.7 * 8 / 0.01 * (np.log(0.021) - centre) / precision, rtol=0.02
    )
    gain = 0.5 * np.log(found.covariance[0, 0]) + found.z[0] ** 2 / (2 * found.covariance[0, 0])
    np.testing.assert_allclose(evidence_gain(found.z, found.covariance)[0], gain)


def test_of_two_that_act_alike_one_is_pinned():
    fitter = one_effect()
    twins = [Effect("straggler", "stack megatron-fused", s) for s in (0.7, 0.3)]
    both = Fitter(fitter.runs, fitter.evidence, build_hierarchy([MADE], twins))
    posterior = both.fit()
    assert pin_twins(posterior.covariance) == [1], "the one of the smaller spread is told less of"


def test_syncs_over_shaped_links_are_shared_by_all_machines():
    truth = truth_of(MADE, wan_ring_efficiency=0.5)
    runs = [
        SyncRun(f"{algorithm}-{gbps}", algorithm, h, 4, gbps, 60, 0.6, 1.0)
        for algorithm, h in (("ddp", 1), ("diloco", 30))
        for gbps in (0.02, 1.0)
    ]
    measured = [
        dataclasses.replace(r, sync_s=float(s))
        for r, s in zip(runs, predict_sync_s(runs, truth), strict=True)
    ]
    (evidence,) = sync_evidence(measured)
    at = [PRIORS[n].to_free(float(getattr(truth, n))) for n in NAMES]
    np.testing.assert_allclose(evidence.residuals(jnp.asarray(at, jnp.float32)), 0.0, atol=1e-3)
    assert "wan_ring_efficiency" in SHARED and not set(SHARED) & set(HARDWARE)
    assert sync_evidence([]) == []


def test_a_domain_is_the_box_of_its_runs():
    runs = [made_run(), made_run(seq=8192, micro_batch=1)]
    domain = domain_of(runs)
    assert domain.ranges["seq"] == (2048.0, 8192.0)
    assert domain.ranges["tokens"] == (4096.0, 8192.0)
    assert domain.distance(features(made_run(seq=4096, micro_batch=1))) == 0.0


def test_what_effects_do_not_stand_for_is_as_uncertain_as_documented():
    """Of a spread of 0.2, a part's 0.05 is shared; 0.2^2 - 0.05^2 of the variance is the machine's."""
    names = list(PRIORS)
    effects = [Effect("flash_efficiency", "part A100-80GB", 0.05), Effect("kernel_s", "all", 0.3)]
    hierarchy = build_hierarchy([Machine("A100-80GB", "torchtitan")], effects)
    rest = hierarchy.unshared(Machine("A100-80GB", "megatron-flash"), np.full(len(names), 0.2))
    by_name = dict(zip(names, rest, strict=True))
    assert by_name.pop("flash_efficiency") == pytest.approx(0.2**2 - 0.05**2)
    assert by_name.pop("kernel_s") == 0.0, "the effect is wider than what is documented"
    np.testing.assert_allclose(list(by_name.values()), 0.2**2)


def test_a_file_holds_domains_to_the_last_digit_and_pins_as_not_identified():
    machine = Machine("A100-80GB", "megatron-fused")
    run = made_run(gpu=machine.gpu, stack=machine.stack, seq=16384)
    hierarchy = build_hierarchy([machine], [Effect("straggler", "all", 0.3)])
    posterior = Posterior(hierarchy, np.zeros(1), np.zeros((1, 1)))
    fitter = Fitter(weigh([run], [machine]), [], hierarchy)
    entry = adapted_entries(fitter, posterior)[fit_name(machine)]
    assert entry["domain"]["seq"] == [16384.0, 16384.0]
    assert all(p["identified"] == 0.0 for p in entry["parameters"].values())
