from .adapt import Rules, adapt_on_rank, decide
from .layout import Impossible, Layout, check_layout, layouts_of, parse_layout
from .move import digest, moved, transfer
from .pieces import profile_on_rank
from .schedule import Played, play
from .score import Need, Profile, Score, ranked, score, terms_of, top1_gap
from .settings import ROOM, Case, LayoutsSettings
from .trainer import Task, Trainer

__all__ = [
    "ROOM",
    "Case",
    "Impossible",
    "Layout",
    "LayoutsSettings",
    "Need",
    "Played",
    "Profile",
    "Rules",
    "Score",
    "Task",
    "Trainer",
    "adapt_on_rank",
    "check_layout",
    "decide",
    "digest",
    "layouts_of",
    "moved",
    "parse_layout",
    "play",
    "profile_on_rank",
    "ranked",
    "score",
    "terms_of",
    "top1_gap",
    "transfer",
]
