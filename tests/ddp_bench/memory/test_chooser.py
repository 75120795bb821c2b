"""Policies chosen within a budget against every policy there is."""

import itertools
import math

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from ddp_bench.memory import chooser, costs_of, exhaustive, fitted, measure, predict  # noqa: E402
from ddp_bench.memory.chooser import UNSEEN, Costs, NoRoom, Option, choose, least_peak, peak_of  # noqa: E402
from ddp_bench.memory.step import LlamaJob, applied, options_of, units_of  # noqa: E402
from ddp_bench.toolbox import LlamaShape  # noqa: E402

BYTES = st.integers(0, 60)
OPTIONS = st.tuples(st.integers(-5, 60), BYTES, BYTES, st.integers(0, 40))


@st.composite
def problems(draw):
    """Costs of up to five units with up to four options each."""
    units = {}
    for unit in range(draw(st.integers(1, 5))):
        found = draw(st.lists(OPTIONS, min_size=1, max_size=4))
        names = ["keep", *(f"recompute:{i}" for i in range(1, len(found)))]
        rows = zip(names, found, strict=True)
        units[f"u{unit}"] = tuple(Option(n, s, f, b, t / 8) for n, (s, f, b, t) in rows)
    return Costs(units, draw(BYTES))


@settings(max_examples=200, deadline=None)
@given(problem=problems(), budget=st.integers(0, 250))
def test_the_choice_is_the_best_of_all_policies(problem, budget):
    best = exhaustive(problem, budget)
    assert (least_peak(problem) <= budget) == (best is not None)
    if best is None:
        with pytest.raises(NoRoom, match="the least needs"):
            choose(problem, budget)
        return
    found = choose(problem, budget)
    assert found.seconds == best.seconds and found.peak <= budget
    assert found.peak == peak_of(problem, found.policy)


@settings(max_examples=100, deadline=None)
@given(problem=problems(), budget=st.integers(1, 250))
def test_rounded_labels_keep_the_budget(problem, budget):
    assume(exhaustive(problem, budget) is not None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chooser, "MOST_LABELS", 1)
        patch.setattr(chooser, "GRID", 64)
        try:
            found = choose(problem, budget)
        except NoRoom:
            return  # rounding up may lose the last policy that fits, never break the budget
    assert found.peak <= budget


JOB = LlamaJob(
    LlamaShape(layers=3, width=32, heads=2, kv_heads=1, hidden=88, vocab=64), 4, 48, "sgd"
)
# Written down, so that the test does not hang on the machine's speed. Layers differ.
SECONDS = {
    "layers.0": {"keep": 0.0, "recompute:feed_forward": 1.0, "recompute": 2.5, "offload": 3.0},
    "layers.1": {"keep": 0.0, "recompute:feed_forward": 1.2, "recompute": 2.0, "offload": 4.0},
    "layers.2": {"keep": 0.0, "recompute:feed_forward": 0.8, "recompute": 2.2, "offload": 2.0},
}


@pytest.fixture(scope="module")
def problem():
    options = list(SECONDS["layers.0"])
    return costs_of({o: predict(JOB, dict.fromkeys(SECONDS, o)) for o in options}, SECONDS)


def test_the_additive_model_is_the_peak_of_mixed_policies(problem):
    mixed = [
        {"layers.0": "recompute", "layers.2": "offload"},
        {"layers.0": "offload", "layers.1": "recompute:feed_forward", "layers.2": "recompute"},
        {"layers.1": "offload"},
    ]
    for policy in mixed:
        assert peak_of(problem, policy) == pytest.approx(predict(JOB, policy).peak, rel=0.01)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.8])
def test_a_budget_is_kept_and_hardly_anything_is_given_away(problem, share):
    least, most = least_peak(problem), peak_of(problem, {})
    budget = math.ceil(least + share * (most - least)) + UNSEEN
    choice, predicted = fitted(JOB, problem, budget)
    assert predicted.peak <= budget
    assert measure(JOB, choice.policy).peak <= budget
    best = exhaustive(problem, budget - UNSEEN)
    assert choice.seconds <= 1.03 * best.seconds


def test_below_the_least_nothing_fits(problem):
    with pytest.raises(NoRoom, match="the least needs"):
        fitted(JOB, problem, least_peak(problem) - 1)


@pytest.mark.nightly
def test_the_choice_is_within_three_percent_of_predicting_every_policy(problem):
    """The judge is not the additive model: every policy of two choices is predicted as a whole."""
    names = ("keep", "recompute")
    tried = list(itertools.product(names, repeat=len(SECONDS)))
    peaks = {p: predict(JOB, dict(zip(SECONDS, p, strict=True))).peak for p in tried}
    units = {
        unit: tuple(o for o in options if o.name in names)
        for unit, options in problem.units.items()
    }
    few = Costs(units, problem.floor)
    for share in (0.1, 0.25, 0.5, 0.75):
        budget = int(min(peaks.values()) + share * (max(peaks.values()) - min(peaks.values())))
        cost = {p: sum(SECONDS[u][o] for u, o in zip(SECONDS, p, strict=True)) for p in peaks}
        best = min(cost[p] for p in peaks if peaks[p] <= budget)
        choice, predicted = fitted(JOB, few, budget)
        assert predicted.peak <= budget and choice.seconds <= 1.03 * best


@pytest.mark.parametrize("option", ["recompute", "recompute:attention", "offload"])
def test_gradients_stay_what_they_are(option, tmp_path):
    step = JOB()
    step.loss(step.model(step.inputs), step.targets).backward()
    wanted = [parameter.grad.clone() for parameter in step.model.parameters()]
    step.model.zero_grad()
    with applied(step.model, dict.fromkeys(SECONDS, option), str(tmp_path)):
        step.loss(step.model(step.inputs), step.targets).backward()
    for parameter, gradient in zip(step.model.parameters(), wanted, strict=True):
        assert torch.equal(parameter.grad, gradient)
    assert "forward" not in vars(step.model.layers[0]) and not list(tmp_path.iterdir())


def test_choices_that_are_not_there_are_refused():
    model = JOB().model
    for policy, error in (
        ({"layers.9": "keep"}, KeyError),
        ({"layers.0": "forget"}, ValueError),
        ({"layers.0": "recompute", "layers.1": "recompute:nothing"}, AttributeError),
    ):
        with pytest.raises(error), applied(model, policy):
            pass
        assert "forward" not in vars(model.layers[0])


def test_units_are_the_members_of_the_outermost_lists():
    inner = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    model = torch.nn.Module()
    model.body = torch.nn.ModuleList([inner, torch.nn.Linear(2, 2)])
    assert list(units_of(model)) == ["body.0", "body.1"]
    assert options_of(model.body[1]) == ["keep", "recompute", "offload"]
