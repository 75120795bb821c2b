"""Playing whole episodes, and what they come to.

metrics  What an episode comes to, in the units of the reports
rollout  Playing whole episodes: one scheduler, one scenario, everything recorded
"""

from agents.episodes.metrics import EpisodeMetrics, episode_metrics, step_metrics, traffic_metrics
from agents.episodes.rollout import Episode, play

__all__ = [
    "Episode",
    "EpisodeMetrics",
    "episode_metrics",
    "play",
    "step_metrics",
    "traffic_metrics",
]
