"""Spot GPUs: cheaper than others, and taken away at times."""

from __future__ import annotations

import dataclasses
from typing import Any

from jaxsim.files import values

HOURS_PER_DAY = 24.0
MOST_A_DAY = 24 * 60  # reclaims; more often than once a minute nothing can train


@dataclasses.dataclass(frozen=True)
class SpotOffer:
    """What a domain's GPUs cost on the spot market, and how often all of them are taken away."""

    usd_per_gpu_hour: float
    reclaims_per_day: float  # of a day in which they are there
    away_minutes: float  # from a reclaim until they are back, in the mean

    @property
    def reclaims_per_s(self) -> float:
        return self.reclaims_per_day / (HOURS_PER_DAY * 3600.0)

    @property
    def away_s(self) -> float:
        return 60.0 * self.away_minutes

    def there(self, times: float = 1.0) -> float:
        """Share of the time in which the GPUs are there, where reclaims come `times` as often: what a
        renewal process is up in the mean over what a cycle of it takes."""
        return 1.0 / (1.0 + times * self.reclaims_per_s * self.away_s)

    def body(self) -> dict[str, float]:
        """The mapping of a cluster file."""
        return dataclasses.asdict(self)


def parse_spot(value: Any, where: str) -> SpotOffer | None:
    """The offer of a domain of a cluster file; None where there is none. Raises InputError."""
    if value is None:
        return None
    body = values.mapping(value, where, [field.name for field in dataclasses.fields(SpotOffer)])
    return SpotOffer(
        values.number(body["usd_per_gpu_hour"], f"{where}.usd_per_gpu_hour"),
        values.number(body["reclaims_per_day"], f"{where}.reclaims_per_day", 0.0, MOST_A_DAY),
        values.number(body["away_minutes"], f"{where}.away_minutes"),
    )
