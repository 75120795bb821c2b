"""Annotations of arrays hold: wrong arrays are refused, public functions have them, fields are true."""

import dataclasses
import inspect
import pkgutil
import typing
from importlib import import_module

import beartype.door
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.toy_table import TABLE
from helpers.toy_world import JOB, calibration, cluster_spec, env_params, make_plan
from helpers.type_checks import CHECKED, check_calls, mentions_arrays
from jax import Array
from jaxtyping import Float, TypeCheckError, jaxtyped

import jaxsim
from jaxsim.env import allocate_gpus
from jaxsim.network import init_network, link_uniforms, step_network
from jaxsim.plan import masked_sums
from jaxsim.pytree import Pytree
from jaxsim.scenario import ScenarioSettings, build_world, scenario_bank
from jaxsim.step_time import replicas_running
from jaxsim.trees import take

K = 4


@pytest.fixture(scope="module")
def world(scoring_is_optimised):
    """A small one; not built on import, since every process imports every file."""
    return build_world(cluster_spec(K), JOB, 8, 20, calibration())[0]


@pytest.fixture(scope="module")
def maps():
    """One scenario of K domains, made by hand."""
    plan = make_plan([(0, 1)], [(4, 4)], [8], K, dp=2, micro_batch=2)
    return jax.tree.map(jnp.asarray, env_params(cluster_spec(K, gpus=4), JOB, plan))


def test_a_wrong_shape_is_refused(maps):
    hot, vectors = jnp.ones((K, K), bool), jnp.ones((2, K))
    assert masked_sums(hot, vectors).shape == (2, K)
    with pytest.raises(TypeCheckError, match="vectors"):
        masked_sums(hot, vectors.T)  # [K, 2]
    with pytest.raises(TypeCheckError, match="mask"):
        masked_sums(hot[:, 1:], vectors)  # not square
    with pytest.raises(TypeCheckError, match="available"):
        allocate_gpus(maps.initial_plan, jnp.ones(1, bool), jnp.ones((1, K), jnp.int32))


def test_a_wrong_kind_of_number_is_refused(maps):
    plan = jax.tree.map(lambda x: x[0], maps.initial_plan)
    gpus = maps.problem.cluster.gpus
    assert replicas_running(plan, gpus).shape == (K,)
    with pytest.raises(TypeCheckError, match="gpus_available"):
        replicas_running(plan, gpus.astype(jnp.float32))
    with pytest.raises(TypeCheckError, match="key"):
        link_uniforms(jax.random.key_data(jax.random.key(0)), K)


def test_axes_of_one_name_agree_between_arguments(maps):
    other = (jnp.ones((K, K)), jnp.ones((K, K)), jnp.ones((K + 1, K + 1)))
    state = init_network(maps.network, jax.random.key(0))
    with pytest.raises(TypeCheckError, match="uniforms"):
        step_network(maps.network, state, jax.random.key(0), jnp.int32(0), other)


def test_a_wrong_result_is_refused():
    @jaxtyped(typechecker=check_calls)
    def turned(x: Float[Array, "C K"]) -> Float[Array, "C K"]:
        return x.T

    assert turned(jnp.ones((2, 2))).shape == (2, 2)
    with pytest.raises(TypeCheckError, match="return value"):
        turned(jnp.ones((2, 3)))


def test_checks_hold_while_programs_are_traced():
    with pytest.raises(TypeCheckError, match="vectors"):
        jax.jit(masked_sums)(jnp.ones((K, K), bool), jnp.ones((K, 2)))
    batched = jax.vmap(masked_sums)(jnp.ones((3, K, K), bool), jnp.ones((3, 2, K)))
    assert batched.shape == (3, 2, K)


# --- every public function says what its arrays are -----------------------------------------------


def indices():
    """Modules whose `__all__` is a door: the packages and their folders."""
    for name in CHECKED:
        package = import_module(name)
        yield package
        for found in pkgutil.walk_packages(package.__path__, f"{name}."):
            if found.ispkg:
                yield import_module(found.name)


def public_functions():
    """(name, function) of the functions of all indices, and of the methods of their classes."""
    for index in indices():
        for name in getattr(index, "__all__", ()):
            thing = getattr(index, name)
            if inspect.isclass(thing):
                for key, value in vars(thing).items():
                    value = getattr(value, "fget", getattr(value, "__func__", value))
                    if inspect.isfunction(value) and not key.startswith("_"):
                        yield f"{index.__name__}.{name}.{key}", inspect.unwrap(value)
            elif inspect.isfunction(inspect.unwrap(thing)):
                yield f"{index.__name__}.{name}", inspect.unwrap(thing)


def bare(hint):
    """Is the hint, or a part of it, an array of any shape and kind?"""
    if hint in (jax.Array, np.ndarray):
        return True
    parts = hint if isinstance(hint, list) else typing.get_args(hint)
    return any(bare(part) for part in parts)


def test_public_functions_state_shape_and_kind_of_their_arrays():
    hints = {}
    for name, function in dict(public_functions()).items():
        if function.__module__ == "jaxsim.files.tables":  # pandas is imported when it is needed
            continue
        hints[name] = typing.get_type_hints(function)
    assert sum(any(map(mentions_arrays, h.values())) for h in hints.values()) > 100
    wrong = sorted(n for n, h in hints.items() if any(map(bare, h.values())))
    assert not wrong, wrong


# --- fields -----------------------------------------------------------------------------------------


def instances(tree):
    """All pytrees of this project in a tree."""
    if isinstance(tree, Pytree):
        yield tree
        for field in dataclasses.fields(tree):
            yield from instances(getattr(tree, field.name))
    elif isinstance(tree, tuple | list):
        for part in tree:
            yield from instances(part)


def untrue_fields(instance):
    """Fields whose annotation, with the axes of the fields before it, does not hold."""
    bases = reversed(type(instance).__mro__)  # each in its own module
    hints = {k: v for b in bases for k, v in inspect.get_annotations(b, eval_str=True).items()}
    with jaxtyped("context"):
        for field in dataclasses.fields(instance):
            hint, value = hints[field.name], getattr(instance, field.name)
            if mentions_arrays(hint) and not beartype.door.is_bearable(value, hint):
                yield f"{type(instance).__name__}.{field.name}: {jnp.shape(value)}, {hint}"


@pytest.mark.parametrize("built", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_annotations_of_fields_are_true(built, maps, request):
    """Of a scenario, of what is played in it, and of a batch of both; `built` is one as users have it,
    with its world."""
    about = TABLE
    if built:
        about = request.getfixturevalue("world")
        maps = take(scenario_bank(about, ScenarioSettings(horizon=4), range(1), "test")[0], 0)
    state, timestep = jaxsim.reset(jax.random.key(0), maps)
    stacked = jax.tree.map(lambda x: jnp.stack([x, x]), (maps, state, timestep))
    found = [*instances((about, maps, state, timestep)), *instances(stacked)]
    assert len({type(one) for one in found}) > 20
    wrong = {line for one in found for line in untrue_fields(one)}
    assert not wrong, sorted(wrong)


def test_an_untrue_field_is_found(maps):
    plan = maps.initial_plan
    assert not list(untrue_fields(plan))
    assert len(list(untrue_fields(plan.replace(layers=plan.layers[:, 1:])))) == 1
    assert len(list(untrue_fields(plan.replace(tp=plan.tp.astype(jnp.float32))))) == 1
