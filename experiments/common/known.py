"""Names that options take, without the modules that define them: for `--help`, and for refusals that
come before anything is loaded. A test compares them with the registries."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from jaxsim.files import InputError
from jaxsim.scenario import JITTERS

SCHEDULERS = (
    *("random", "static_even_split", "single_domain", "best_static"),
    *("megatron", "zero", "alpa", "crosspipe", "dt_fm", "mast", "ray"),
    *("bace_pipe", "sailor", "hyperion"),
    *("hysteresis", "smoothed_hysteresis", "shrinkage_hysteresis", "self_tuning_hysteresis"),
    "rollout",
    *("replan_oracle", "clairvoyant"),
)
LEARNED = "hi_ppo"
SEARCH = "+search"  # ends the name of a policy whose best rows are tried on imagined futures
LOW_COMMUNICATION = ("diloco", "streaming_diloco", "halos")
ORACLES = ("replan_oracle", "clairvoyant")
EVERYBODY = (*SCHEDULERS, LEARNED, *LOW_COMMUNICATION)
WITHOUT_TRUTH = tuple(name for name in (*SCHEDULERS, LEARNED) if name not in ORACLES)
CANDIDATES = tuple(name for name in SCHEDULERS if name not in (*ORACLES, "random"))
ALLOWED = ("synchronous", "any")
CLUSTERS = (
    *("four-aws-regions", "eight-aws-regions"),
    *("mixed-aws-regions", "large-aws-regions"),
)
MODELS = ("gpt2-small", "gpt2-medium", "llama-7b", "llama-13b", "llama-70b", "llama-405b")
MOST_JOBS = 64  # at once in the simulator
LINK_KINDS = ("uniform", "ou", "regime", "heavy", "outage")  # of processes that are fitted
GPUS = (
    *("V100-32GB", "A100-40GB", "A100-80GB", "H100-80GB", "GH200-96GB", "H100-96GB-500W"),
    *("A800-80GB", "H200-141GB", "B200-180GB", "L40S-48GB", "MI300X-192GB"),
)
SHARING = ("fair", "crux")
WORLDS = (
    *("four-aws-regions", "eight-aws-regions"),
    *("70b-eight-regions", "70b-sixteen-regions", "405b-eight-regions"),
    *("steady", "jitter", "drift", "load", "swinging-load", "bursty-load"),
    *("heavy-tail", "regime", "outage"),
)
SUITES = (
    *("default", "jitter", "load", "varied", "mixture", "ablation", "stress"),
    *("regions", "worlds", "scale", "jobs"),
)


class Names(NamedTuple):
    """The names that an option takes."""

    known: tuple[str, ...]
    what: str  # that is refused
    else_: str = ""  # what else is allowed, in words
    other: Callable[[str], bool] = lambda name: False  # is it that?
    many: bool = False  # separated by commas


def _exists(name: str) -> bool:
    return Path(name).exists()


def _is_yaml(name: str) -> bool:
    return ".yaml" in name or name.endswith(".yml")


def _is_world(name: str) -> bool:
    """A known one with plans of its own, or a suite's file."""
    world, _, allowed = name.partition(":")
    return _is_yaml(name) or (world in WORLDS and allowed in ALLOWED)


def _is_policy(name: str) -> bool:
    """A checkpoint, or a policy that searches."""
    bare = name.removesuffix(SEARCH)
    return _exists(name) or _exists(bare) or (bare != name and bare == LEARNED)


_PATH = ("a checkpoint", _is_policy)
OPTIONS = {
    # What else it takes is a file, and its reader says best what is wrong with that.
    "cluster": Names(CLUSTERS, "cluster", other=lambda name: True),
    "schedulers": Names(("all", *EVERYBODY), "scheduler", *_PATH, many=True),
    "scheduler": Names(WITHOUT_TRUTH, "scheduler that works without the truth", *_PATH),
    "policy": Names(WITHOUT_TRUTH, "scheduler that works without the truth", *_PATH),
    "candidates": Names(("all", *CANDIDATES), "candidate", many=True),
    "model": Names(MODELS, "model", "a YAML file, a Hugging Face config.json", _exists),
    "models": Names(MODELS, "model", "YAML files", _exists, many=True),
    "sharing": Names(SHARING, "way to share links"),
    "jitter": Names(JITTERS, "jitter", "FILE.yaml", _is_yaml),
    "jitters": Names(JITTERS, "jitter", "FILE.yaml", _is_yaml, many=True),
    "worlds": Names(
        WORLDS, "world", "NAME:any, NAME:synchronous, a suite's FILE.yaml", _is_world, many=True
    ),
    "suite": Names(SUITES, "suite", "FILE.yaml or FILE.yaml:NAME", _is_yaml),
}


def check_names(key: str, value: str | None, names: Names) -> None:
    """Raise InputError for a name that is neither known nor what else the option takes."""
    if value is None:
        return
    for name in (part.strip() for part in value.split(",")) if names.many else (value,):
        if name and name not in names.known and not names.other(name):
            further = f"{names.else_} or one of: " if names.else_ else "one of: "
            raise InputError(
                f"{key}: {name!r} is no {names.what}; expected {further}{', '.join(names.known)}"
                f"{did_you_mean(name, names.known)}"
            )


LEAST_OF_NAME = 3  # letters of a name that begins a longer one


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean NAME?` where a known name is close to `name` or begins it, else nothing."""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1) or [
        one for one in names if len(one) >= LEAST_OF_NAME and name.startswith(one)
    ]
    return f"; did you mean {close[0]}?" if close else ""
