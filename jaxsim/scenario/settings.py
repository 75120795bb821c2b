"""How worlds are drawn: the settings alone, without JAX, so that command lines are read quickly."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from jaxsim.files import check_counts, check_fields

# The largest settings: what is computed from them must stay finite in float32.
LARGEST = 1e9
MOST = {
    "uniform": 10.0,
    "base_spread": 10.0,
    "latency": 1.0,
    "load_share": 1.0,
    "load_swing": 10.0,
    "load_job_share": 1.0,
}
MOST_MOVEMENT = 10.0
MOST_INTERVALS = 1_000_000  # of an episode: two years of minutes
PLAIN_JITTERS = ("uniform", "ou", "none")
JITTERS = ("uniform", "ou", "regime", "heavy", "outage", "none")
TOKEN_WORTHS = ("drawn", "lower_end")
FILE_NAME = re.compile(r"\.ya?ml(:\w+)?$")  # of link processes, or of one kind of them


@dataclasses.dataclass(frozen=True)
class ScenarioSettings:
    """How the world of a seed is drawn.

    Attributes:
        jitter: ou = drift plus white noise, uniform = white noise alone, none = steady links;
            regime, heavy, outage = as measured paths move, each link as one of them; or a file of
            `hippo network fit`, FILE.yaml or FILE.yaml:KIND
        uniform: amplitude of the uniform jitter (0.3 = +-30 %, the setting of the KPIs)
        white: range of the white noise beside the drift
        ou_sigma: range of the drift's standard deviation
        ou_tau: range of the drift's correlation time [intervals], drawn log-uniformly
        movement: range of how far links move around their base, drawn log-uniformly for each scenario:
            1 as the jitter or the trace says, 2 twice as far (see `jaxsim.network.stretched`)
        base_spread: standard deviation of the log of each link's base around the cluster file's
        latency: uniform amplitude of the round-trip time, unless it was fitted as well
        load_share: mean share of the GPUs held by local jobs
        load_swing: uniform relative movement of that share
        load_job_share: mean size of a local job as a share of its domain's GPUs: jobs come, stay and
            go, and ask for load_share on average; 0 = the share is held as it is
        load_stay: mean stay of such a job [intervals]
        token_worth: what a token is worth where replicas talk seldom: drawn from its band for each
            scenario, or the band's lower_end in all
        interval_s: decision interval [s]
        horizon: decision intervals per episode
    """

    jitter: str = "ou"
    uniform: float = 0.3
    white: tuple[float, float] = (0.0, 0.15)
    ou_sigma: tuple[float, float] = (0.15, 0.45)
    ou_tau: tuple[float, float] = (10.0, 500.0)
    movement: tuple[float, float] = (1.0, 1.0)
    base_spread: float = 0.0
    latency: float = 0.1
    load_share: float = 0.0
    load_swing: float = 0.0
    load_job_share: float = 0.0
    load_stay: float = 20.0
    token_worth: str = "drawn"
    interval_s: float = 60.0
    horizon: int = 128

    def __post_init__(self):
        if self.jitter not in JITTERS and not FILE_NAME.search(self.jitter):
            known = ", ".join(JITTERS)
            raise ValueError(f"jitter: expected {known} or FILE.yaml, got {self.jitter!r}")
        if self.token_worth not in TOKEN_WORTHS:
            known = " or ".join(TOKEN_WORTHS)
            raise ValueError(f"token_worth: expected {known}, got {self.token_worth!r}")
        for name in ("white", "ou_sigma", "ou_tau"):
            low, high = getattr(self, name)
            if not 0 <= low <= high <= LARGEST:
                allowed = f"0 <= low <= high <= {LARGEST:g}"
                raise ValueError(f"{name}: expected {allowed}, got {low}, {high}")
        for name, most in MOST.items():
            allowed = f"a number from 0 to {most:g}"
            check_fields(self, (name,), allowed, lambda x, most=most: 0 <= x <= most)
        low, high = self.movement
        if not 0 < low <= high <= MOST_MOVEMENT:
            allowed = f"0 < low <= high <= {MOST_MOVEMENT:g}"
            raise ValueError(f"movement: expected {allowed}, got {low}, {high}")
        allowed = f"a number > 0 and <= {LARGEST:g}"
        check_fields(self, ("interval_s",), allowed, lambda x: 0 < x <= LARGEST)
        check_fields(self, ("load_stay",), "a number from 1 to 10,000", lambda x: 1 <= x <= 1e4)
        check_counts(self, {"horizon": MOST_INTERVALS})

    def links(self) -> tuple[Any, ...] | None:
        """Measured paths (`jaxsim.network.FittedLink`) that the links move like; None where the
        settings alone say how.

        Raises InputError for a file that cannot be used.
        """
        from jaxsim.network import fitted_links

        return None if self.jitter in PLAIN_JITTERS else fitted_links(self.jitter)
