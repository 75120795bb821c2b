"""Efficiency parameters: priors, files, and the Gaussian that a fit believes."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from helpers.toy_world import EFFICIENCIES

from jaxsim.calibration.documented import FAMILIES, documented, documented_belief
from jaxsim.calibration.hierarchy import Machine
from jaxsim.cluster import fits as calibrations
from jaxsim.cluster.efficiency import (
    PRIORS,
    Belief,
    Calibration,
    independent,
    load_beliefs,
    prior_calibration,
)
from jaxsim.cluster.fits import (
    default_calibration,
    efficiency_source,
    load_calibration,
    shipped_fit,
)
from jaxsim.cluster.gpu import GPU_PRESETS
from jaxsim.files.errors import InputError


def as_dict(cal):
    return {f.name: float(getattr(cal, f.name)) for f in dataclasses.fields(cal)}


def test_every_parameter_states_a_prior_with_a_unit():
    units = {
        "share",
        "tokens",
        "tiles",
        "elements",
        "values",
        "factor",
        "s",
        "B",
        "copies",
        "GB",
        "Gbit/s",
    }
    for name, prior in PRIORS.items():
        assert prior.unit in units, name
        assert prior.spread > 0 and prior.value > 0, name
        assert not prior.share or prior.value < 1, name
    assert list(PRIORS) == [f.name for f in dataclasses.fields(Calibration)]
    assert set(EFFICIENCIES) == set(PRIORS), "the toy world gives every parameter a value"
    assert len(set(EFFICIENCIES.values())) == len(PRIORS), "and no two alike"


def test_prior_calibration_holds_the_priors_in_float32():
    cal = prior_calibration()
    for name, prior in PRIORS.items():
        value = getattr(cal, name)
        assert value.dtype == jnp.float32 and value.shape == ()
        np.testing.assert_allclose(value, prior.value, rtol=1e-6)


def prior_belief(gpu="", stack="pooled"):
    return documented_belief(Machine(gpu, stack))


@pytest.mark.parametrize("gpu", ["", "V100-32GB", "A100-80GB", "H100-96GB-500W", "H100-80GB"])
def test_belief_and_calibration_round_trip(gpu):
    belief = prior_belief(gpu)
    z = np.linspace(-2.0, 2.0, len(PRIORS))
    cal = as_dict(belief.calibration(jnp.asarray(z, jnp.float32)))
    back = [prior.to_free(cal[name]) for name, prior in PRIORS.items()]
    np.testing.assert_allclose(back, belief.centre + belief.spread * z, rtol=2e-5, atol=2e-5)
    for name, prior in PRIORS.items():
        assert 0 < cal[name] < (1 if prior.share else np.inf)


def test_what_is_known_of_an_architecture_replaces_the_prior():
    plain, own, meta = (
        as_dict(prior_belief(g).calibration()) for g in ("", "H100-80GB", "H100-96GB-500W")
    )
    for name, prior in PRIORS.items():
        np.testing.assert_allclose(plain[name], prior.value, rtol=1e-5)
        known = FAMILIES["H100"].get(name, (prior.value, prior.spread))
        if name != "flash_efficiency":
            np.testing.assert_allclose(own[name], known[0], rtol=1e-5)
    assert meta["gemm_efficiency"] < own["gemm_efficiency"], "the exact name goes first"
    for gpu, known in FAMILIES.items():
        assert any(preset.startswith(gpu) for preset in GPU_PRESETS)
        assert set(known) <= set(PRIORS)


def test_a_kernel_reaches_less_of_the_next_architecture():
    def share(gpu, stack):
        return documented(Machine(gpu, stack))["flash_efficiency"][0]

    assert share("A100-80GB", "llm-foundry") == 0.33 and share("H100-80GB", "llm-foundry") == 0.16
    assert share("A100-80GB", "torchtitan") == 0.60 and share("H100-80GB", "torchtitan") == 0.38
    assert share("H100-80GB", "pooled") == 0.38, "the kernel that most run"
    assert share("MI300X-192GB", "torchtitan") == PRIORS["flash_efficiency"].value


def test_samples_scatter_as_the_belief():
    spread = np.full(len(PRIORS), 0.5)
    covariance = np.diag(spread**2)
    covariance[0, 1] = covariance[1, 0] = -0.8 * 0.25
    belief = Belief(prior_belief().centre, covariance)
    draws = belief.samples(4000, seed=3)
    first, second = list(PRIORS)[:2]
    x, y = (
        np.array([PRIORS[n].to_free(float(v)) for v in np.asarray(getattr(draws, n))])
        for n in (first, second)
    )
    np.testing.assert_allclose([x.std(), y.std()], 0.5, rtol=0.05)
    np.testing.assert_allclose(np.corrcoef(x, y)[0, 1], -0.8, atol=0.03)
    np.testing.assert_array_equal(belief.samples(4000, seed=3).straggler, draws.straggler)


def test_interval_by_hand():
    belief = independent(np.zeros(len(PRIORS)), np.full(len(PRIORS), 0.5))
    reach = np.exp(1.959964 * 0.5)
    np.testing.assert_allclose(belief.interval("kernel_s"), (1 / reach, reach))
    np.testing.assert_allclose(
        belief.interval("gemm_efficiency"), (1 / (1 + reach), reach / (1 + reach))
    )


def write(path, parameters, **others):
    body = {"calibrations": {"H100-80GB": {"parameters": parameters, **others}}}
    path.write_text(yaml.safe_dump(body))
    return path


def test_file_round_trip(tmp_path):
    entries = {name: {"value": value, "ci95": [0, 1]} for name, value in EFFICIENCIES.items()}
    loaded = as_dict(load_calibration(write(tmp_path / "c.yaml", entries), "H100-80GB"))
    for name, value in EFFICIENCIES.items():
        np.testing.assert_allclose(loaded[name], value, rtol=1e-5, err_msg=name)


def test_spread_and_correlation_are_read(tmp_path):
    names = ["straggler", "kernel_s"]
    entries = {n: {"value": 0.5, "spread": s} for n, s in zip(names, (0.1, 0.2), strict=True)}
    path = write(tmp_path / "c.yaml", entries, correlation=[[1.0, 0.3], [0.3, 1.0]])
    belief = load_beliefs(path)["H100-80GB"]
    i, j = (list(PRIORS).index(n) for n in names)
    np.testing.assert_allclose(belief.spread[[i, j]], [0.1, 0.2])
    np.testing.assert_allclose(belief.covariance[i, j], 0.3 * 0.1 * 0.2)
    others = [k for k in range(len(PRIORS)) if k not in (i, j)]
    priors = np.array([p.spread for p in PRIORS.values()])
    np.testing.assert_allclose(belief.spread[others], priors[others])


def test_a_parameter_that_a_file_leaves_out_stays_at_its_prior(tmp_path):
    loaded = as_dict(load_calibration(write(tmp_path / "c.yaml", {"straggler": 0.5}), "H100-80GB"))
    for name, value in {**as_dict(prior_calibration()), "straggler": 0.5}.items():
        np.testing.assert_allclose(loaded[name], value, rtol=1e-5, err_msg=name)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"gemm_efficiency": 1.0}, ["gemm_efficiency", "above 0 and below 1", "1.0"]),
        ({"gemm_efficiency": 0}, ["gemm_efficiency", "above 0 and below 1", "got 0"]),
        ({"kernel_s": -1e-6}, ["kernel_s", "a number above 0, got -1e-06"]),
        ({"kernel_s": float("nan")}, ["kernel_s", "above 0", "nan"]),
        ({"kernel_s": float("inf")}, ["kernel_s", "above 0", "inf"]),
        ({"kernel_s": True}, ["kernel_s", "above 0", "True"]),
        ({"kernel_s": "fast"}, ["kernel_s", "above 0", "'fast'"]),
        ({"kernel_s": {"ci95": [0, 1]}}, ["kernel_s", "above 0", "None"]),
        ({"kernel_s": {"value": 1.0, "spread": 0}}, ["kernel_s.spread", "above 0", "got 0"]),
        ({"kernel_s": None}, ["kernel_s", "above 0", "None"]),
        ({"kernel_s": 10**400}, ["kernel_s", "a number from 1e-12 to 1e+12", "got 1000"]),
        ({"kernel_s": 1e308}, ["kernel_s", "a number from 1e-12 to 1e+12", "1e+308"]),
        ({"kernel_s": 1e-320}, ["kernel_s", "a number from 1e-12", "e-320"]),
        ({"gemm_efficiency": 1e-300}, ["gemm_efficiency", "a number from 1e-06", "1e-300"]),
        (
            {"kernel_s": {"value": 1e-6, "spred": 0.1}},
            ["kernel_s", "'spred' (did you mean spread?)"],
        ),
        ({"stragler": 0.5}, ["parameters.stragler: unknown (did you mean straggler?)"]),
        ({"eta": 0.5}, ["parameters.eta: unknown", "gemm_efficiency", "framework_gb"]),
    ],
)
def test_a_bad_parameter_is_one_line_naming_file_and_key(tmp_path, parameters, words):
    path = write(tmp_path / "c.yaml", parameters)
    with pytest.raises(InputError) as error:
        load_beliefs(path)
    assert_one_line(error, [f"{path}: calibrations.H100-80GB: parameters.", *words])


def test_a_misspelt_key_of_a_gpu_type_is_refused(tmp_path):
    path = write(tmp_path / "c.yaml", {"straggler": 0.5}, corelation=[[1.0]])
    with pytest.raises(InputError) as error:
        load_beliefs(path)
    words = ["unknown key 'corelation' (did you mean correlation?)", "allowed: parameters"]
    assert_one_line(error, [str(path), "calibrations.H100-80GB", *words])


@pytest.mark.parametrize("rows", [[[1.0, 0.1]], 3, [["a", 0], [0, 1]]])
def test_a_bad_correlation_is_one_line(tmp_path, rows):
    path = write(tmp_path / "c.yaml", {"straggler": 0.5, "kernel_s": 1e-6}, correlation=rows)
    with pytest.raises(InputError) as error:
        load_beliefs(path)
    assert_one_line(error, [str(path), "correlation: expected 2 rows of as many"])


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([[1, 5, 0], [5, 1, 0], [0, 0, 1]], ["from -1 to 1", "got 5"]),
        ([[1, float("nan"), 0], [0, 1, 0], [0, 0, 1]], ["from -1 to 1", "got nan"]),
        ([[0.5, 0, 0], [0, 1, 0], [0, 0, 1]], ["ones on the diagonal"]),
        ([[1, 0.5, 0], [-0.5, 1, 0], [0, 0, 1]], ["symmetric"]),
        # Two that move together, and a third that moves with one and against the other.
        ([[1, 1, 1], [1, 1, -1], [1, -1, 1]], ["positive semi-definite", "eigenvalue is -1"]),
    ],
)
def test_a_correlation_that_no_numbers_have_is_one_line(tmp_path, rows, words):
    names = {"straggler": 0.5, "kernel_s": 1e-6, "step_fixed_s": 1e-3}
    path = write(tmp_path / "c.yaml", names, correlation=rows)
    with pytest.raises(InputError) as error:
        load_beliefs(path)
    assert_one_line(error, [str(path), "calibrations.H100-80GB: correlation", *words])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("calibrations: {}\ncalibrations: {}\n", ["'calibrations' stands twice"]),
        ("calibrations: [1, 2", ["cannot be read as a calibration"]),
        ("", ["calibrations: expected a mapping"]),
        ("- 1\n- 2\n", ["calibrations: expected a mapping"]),
        ("calibrations: {}\n", ["calibrations: expected a mapping"]),
        ("calibrations: {A100: 3}\n", ["calibrations.A100: parameters: expected a mapping"]),
        ("calibrations: {A100: {x: 1}}\n", ["calibrations.A100: parameters: expected a mapping"]),
    ],
)
def test_a_file_of_another_kind(tmp_path, text, words):
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        load_beliefs(path)
    assert_one_line(error, [str(path), *words])


def test_a_file_that_cannot_be_read(tmp_path):
    (tmp_path / "c.yaml").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "none.yaml", tmp_path, tmp_path / "c.yaml"):
        with pytest.raises(InputError) as error:
            load_beliefs(path)
        assert_one_line(error, [str(path), "cannot be read as a calibration"])


def test_a_file_serves_a_gpu_and_its_family_and_no_other(tmp_path):
    path = write(tmp_path / "c.yaml", {"straggler": 0.25})
    for gpu in ("H100-80GB", "H100-96GB-500W"):
        assert float(load_calibration(path, gpu).straggler) == pytest.approx(0.25)
    with pytest.raises(InputError) as error:
        load_calibration(path, "A100-80GB")
    assert_one_line(error, [str(path), "none for A100-80GB", "H100-80GB"])


def test_the_fit_that_ships_for_a_gpu_is_found_by_its_name(tmp_path, monkeypatch):
    write(tmp_path / calibrations.SHIPPED, {"straggler": 0.25})
    monkeypatch.setattr(calibrations.importlib.resources, "files", lambda package: tmp_path)
    clear_shipped()
    try:
        for gpu in ("H100-80GB", "H100-96GB-500W"):
            assert float(default_calibration(gpu).straggler) == pytest.approx(0.25)
        for gpu in (None, "V100-32GB"):
            assert as_dict(default_calibration(gpu)) == as_dict(prior_calibration())
    finally:
        clear_shipped()


def clear_shipped():
    shipped_fit.cache_clear()
    calibrations._shipped.cache_clear()


FIGURES = {"peak_tflops": 312.0, "memory_gb": 85.9, "memory_gb_per_s": 2039, "nvlink_gb_per_s": 300}


@pytest.mark.parametrize(
    ("gpu", "stack", "name", "used", "words"),
    [
        ("A100-80GB", "megatron-fused", "A100-80GB", "A100-80GB/megatron-fused", []),
        ("A100", "llm-foundry", "A100-80GB", "A100-80GB/llm-foundry", []),
        ("A100", "pooled", "A100-80GB", "A100-80GB", ["stack: none is named", "wider band"]),
        (
            "A100",
            "torchtitan",
            "A100-80GB",
            "A100-80GB/torchtitan",
            ["stack: no run of torchtitan on A100-80GB was measured, those on H100-96GB-500W were"],
        ),
        ("GH-96", "deepspeed-eager", "GH200-96GB", "GH200-96GB/deepspeed-eager", []),
        (
            "A800-80GB",
            "llm-foundry",
            "A800-80GB",
            "A100-80GB/llm-foundry",
            ["A800-80GB under llm-foundry has no", "those of A100-80GB/llm-foundry are used"],
        ),
        ("H200", "torchtitan", "H200-141GB", "H100-80GB/torchtitan", ["H200-141GB under"]),
        ("MI300X", "torchtitan", "MI300X-192GB", "any/torchtitan", ["those of any/torchtitan"]),
        ("V100-32GB", "pooled", "V100-32GB", None, ["V100-32GB has no", "the priors are used"]),
        (FIGURES, "pooled", None, None, ["given as figures", "the priors"]),
        (None, "pooled", None, None, ["the priors"]),
    ],
)
def test_where_the_parameters_of_a_gpu_come_from_is_known(gpu, stack, name, used, words):
    source = efficiency_source(gpu, stack)
    assert (source.gpu, source.used, bool(source.why)) == (name, used, bool(words))
    for word in words:
        assert word in source.why
    # What is said is what is done.
    fit = None if used is None else calibrations._shipped()[used]
    expected = prior_calibration() if fit is None else fit.belief.calibration()
    assert as_dict(default_calibration(gpu, stack)) == as_dict(expected)


def test_what_was_not_measured_has_a_wider_band_and_no_domain():
    measured, other = (shipped_fit(g, "llm-foundry") for g in ("A100-80GB", "A800-80GB"))
    assert measured.domain is not None and other.domain is None
    assert other.band.step > measured.band.step
    assert shipped_fit("A100-80GB").domain is None, "no stack: nobody measured that"
    assert shipped_fit("A100-80GB").band.step > measured.band.step


@pytest.mark.parametrize("gpu", [None, *GPU_PRESETS])
def test_what_ships_can_be_used(gpu):
    for name, value in as_dict(default_calibration(gpu)).items():
        assert 0 < value < (1 if PRIORS[name].share else np.inf), name


def assert_one_line(error, words):
    text = str(error.value)
    assert "\n" not in text
    for word in words:
        assert word in text, f"{word!r} is not in {text!r}"
