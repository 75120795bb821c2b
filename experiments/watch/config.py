"""What is watched, and what a change of plan sets off."""

from __future__ import annotations

import dataclasses
import shlex
import shutil

from experiments.respond import RespondConfig
from jaxsim.files import InputError, check_fields

PORTS = ("listen", "metrics")
MOST_S = 1e9


@dataclasses.dataclass(frozen=True)
class WatchConfig(RespondConfig):
    """A process that follows measurements and says when the plan should change.

    Attributes:
        scheduler: a name or a checkpoint; hi_ppo = the one that ships. Its upper level is asked at
            every measurement
        cluster: cluster file; the embedded four-region cluster if none is given
        model: preset or YAML file
        global_batch: sequences per training step
        seq: tokens per sequence
        table_size: plans in the table at most
        layout_limit: layouts of domains that are searched at most for the table
        efficiency: what a token is worth where replicas talk seldom: published, none, a number up to
            1, or a CSV file of parameters
        allow: plans of the table: synchronous, or any (local SGD, fewer bits, streaming as well)
        running: file with the plan that runs already, as hippo plan --json, respond or watch tells it;
            the scheduler's first choice if none is given. What a state file says comes first
        interval_s: seconds after which the scheduler's memory moves on by one interval
        folder: folder whose files hold the measurements, each read once, in the order of their names;
            standard input if neither this nor listen is given
        listen: port of 127.0.0.1 that takes measurements, 0 = any that is free
        state: file that outlives the process: plan, memory and links; written at every change
        apply: command that puts a new plan into force; the path of the plan file is its last argument
        plan_file: file of the newest plan for apply; one in a temporary folder if none is given
        apply_timeout_s: seconds after which the command is killed, and the plan of before stays
        stale_s: seconds of silence after which a link's last value is said to be stale
        metrics: port of 127.0.0.1 that answers Prometheus, 0 = any that is free
        seconds: seconds after which the process ends; never if none is given
    """

    folder: str | None = None
    listen: int | None = None
    state: str | None = None
    apply: str | None = None
    plan_file: str | None = None
    apply_timeout_s: float = 600.0
    stale_s: float = 300.0
    metrics: int | None = None
    seconds: float | None = None

    def __post_init__(self):
        super().__post_init__()
        for name in PORTS:
            allowed = "a port >= 0 and <= 65,535"
            check_fields(self, (name,), allowed, lambda x: x is None or 0 <= x <= 65535)
        times = ("apply_timeout_s", "stale_s", "seconds")
        check_fields(self, times, "a number > 0 and <= 1e9", lambda x: x is None or 0 < x <= MOST_S)
        if self.folder is not None and self.listen is not None:
            raise InputError("folder, listen: both are given; expected one of them")
        if self.plan_file is not None and self.apply is None:
            raise InputError("plan_file: is written for --apply; expected both")
        if self.apply is not None and not self._words():
            raise InputError("apply: expected a command, got nothing")

    def _words(self) -> list[str]:
        try:
            return shlex.split(self.apply or "")
        except ValueError as error:
            raise InputError(f"apply: {error}: {self.apply!r}") from None

    @property
    def command(self) -> list[str] | None:
        """The words of `apply`. Raises InputError where its program is not there."""
        if self.apply is None:
            return None
        words = self._words()
        if shutil.which(words[0]) is None:
            raise InputError(f"apply: {words[0]}: no such program")
        return words

    @property
    def service(self) -> RespondConfig:
        """The part that makes the scheduler a service."""
        names = (field.name for field in dataclasses.fields(RespondConfig))
        return RespondConfig(**{name: getattr(self, name) for name in names})
