"""Checkpoints: what is read is what was written, and nothing else is read."""

import hashlib
import importlib.resources
import json
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import serialization

from agents.hi_ppo import checkpoint
from agents.hi_ppo.checkpoint import (
    load_checkpoint,
    networks_of,
    policies,
    restore,
    save_checkpoint,
)
from agents.hi_ppo.scheduler import PolicyParams
from jaxsim.files.errors import InputError
from jaxsim.trees import take

META = {"hidden": 8, "every": 2, "seeds": [3, 5], "epoch": 4, "config": {"model": "toy"}}


def tree(scale=1.0):
    """Two policy seeds and what else a training state holds; leaves [2, ...]."""
    weights = scale * jnp.arange(12, dtype=jnp.float32).reshape(2, 3, 2) / 7.0
    upper = {"params": {"Dense_0": {"kernel": weights, "bias": weights[:, 0]}}}
    lower = {"params": {"prior_scale": scale * jnp.array([0.1, 0.2], jnp.float32)}}
    return {
        "policy": PolicyParams(upper, lower),
        "key": jnp.array([[1, 2**32 - 1], [3, 4]], jnp.uint32),
        "epoch": jnp.array([4, 4], jnp.int32),
    }


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "run" / "checkpoint.msgpack"
    save_checkpoint(path, tree(), META)
    return path


def same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)


def test_where_a_file_does_not_say_averages_begin_as_they_did_when_it_was_written(tmp_path):
    files = {"older": META, "newer": {**META, "reference": "outlook"}}
    for name, meta in files.items():
        save_checkpoint(tmp_path / name, tree(), meta)
    found = {name: networks_of(load_checkpoint(tmp_path / name)).reference for name in files}
    assert found == {"older": "base", "newer": "outlook"}


def test_a_round_trip_keeps_every_bit_type_and_word(saved):
    loaded = load_checkpoint(saved)
    assert loaded.meta == META
    same(restore(loaded, jax.tree.map(jnp.zeros_like, tree())), tree())


def test_a_run_folder_stands_for_its_checkpoint(saved):
    assert load_checkpoint(saved.parent).meta == load_checkpoint(str(saved)).meta


def test_there_is_one_policy_per_seed(saved):
    found = policies(load_checkpoint(saved))
    assert len(found) == 2
    for i, policy in enumerate(found):
        same(policy, take(tree()["policy"], i))


def refused(path):
    """The one line with which a file is refused."""
    with pytest.raises(InputError) as caught:
        load_checkpoint(path)
    message = str(caught.value)
    assert str(path) in message and "\n" not in message
    return message


def test_a_truncated_file_is_refused_wherever_it_ends(saved):
    content = saved.read_bytes()
    body = content.index(b"\n", len(checkpoint.MAGIC)) + 1
    for length in (0, 5, len(checkpoint.MAGIC), body - 20, body, body + 30, len(content) - 1):
        saved.write_bytes(content[:length])
        message = refused(saved)
        known = length >= len(checkpoint.MAGIC)
        assert ("truncated" if known else "not a Hi-PPO checkpoint") in message, length


def test_a_flipped_byte_is_found_wherever_it_is(saved):
    content = saved.read_bytes()
    body = content.index(b"\n", len(checkpoint.MAGIC)) + 1
    for at in (body, (body + len(content)) // 2, len(content) - 1):
        damaged = bytearray(content)
        damaged[at] ^= 1
        saved.write_bytes(bytes(damaged))
        assert "checksum" in refused(saved)


def test_a_flipped_byte_of_the_header_is_found(saved):
    """Every byte of it: a description that is wrong plays a policy in the wrong way."""
    content = saved.read_bytes()
    start, stop = len(checkpoint.MAGIC), content.index(b"\n", len(checkpoint.MAGIC)) + 1
    for at in range(start, stop):
        for bit in (1, 4):
            damaged = bytearray(content)
            damaged[at] ^= bit
            saved.write_bytes(bytes(damaged))
            refused(saved)
    saved.write_bytes(content.replace(b'"every": 2', b'"every": 3'))
    assert "checksum" in refused(saved)


def written(path, meta, tree_of=None, version=checkpoint.VERSION):
    """A file whose checksum is right, whatever it holds."""
    arrays = serialization.to_state_dict(tree() if tree_of is None else tree_of)
    body = serialization.msgpack_serialize(jax.tree.map(np.asarray, arrays))
    if version == 1:
        digest = hashlib.sha256(body).hexdigest()
        header = json.dumps({"version": 1, "sha256": digest, **meta}).encode()
        path.write_bytes(checkpoint.MAGIC + header + b"\n" + body)
    else:
        header = json.dumps({"version": version, **meta}).encode()
        digest = hashlib.sha256(header + b"\n" + body).hexdigest().encode()
        path.write_bytes(checkpoint.MAGIC + header + b"\n" + digest + b"\n" + body)
    return path


def test_the_older_version_is_read(saved):
    first = load_checkpoint(saved)
    older = load_checkpoint(written(saved.with_name("older.msgpack"), META, version=1))
    assert older.meta == first.meta
    same(older.tree, first.tree)


@pytest.mark.parametrize("version", [1, checkpoint.VERSION])
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"every": 0}, ["every", ">= 1", "got 0"]),
        ({"every": 10**400}, ["every", ">= 1", "got 1000"]),
        ({"every": "often"}, ["every", "'often'"]),
        ({"hidden": 0}, ["hidden", ">= 1"]),
        ({"hidden": 2**31}, ["hidden", "at most 4096"]),
        ({"hidden": True}, ["hidden", "True"]),
        ({"encoder": "cnn"}, ["encoder", "sage, gat", "cnn"]),
        ({"forecasts": "some"}, ["forecasts", "true or false", "some"]),
        ({"lower_level": "none"}, ["lower_level", "filtered", "measured", "base", "none"]),
        ({"reference": "none"}, ["reference", "outlook, base", "none"]),
        ({"seeds": []}, ["seeds", "at least one"]),
        ({"seeds": 3}, ["seeds", "got 3"]),
        ({"seeds": [3, 3]}, ["seeds", "different"]),
        ({"seeds": [3, -1]}, ["seeds", "got -1"]),
        ({"seeds": [3]}, ["1 seeds, but arrays of shape (2,"]),
        ({"epoch": -1}, ["epoch", "got -1"]),
        ({"config": None}, ["config", "mapping"]),
        ({"rivals": [1]}, ["rivals", "mapping"]),
        ({"rivals": {"hysteresis_horizon": "long"}}, ["rivals", "hysteresis_horizon", "long"]),
    ],
)
def test_a_description_that_no_policy_has_is_refused(tmp_path, version, changes, words):
    message = refused(written(tmp_path / "c.msgpack", {**META, **changes}, version=version))
    for word in words:
        assert word in message
    for key in changes.keys() - {
        "rivals",
        "encoder",
        "forecasts",
        "lower_level",
        "reference",
    }:  # they may be missing
        rest = {k: v for k, v in META.items() if k != key}
        assert f"missing key {key!r}" in refused(written(tmp_path / "d.msgpack", rest))


def test_a_header_with_a_key_twice_is_refused(tmp_path):
    path = written(tmp_path / "c.msgpack", META)
    path.write_bytes(path.read_bytes().replace(b'"every": 2', b'"every": 2, "every": 3'))
    assert "header" in refused(path)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_no_numbers_are_refused(tmp_path, value):
    broken = tree()
    weights = broken["policy"].lower["params"]
    weights["prior_scale"] = weights["prior_scale"].at[0].set(value)
    message = refused(written(tmp_path / "c.msgpack", META, broken))
    assert "policy.lower.params.prior_scale is not finite" in message


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"epoch": np.zeros(2)}, "holds no policy"),
        ({"policy": {"upper": np.zeros(2)}}, "an upper and a lower one"),
        ({"policy": {"upper": np.zeros(2), "lower": np.zeros(3)}}, "arrays of shape (3,)"),
        ({"policy": {"upper": np.zeros(2), "lower": "ab"}}, "lower: expected an array of numbers"),
    ],
)
def test_a_body_without_a_policy_is_refused(tmp_path, body, words):
    path = written(tmp_path / "c.msgpack", META, {})
    packed = serialization.msgpack_serialize(body)
    header = json.dumps({"version": checkpoint.VERSION, **META}).encode()
    digest = hashlib.sha256(header + b"\n" + packed).hexdigest().encode()
    path.write_bytes(checkpoint.MAGIC + header + b"\n" + digest + b"\n" + packed)
    assert words in refused(path)


def test_arrays_of_other_shapes_or_names_are_not_restored(saved):
    target = jax.tree.map(jnp.zeros_like, tree())
    loaded = load_checkpoint(saved)
    longer = {**target, "epoch": jnp.zeros((3,), jnp.int32)}
    with pytest.raises(
        InputError, match=r"epoch: expected an array int32 \(3,\), got int32 \(2,\)"
    ):
        restore(loaded, longer)
    with pytest.raises(InputError, match=r"epoch: expected an array float32"):
        restore(loaded, {**target, "epoch": jnp.zeros((2,), jnp.float32)})
    with pytest.raises(InputError, match="expected epoch, key, policy, step, got"):
        restore(loaded, {**target, "step": jnp.zeros((2,))})


def test_the_shipped_policy_fits_its_networks_and_a_toy_does_not(saved):
    trained = checkpoint.load_trained()
    same(trained.tree, checkpoint.load_shipped().tree)
    assert len(policies(trained)) == len(trained.meta["seeds"])
    with pytest.raises(InputError) as caught:
        checkpoint.load_trained(saved)
    assert f"{saved}: policy.upper.params: expected encoder," in str(caught.value)


def test_the_shipped_file_has_the_checksum_that_covers_its_header():
    content = (importlib.resources.files("agents.hi_ppo") / checkpoint.SHIPPED).read_bytes()
    assert json.loads(content[len(checkpoint.MAGIC) :].split(b"\n", 1)[0])["version"] == 2


def test_bytes_behind_the_end_are_found(saved):
    saved.write_bytes(saved.read_bytes() + b"\0")
    assert "checksum" in refused(saved)


def test_another_version_is_refused_and_named(saved):
    head, body = saved.read_bytes()[len(checkpoint.MAGIC) :].split(b"\n", 1)
    header = {**json.loads(head), "version": 99}
    saved.write_bytes(checkpoint.MAGIC + json.dumps(header).encode() + b"\n" + body)
    message = refused(saved)
    assert "99" in message and str(checkpoint.VERSION) in message


@pytest.mark.parametrize("content", [b"", b"\x80\x04pickle", b"{}\n", "Größe".encode("latin-1")])
def test_a_file_of_another_kind_is_refused(tmp_path, content):
    path = tmp_path / "other"
    path.write_bytes(content)
    assert "not a Hi-PPO checkpoint" in refused(path)


@pytest.mark.parametrize("header", [b"", b"[]", b"7", b"null", b'"x"', b"{}", b"\xff\xfe"])
def test_a_header_that_says_nothing_is_refused(tmp_path, header):
    path = tmp_path / "other"
    path.write_bytes(checkpoint.MAGIC + header + b"\nrest")
    assert "header" in refused(path)


def test_a_missing_file_or_folder_is_named(tmp_path):
    assert "no checkpoint there" in refused(tmp_path / "nowhere.msgpack")
    with pytest.raises(InputError, match=r"checkpoint\.msgpack: no checkpoint there"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_the_umask_decides_who_may_read_a_checkpoint(tmp_path, umask):
    before = os.umask(umask)
    try:
        save_checkpoint(tmp_path / "checkpoint.msgpack", tree(), META)
    finally:
        os.umask(before)
    assert (tmp_path / "checkpoint.msgpack").stat().st_mode & 0o777 == 0o666 & ~umask


def fail(*_):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("broken", ["serialize", "write", "replace"])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(saved, monkeypatch, broken):
    before = saved.read_bytes()
    if broken == "serialize":
        monkeypatch.setattr(checkpoint.serialization, "msgpack_serialize", fail)
    elif broken == "write":
        monkeypatch.setattr(checkpoint.json, "dumps", fail)
    else:
        monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="No space"):
        save_checkpoint(saved, tree(2.0), META)
    assert saved.read_bytes() == before
    assert os.listdir(saved.parent) == [saved.name]


def test_an_interrupt_while_writing_leaves_the_old_file(saved, monkeypatch):
    before = saved.read_bytes()

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(saved, tree(2.0), META)
    assert saved.read_bytes() == before
    assert os.listdir(saved.parent) == [saved.name]


@pytest.mark.parametrize("value", [jnp.nan, jnp.inf])
def test_a_diverged_policy_is_refused_and_the_old_file_kept(saved, value):
    before, diverged = saved.read_bytes(), tree()
    weights = diverged["policy"].lower["params"]
    weights["prior_scale"] = weights["prior_scale"].at[1].set(value)
    for path, kept in ((saved, "kept"), (saved.with_name("new.msgpack"), "no older file")):
        with pytest.raises(InputError) as caught:
            save_checkpoint(path, diverged, META)
        message = str(caught.value)
        assert "\n" not in message and str(path) in message and kept in message
        assert "policy.lower.params.prior_scale is not finite" in message
    assert saved.read_bytes() == before
    assert os.listdir(saved.parent) == [saved.name]


def test_a_new_checkpoint_takes_the_place_of_the_old(saved):
    save_checkpoint(saved, tree(2.0), {**META, "epoch": 8})
    loaded = load_checkpoint(saved)
    assert loaded.meta["epoch"] == 8
    same(restore(loaded, tree()), tree(2.0))
    assert os.listdir(saved.parent) == [saved.name]
