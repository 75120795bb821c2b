"""Profiles told from their content, against arithmetic by hand."""

import json

import numpy as np
import pytest
from helpers.toy_world import EFFICIENCIES, calibration

from jaxsim.calibration.profiles import UnknownModel, load_profile
from jaxsim.files.errors import InputError

E = EFFICIENCIES
A100_NVLINK = 300e9 * E["nvlink_efficiency"]
OPERATORS = (
    "num_tensor_parallel_workers,num_tokens,n_embd,n_expanded_embd,n_head,n_kv_head,use_gated_mlp,"
    "ms_attn_pre_proj,ms_attn_post_proj,ms_mlp_up_proj,ms_mlp_down_proj\n"
)


def product_s(m, n, k):
    """A 16-bit product alone on an A100 under the toy efficiencies."""
    reach = m * n / (m * n + 128 * 128 * E["gemm_tail_tiles"]) * k / (k + E["gemm_depth"])
    arithmetic = 2 * m * n * k / (312e12 * E["gemm_efficiency"] * reach)
    memory = 2 * (m * n + k * (m + n)) / (2039e9 * E["memory_efficiency"])
    return (arithmetic**4 + memory**4) ** 0.25 + E["kernel_s"]


def test_operators_by_hand(tmp_path):
    path = tmp_path / "ops_a100_toy.csv"
    # Seven rows a column: of every seventh, the four operators of the first line remain.
    line = "2,1024,4096,11008,32,8,True,1.0,2.0,3.0,4.0\n"
    path.write_text(OPERATORS + line + line.replace("1024", "64") + 6 * line)
    profile = load_profile(path)
    assert (profile.gpu, profile.kind, profile.name) == ("A100-80GB", "operators", path.stem)
    assert profile.shape_only, "the card's clock is not an SXM node's"
    shapes = {
        1e-3: (1024, (4096 + 2 * 1024) / 2, 4096),
        2e-3: (1024, 4096, 4096 / 2),
        3e-3: (1024, 2 * 11008 / 2, 4096),
        4e-3: (1024, 4096, 11008 / 2),
    }
    measured = [round(float(x), 6) for x in profile.measured_s]
    assert set(measured) == set(shapes)
    want = [product_s(*shapes[x]) for x in measured]
    np.testing.assert_allclose(profile.predict(calibration()), want, rtol=1e-5)


def all_reduce_s(n, size):
    ring = 2 * (n - 1) / n * size / A100_NVLINK
    return E["collective_alpha_s"] * np.log2(n) + ring


def test_collectives_of_both_kinds_by_hand(tmp_path):
    vidur = tmp_path / "a100_dgx_all_reduce.csv"
    vidur.write_text(
        "collective,num_workers,size,ms_median\n"
        "all_reduce,8,2000000,0.5\nall_reduce,2,4000000,0.25\nall_reduce,8,1000,0.01\n"
        "all_gather,8,2000000,0.4\nall_reduce,1,2000000,0.1\n"
    )
    nccl = tmp_path / "nccl_a100.csv"
    nccl.write_text(
        "coll,log,ranks,bytes,time_us\n"
        "all_reduce_perf,run_N1_g8,8,2000000,500\nall_reduce_perf,run_N1_g2,2,4000000,250\n"
        "all_reduce_perf,run_N2_g8,16,2000000,900\nall_gather_perf,run_N1_g8,8,2000000,400\n"
    )
    for path in (vidur, nccl):
        profile = load_profile(path)
        assert profile.kind == "collectives" and not profile.shape_only
        np.testing.assert_allclose(profile.measured_s, [5e-4, 2.5e-4], rtol=1e-6)
        want = [all_reduce_s(8, 2e6), all_reduce_s(2, 4e6)]
        np.testing.assert_allclose(profile.predict(calibration()), want, rtol=1e-5)


def test_layers_of_a_known_model(tmp_path):
    path = tmp_path / "profile_OPT-350_GH-96.json"
    layer = {str(i): [0.01 * (i + 1), 0.02 * (i + 1), 0.0] for i in range(4)}
    path.write_text(json.dumps({"1": {"1": layer, "2": layer}, "64": {"1": layer}}))
    profile = load_profile(path)
    assert (profile.gpu, profile.kind) == ("GH200-96GB", "layers")
    # The middle layer, forward and backward; 64 sequences are more than any run's micro-batch.
    np.testing.assert_allclose(profile.measured_s, [0.09, 0.09], rtol=1e-6)
    alone, sliced = (float(x) for x in profile.predict(calibration()))
    faster = profile.predict(calibration(nvlink_efficiency=0.99))
    assert float(faster[0]) == alone and float(faster[1]) < sliced


def test_files_of_another_kind_are_no_profiles(tmp_path):
    for name in ("ops_v100.csv", "a100_pairwise_all_reduce.csv", "a100.txt", "a100_other.csv"):
        path = tmp_path / name
        path.write_text("collective,ms\n1,2\n" if "pairwise" in name else "a,b\n1,2\n")
        assert load_profile(path) is None, name
    unknown = tmp_path / "profile_GPT-9_A100-40.json"
    unknown.write_text("{}")
    assert load_profile(unknown) is None


def test_a_layer_profile_of_an_unknown_model_is_named(tmp_path):
    path = tmp_path / "profile_GPT-9_A100-40.json"
    path.write_text(json.dumps({"1": {"2": {"0": [0.01, 0.02, 0.0]}}}))
    with pytest.raises(UnknownModel) as error:
        load_profile(path)
    assert str(error.value) == f"{path}: a layer profile of an unknown model; known: OPT-350"
    for other in ('{"a": {"2": {"0": [1.0]}}}', '{"1": 2}', "[]", "{", '{"1": {}}'):
        path.write_text(other)
        assert load_profile(path) is None, other


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ops_a100.csv", ""),
        ("a100_dgx.csv", "collective,num_workers\nall_reduce,8\n"),
        ("ops_a100.csv", "ms_attn_pre_proj,ms_mlp_up_proj,num_tokens\n1,2,3\n"),
        ("profile_OPT-350_GH-96.json", "{"),
        ("profile_OPT-350_GH-96.json", "[1, 2]"),
        ("profile_OPT-350_GH-96.json", '{"1": {"1": {"0": [1.0, 2.0, 3.0], "3": []}}}'),
        ("profile_OPT-350_GH-96.json", '{"one": {"1": {"0": [1.0, 2.0, 3.0]}}}'),
        ("profile_OPT-350_GH-96.json", '{"1": {"1": {"0": 3.0}}}'),
    ],
)
def test_a_broken_profile_is_one_line_naming_the_file(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InputError) as error:
        load_profile(path)
    assert f"{path}: cannot be read as a profile" in str(error.value)
    assert "\n" not in str(error.value)
