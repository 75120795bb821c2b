"""HALoS: regions train on their own, and a global server merges what their servers have gathered.

Kim et al., "HALoS: Hierarchical Asynchronous Local SGD over Slow Networks for Geo-Distributed Large
Language Model Training", ICML 2025 (arXiv 2506.04531): the workers of a region update its local server
asynchronously; after a number of such updates the local server sends what has gathered to the global
one, which merges it with momentum and returns its model. Nobody waits for the WAN.

Here each domain is a region with its own best plan inside, as for DiLoCo; in 32 bits, a merge every 16,
32 or 64 steps (our choice, the best at base). Left out: asynchrony, which a plan has no field for. The
merge is a ring that all wait for. Its bytes are those of a push and a pull from every region; the time
is an upper bound, larger than HALoS' own by the share that the merge has of a step. What a step is
worth is that of local SGD at the same period: staleness is not charged.
"""

from __future__ import annotations

import functools

from agents.planners.diloco import propose
from jaxsim.plan import Recompute, Schedule
from jaxsim.planning import PlanRules

PERIODS, BITS = (16, 32, 64), (32,)

RULES = PlanRules(
    functools.partial(propose, periods=PERIODS, bits=BITS),
    (Recompute.NONE, Recompute.FULL),
    (Schedule.ONE_F_ONE_B, Schedule.EAGER_1F1B),
)
