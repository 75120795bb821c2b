"""Settings of a run: one typed record, filled from defaults, a YAML file and the command line."""

from __future__ import annotations

import contextlib
import os
import typing
from dataclasses import dataclass
from pathlib import Path

import yaml

from analysis.records import RecordError, load
from ddp_bench.errors import ConfigError
from ddp_bench.options import Parser, add_options, check_options, option

ARMS = (
    "static",
    "dynamic",
    "pooled",
    "group_by_length",
    "group_by_length_pooled",
    "packed",
    "hf_batch_rebalance",
)
COSTS = ("tokens", "tokens_sq", "fitted")
SOLVERS = ("order_statistic", "enumeration", "greedy")
# Settings of a job rather than of the run it works on: a resumed run may have other ones. The
# first three are never taken over, the others unless they are given.
JOB_KEYS = ("resume", "output_dir", "inject")
MAY_CHANGE = (*JOB_KEYS, "timeout_s", "tensorboard", "checkpoint_every", "check_gradients")
ALIASES = {"cost_type": "cost"}  # other names of settings, on the command line and in files
HELD_OUT = 1000  # most rows that are held out unless eval_samples says how many
LONGEST_FILE = 1 << 16  # [bytes] of a settings file


@dataclass(frozen=True)
class Settings:
    """Every setting of `python -m ddp_bench.train_ddp`; the help text is in the metadata."""

    mode: str = option(
        "dynamic",
        "arm to train with, or compare: several arms, step by step",
        choices=(*ARMS, "compare"),
    )
    arms: str = option(
        ",".join(ARMS), "arms of compare, comma separated; NAME[@COST][@SOLVER] sets one arm's own"
    )
    dataset: str = option("sst2", "sst2 (hub), synthetic, or a local .tsv / .csv / .parquet")
    model: str = option("distilbert-base-uncased", "hub name, local folder, or small")
    train_samples: int = option(0, "training rows used; 0 = all", "[0, inf)")
    eval_samples: int = option(
        0,
        f"held-out rows, carved out of local files; 0 = a tenth of the rows, {HELD_OUT} at most",
        "[0, inf)",
    )
    synthetic_rows: int = option(12000, "rows of the synthetic corpus", "[1, inf)")
    synthetic_tail: float = option(
        1.0, "stretches the synthetic lengths beyond the 90th centile", "(0, inf)"
    )
    bad_rows: str = option(
        "error", "rows without a valid label or with broken columns", choices=("error", "skip")
    )
    max_length: int = option(256, "longest sequence [tokens]; longer ones are cut", "[3, inf)")
    pad_to_multiple_of: int = option(1, "padded lengths are multiples of this [tokens]", "[1, inf)")
    steps: int = option(300, "optimizer steps", "[1, inf)")
    warmup_steps: int = option(30, "steps of linear learning-rate warm-up", "[0, inf)")
    global_batch: int = option(32, "samples per optimizer step over all ranks", "[1, inf)")
    learning_rate: float = option(
        0.0, "AdamW; 0 = 5e-5 for given weights, 5e-4 for small", "[0, inf)"
    )
    weight_decay: float = option(0.01, "AdamW", "[0, inf)")
    max_grad_norm: float = option(
        1.0, "global gradient norm is clipped to this; 0 = off", "[0, inf)"
    )
    eval_every: int = option(100, "steps between evaluations; 0 = only at the end", "[0, inf)")
    checkpoint_every: int = option(0, "steps between checkpoints; 0 = none", "[0, inf)")
    seed: int = option(0, "data order, initial weights, dropout", "[0, 2147483647]")
    cost: str = option("fitted", "what the scheduler minimises the maximum of", choices=COSTS)
    solver: str = option("order_statistic", "solver of the dynamic arm", choices=SOLVERS)
    prefetch: int = option(
        0, "samples per rank in view of the dynamic arm; 0 = max(32, 2 B/G)", "[0, inf)"
    )
    max_age_steps: int = option(50, "most steps a sample waits where order may change", "[1, inf)")
    b_max: str = option("", "most samples per rank and micro-batch: N or N,N,...; empty = probe")
    capacity_margin: float = option(0.9, "share of the probed capacity that is used", "(0, 1]")
    micro_batch: int = option(
        0, "local batches are accumulated in pieces of this; 0 = whole", "[0, inf)"
    )
    sync: str = option(
        "after",
        "gradients are summed after backward (timed apart) or overlapping",
        choices=("after", "overlap"),
    )
    amp: str = option("auto", "mixed precision", choices=("auto", "none", "bf16", "fp16"))
    backend: str = option("auto", "nccl needs one GPU per rank", choices=("auto", "nccl", "gloo"))
    timeout_s: float = option(120.0, "a rank silent for this long ends the job [s]", "(0, 1000000]")
    output_dir: str = option("", "run folder; empty = outputs/ddp-<date>-<time>-<hex>")
    resume: str = option("", "run folder to continue")
    check_gradients: bool = option(False, "compare with one global batch before training")
    tensorboard: bool = option(True, "write TensorBoard events if it is installed")
    inject: str = option("", "fault drill KIND:RANK:STEP; KIND is kill, raise, oom or stall")

    def __post_init__(self) -> None:
        check_options(self)
        for spec in self.arm_specs():
            parse_arm(spec, self)
        fault = parse_fault(self.inject)
        if fault and fault[2] >= self.steps:
            raise ConfigError(f"inject is {self.inject!r}: allowed is a STEP below {self.steps}")

    def arm_specs(self) -> list[str]:
        """Arms this run trains, as written."""
        if self.mode != "compare":
            return [self.mode]
        specs = [spec.strip() for spec in self.arms.split(",") if spec.strip()]
        if not specs or len(set(specs)) != len(specs):
            raise ConfigError(f"arms is {self.arms!r}: allowed are distinct names, at least one")
        return specs


@dataclass(frozen=True)
class ArmSpec:
    """One arm: `label` as written, `name` of its rule, its cost type and count solver."""

    label: str
    name: str
    cost: str
    solver: str


def parse_arm(spec: str, settings: Settings) -> ArmSpec:
    """`NAME[@COST][@SOLVER]` -> ArmSpec; ConfigError names what is allowed."""
    name, *options = spec.split("@")
    cost, solver = settings.cost, settings.solver
    for choice in options:
        if choice in COSTS:
            cost = choice
        elif choice in SOLVERS:
            solver = choice
        else:
            allowed = ", ".join((*COSTS, *SOLVERS))
            raise ConfigError(f"arms: {spec!r}: {choice!r} after '@'; allowed {allowed}")
    if name not in ARMS:
        raise ConfigError(f"arms: {spec!r}: no such arm; allowed {', '.join(ARMS)}")
    return ArmSpec(spec, name, cost, solver)


def parse_fault(text: str) -> tuple[str, int, int] | None:
    """`KIND:RANK:STEP` -> (kind, rank, step), None for the empty string."""
    if not text:
        return None
    parts = text.split(":")
    kinds = ("kill", "raise", "oom", "stall")
    if len(parts) != 3 or parts[0] not in kinds or not all(p.isdigit() for p in parts[1:]):
        raise ConfigError(f"inject is {text!r}: allowed KIND:RANK:STEP with {', '.join(kinds)}")
    return parts[0], int(parts[1]), int(parts[2])


def parse_caps(text: str, ranks: int) -> list[int] | None:
    """`N` or `N,N,...` -> one cap per rank; None for the empty string."""
    if not text:
        return None
    parts = text.split(",")
    if len(parts) not in (1, ranks) or not all(p.strip().isdigit() and int(p) > 0 for p in parts):
        raise ConfigError(f"b_max is {text!r}: allowed is one integer >= 1, or {ranks} of them")
    return [int(p) for p in parts] * (ranks if len(parts) == 1 else 1)


def check_model(name: str) -> None:
    """ConfigError when `name` is written as a path and no such folder exists.

    What is no path may be a name on the hub, and a hub out of reach is answered by a small encoder.
    """
    if name.startswith(("/", ".", "~")) and not os.path.isdir(name):
        raise ConfigError(f"model {name!r}: no such folder; allowed small, a folder, a hub name")


def check_feasible(settings: Settings, ranks: int, caps: list[int] | None) -> None:
    """ConfigError when this many ranks, with these caps, cannot do what the settings say."""
    batch = settings.global_batch
    fault = parse_fault(settings.inject)
    if fault and fault[1] >= ranks:
        raise ConfigError(f"inject is {settings.inject!r}: allowed is a RANK below {ranks}")
    if batch < ranks:
        raise ConfigError(f"global_batch is {batch}: allowed >= {ranks}, one sample per rank")
    if caps is not None and sum(caps) < batch:
        raise ConfigError(f"b_max sums to {sum(caps)} over {ranks} ranks: allowed >= {batch}")
    for spec in settings.arm_specs():
        arm = parse_arm(spec, settings).name
        if arm == "static" and batch % ranks:
            raise ConfigError(f"global_batch is {batch}: allowed for static: multiples of {ranks}")
        if arm == "dynamic":
            view = prefetch_of(settings, ranks)
            held = sum(min(view, cap) for cap in caps or [batch] * ranks)
            if held < batch:
                raise ConfigError(
                    f"prefetch is {view}: with the memory caps {ranks} ranks see {held} samples; "
                    f"allowed: enough for global_batch {batch}"
                )


def held_out_of(settings: Settings, rows: int) -> int:
    """How many of `rows` rows are held out: as many as asked for, or a tenth, HELD_OUT at most."""
    return settings.eval_samples or max(1, min(HELD_OUT, rows // 10))


def prefetch_of(settings: Settings, ranks: int) -> int:
    """Samples in view of one rank of the dynamic arm (K)."""
    return settings.prefetch or max(32, 2 * -(-settings.global_batch // ranks))


def _parser() -> Parser:
    parser = Parser(prog="python -m ddp_bench.train_ddp", description=__doc__)
    parser.add_argument("--config", metavar="FILE.yaml", help="settings; flags given here win")
    parser.add_argument("--validate_only", action="store_true", help="check the settings and stop")
    parser.add_argument("--for_ranks", type=int, default=1, help="ranks to check them for")
    add_options(parser, Settings, ALIASES)
    return parser


def _from_yaml(path: str) -> dict:
    """Settings of a YAML file; ConfigError names the file and the key."""
    try:
        with open(path, "rb") as file:
            text = file.read(LONGEST_FILE + 1)
        if len(text) > LONGEST_FILE:
            raise ConfigError(f"{path}: longer than {LONGEST_FILE:,} bytes; allowed is less")
        _check_flat(text, path)
        content = yaml.safe_load(text)
    except ConfigError:
        raise
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, ValueError) as error:  # UnicodeDecodeError, numbers of 5,000 digits
        raise ConfigError(f"{path}: not valid YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: allowed is a mapping of settings")
    for alias in ALIASES.keys() & content.keys():
        if ALIASES[alias] in content:
            raise ConfigError(
                f"{path}: {alias} and {ALIASES[alias]} are the same setting; name one"
            )
        content[ALIASES[alias]] = content.pop(alias)
    return _typed(content, path)


def _check_flat(text: bytes, path: str) -> None:
    """ConfigError unless `text` is one mapping of plain values, each key once. It reads no further
    than the first fault and builds nothing, so that neither depth nor aliases cost anything."""
    depth, names, at_key = 0, set(), True
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        where = f"{path}: not valid YAML for settings: line {event.start_mark.line + 1}"
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > 1 or isinstance(event, yaml.AliasEvent):
            raise ConfigError(f"{where}: nested; allowed is one mapping of plain values")
        if depth == 1 and isinstance(event, yaml.ScalarEvent):
            if at_key and event.value in names:
                raise ConfigError(f"{where}: {event.value[:80]!r} stands there twice")
            names |= {event.value} if at_key else set()
            at_key = not at_key


def _typed(content: dict, path: str) -> dict:
    """`content` if its keys are settings and its values of their types; ConfigError if not."""
    hints = typing.get_type_hints(Settings)
    for key, value in content.items():
        if key not in hints:
            raise ConfigError(f"{path}: unknown key {key!r}: allowed {', '.join(hints)}")
        kind = hints[key]
        if kind is float and type(value) in (int, str):  # YAML 1.1 reads 5e-5 as text
            with contextlib.suppress(ValueError, OverflowError):
                content[key] = value = float(value)
        if type(value) is not kind:
            raise ConfigError(f"{path}: {key} is {value!r}: allowed is a value of {kind.__name__}")
    return content


def recorded_settings(folder: str) -> tuple[dict, int]:
    """(settings, ranks) of the run in `folder`, as its run.json has them.

    Raises:
        ConfigError: when there is no such run, or it was made with other settings than there are.
    """
    try:
        run = load(folder).run
    except RecordError as error:
        raise ConfigError(f"resume: {error}") from None
    recorded = dict(run["config"])
    ranks = recorded.pop("ranks", None)
    if run["kind"] != "ddp" or type(ranks) is not int:
        raise ConfigError(f"resume: {folder}/run.json: not a run of this trainer; allowed is one")
    return _typed(recorded, f"{folder}/run.json"), ranks


def _resumed(given: dict) -> dict:
    """Settings of the run that goes on; ConfigError when `given` ones differ from them."""
    folder = given["resume"]
    recorded = recorded_settings(folder)[0]
    if Path(given.get("output_dir") or folder).resolve() != Path(folder).resolve():
        raise ConfigError(f"output_dir is {given['output_dir']!r}: allowed with resume is {folder}")
    for name in set(given) & set(recorded) - set(MAY_CHANGE):
        if given[name] != recorded[name]:
            raise ConfigError(f"{name} is {given[name]!r}: allowed to resume is {recorded[name]!r}")
    return {name: value for name, value in recorded.items() if name not in JOB_KEYS} | given


def check_ranks(settings: Settings, ranks: int) -> None:
    """ConfigError when the run to resume has another number of ranks."""
    if settings.resume and (before := recorded_settings(settings.resume)[1]) != ranks:
        raise ConfigError(f"{ranks} ranks: allowed to resume {settings.resume} are {before}")


def parse_settings(argv: list[str] | None = None) -> tuple[Settings, int]:
    """(settings, ranks to check them for or 0) from the command line; defaults < YAML < flags.

    With --resume the settings are those of the run that goes on, and others are refused.

    Raises:
        ConfigError: naming the file or flag, the key and what is allowed.
    """
    given = vars(_parser().parse_args(argv))
    path, check_for = given.pop("config"), given.pop("for_ranks")
    check_for = check_for if given.pop("validate_only") else 0
    values = _from_yaml(path) if path else {}
    values |= {key: value for key, value in given.items() if value is not None}
    try:
        return Settings(**_resumed(values) if values.get("resume") else values), check_for
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}" if path else str(error)) from None
