"""What a token is worth when replicas talk seldom, in few bits or late.

published  the published model of local SGD, and factors of what else changes what a step learns
worth      the setting `efficiency`: published, none, a number or a file; bands and draws
"""

from jaxsim.learning.published import LEAST_PERIOD, TWO_SIDED_95, Published
from jaxsim.learning.worth import (
    Band,
    Communication,
    TokenEfficiency,
    best_batch_tokens,
    lower_end,
    published_efficiency,
    read_efficiency,
)

__all__ = [
    "LEAST_PERIOD",
    "TWO_SIDED_95",
    "Band",
    "Communication",
    "Published",
    "TokenEfficiency",
    "best_batch_tokens",
    "lower_end",
    "published_efficiency",
    "read_efficiency",
]
