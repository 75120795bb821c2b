"""Predicted memory against what the allocator was asked for."""

from dataclasses import dataclass

import pytest

torch = pytest.importorskip("torch")

from ddp_bench.memory import LlamaJob, measure, predict, replay, units_of  # noqa: E402
from ddp_bench.memory.step import applied  # noqa: E402
from ddp_bench.memory.work import case, policy_of  # noqa: E402
from ddp_bench.toolbox import SHAPES, LlamaShape  # noqa: E402

TINY = LlamaShape(layers=2, width=32, heads=2, kv_heads=1, hidden=88, vocab=64)
UNITS = ("layers.0", "layers.1")
DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
    ),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("choice", ["keep", "recompute", "recompute:feed_forward", "offload"])
def test_the_peak_is_the_allocators(choice, device, tmp_path):
    job = LlamaJob(TINY, 3, 40, "adamw" if choice == "keep" else "sgd", device)
    policy = dict.fromkeys(UNITS, choice)
    predicted, measured = predict(job, policy), measure(job, policy, str(tmp_path))
    assert predicted.peak == pytest.approx(measured.peak, rel=0.01 if device == "cpu" else 0.05)
    for phase in ("forward", "backward"):
        wanted = measured.phases[phase]
        assert predicted.phases[phase] == pytest.approx(
            wanted, rel=0.01 if device == "cpu" else 0.05
        )


@pytest.mark.nightly
def test_twenty_settings_are_predicted_within_five_percent(tmp_path):
    seen = set()
    for index in range(20):
        name, job, choice = case(index, ["tiny", "small", "wide", "deep"], "cpu")
        seen.add((name, job, choice))
        policy = policy_of(choice, job)
        peak = measure(job, policy, str(tmp_path)).peak
        assert predict(job, policy).peak == pytest.approx(peak, rel=0.05)
    assert len(seen) == 20


@pytest.fixture(scope="module")
def kept():
    return predict(LlamaJob(TINY, 3, 40))


def test_the_peak_is_the_sum_of_its_kinds(kept):
    assert sum(kept.kinds.values()) == kept.peak == max(kept.phases.values())
    weights = sum(p.numel() for p in LlamaJob(TINY, 3, 40)().model.parameters())
    table = 2 * TINY.longest * TINY.width // TINY.heads // 2
    assert kept.kinds["parameters"] == 4 * (weights + table)
    # Two moments of every weight, and a step count of 4 B for each tensor.
    tensors = len(list(LlamaJob(TINY, 3, 40)().model.parameters()))
    assert kept.kinds["optimizer"] == pytest.approx(8 * weights + 4 * tensors, abs=64)


def test_later_units_find_more_alive(kept):
    first, second = (kept.units[unit] for unit in UNITS)
    assert first["forward"] < second["forward"] < second["backward"] <= kept.peak
    assert list(kept.units) == list(units_of(LlamaJob(TINY, 1, 2)().model)) == list(UNITS)


def test_every_allocation_of_the_trace_ends_once(kept):
    alive = {}
    for event in kept.trace.events:
        if event.size:
            assert event.block not in alive
            alive[event.block] = event.size
        else:
            del alive[event.block]
    assert kept.trace.peak == kept.peak
    by_kind = kept.trace.live_by_kind()
    assert [sum(values) for values in zip(*by_kind.values(), strict=True)] == kept.trace.live()


def test_a_step_leaves_no_change_in_a_predicted_model(kept):
    assert not torch.cuda.is_available() or torch.cuda.memory_allocated() == 0
    assert predict(LlamaJob(TINY, 3, 40)).peak == kept.peak  # nothing of the first run is left


def test_what_offloads_to_a_full_folder_says_so(tmp_path):
    """A limit on the size of files, as a full disk would be: the step ends by the system's error."""
    import resource
    import signal

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(OSError):
            measure(LlamaJob(TINY, 8, 64), {"layers.0": "offload"}, str(tmp_path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_the_caching_policy_holds_what_pytorch_holds():
    found = measure(LlamaJob(SHAPES["wide"], 16, 256, device="cuda"))
    assert replay(found.trace, "caching").reserved == pytest.approx(found.reserved, rel=0.05)


@dataclass(frozen=True)
class Odd(LlamaJob):
    """A job whose model does something of its own.

    Attributes:
        how: "forward" and "backward" raise there; "nan" makes a weight NaN.
    """

    how: str = ""

    def __call__(self):
        step = super().__call__()
        unit = step.model.layers[1]

        def refuse(*_):
            raise ValueError("three is too many")

        if self.how == "forward":
            unit.register_forward_pre_hook(refuse)
        elif self.how == "backward":
            unit.attention.out.weight.register_hook(refuse)
        else:
            unit.attention.out.weight.data[0, 0] = float("nan")
        built.append(step.model)
        return step


built: list = []


@pytest.mark.parametrize("how", ["forward", "backward"])
@pytest.mark.parametrize("choice", ["recompute", "recompute:feed_forward", "offload"])
def test_a_hook_that_raises_leaves_the_forwards_as_they_were(choice, how, tmp_path):
    built.clear()
    job, policy = Odd(TINY, 3, 40, how=how), dict.fromkeys(UNITS, choice)
    with pytest.raises(ValueError, match="three is too many"):
        measure(job, policy, str(tmp_path))
    step = job()
    with pytest.raises(ValueError, match="three"), applied(step.model, policy, str(tmp_path)):
        step.run()
    for model in built:
        assert not any("forward" in vars(module) for module in model.modules())
    # What comes after it measures as if nothing had happened.
    after = measure(LlamaJob(TINY, 3, 40), policy, str(tmp_path)).peak
    assert after == pytest.approx(predict(LlamaJob(TINY, 3, 40), policy).peak, rel=0.01)


def test_a_policy_that_is_wrong_half_way_leaves_the_forwards_as_they_were():
    model = LlamaJob(TINY, 1, 2)().model
    with (
        pytest.raises(ValueError, match="known: keep"),
        applied(model, {UNITS[0]: "recompute", UNITS[1]: "forget"}),
    ):
        pass
    assert not any("forward" in vars(module) for module in model.modules())


def test_weights_that_are_nan_need_as_much_memory():
    assert measure(Odd(TINY, 3, 40, how="nan")).peak == measure(LlamaJob(TINY, 3, 40)).peak
