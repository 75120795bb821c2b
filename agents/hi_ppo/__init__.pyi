from .checkpoint import (
    FILE_NAME,
    Checkpoint,
    load_checkpoint,
    load_shipped,
    load_trained,
    networks_of,
    policies,
    restore,
    save_checkpoint,
    schedulers,
)
from .features import (
    Reference,
    Statistics,
    init_statistics,
    layer_shares,
    make_reference,
    move_features,
    reference_of,
    row_features,
    update_statistics,
)
from .filter import ViewFilter, expected_view, init_filter, update_filter
from .forecast import forecasts_along
from .lower import allowed_choices, balanced_on
from .networks import GraphInputs, UpperNetwork, upper_network
from .scheduler import HiPPO, PolicyParams, decide_lower, init_policy, measure, score_upper
from .search import GuidedSearch
from .settings import ENCODERS, ExactSettings, Networks, TrainSettings, check_sizes
from .training import EpochMetrics, Trainer, make_tape

__all__ = [
    "ENCODERS",
    "FILE_NAME",
    "Checkpoint",
    "EpochMetrics",
    "ExactSettings",
    "GraphInputs",
    "GuidedSearch",
    "HiPPO",
    "Networks",
    "PolicyParams",
    "Reference",
    "Statistics",
    "TrainSettings",
    "Trainer",
    "UpperNetwork",
    "ViewFilter",
    "allowed_choices",
    "balanced_on",
    "check_sizes",
    "decide_lower",
    "expected_view",
    "forecasts_along",
    "init_filter",
    "init_policy",
    "init_statistics",
    "layer_shares",
    "load_checkpoint",
    "load_shipped",
    "load_trained",
    "make_reference",
    "make_tape",
    "measure",
    "move_features",
    "networks_of",
    "policies",
    "reference_of",
    "restore",
    "row_features",
    "save_checkpoint",
    "schedulers",
    "score_upper",
    "update_filter",
    "update_statistics",
    "upper_network",
]
