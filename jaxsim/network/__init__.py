"""How WAN links move: drawn, replayed, fitted, predicted.

process       draws bandwidth and round trip of every link, interval by interval
noise         random numbers that belong to (key, time, link)
trace         trace CSV files
replay        measured paths -> a trace of a cluster's links
series        measured paths as series around their medians
fitting       fits of the processes to such series
fitted_links  files of fitted processes
checks        fitted processes against records they were not fitted to
predictors    predict a link's next bandwidth from its last measurements
prediction    errors of predictors on paths they were not fitted to
"""

from jaxsim.network.checks import (
    COPIES,
    LIMITS,
    REVERSED,
    STATISTICS,
    Check,
    best_kind,
    ceiling,
    check_crossed,
    check_later,
    check_others,
    own_rows,
    pooled_autocorrelation,
    random_halves,
    replicate,
)
from jaxsim.network.fitted_links import (
    FITTED_KINDS,
    KINDS,
    FittedLink,
    LinkProcesses,
    draw_links,
    fitted_links,
    is_file_name,
    load_link_processes,
    process_of_links,
)
from jaxsim.network.fitting import PathFit, combine, fit_path
from jaxsim.network.noise import (
    domain_uniforms,
    interval_key,
    interval_uniforms,
    link_uniforms,
)
from jaxsim.network.prediction import (
    REFERENCE,
    WINDOW,
    best_predictor,
    folds_of,
    held_out_errors,
    summarise_errors,
)
from jaxsim.network.process import (
    NetworkProcess,
    NetworkState,
    init_network,
    network_process,
    step_network,
    stretched,
)
from jaxsim.network.replay import WIDE, build_trace, read_measurements, relative_movement, summarise
from jaxsim.network.series import Series, read_series
from jaxsim.network.trace import check_span, read_network_trace

__all__ = [
    "COPIES",
    "FITTED_KINDS",
    "KINDS",
    "LIMITS",
    "REFERENCE",
    "REVERSED",
    "STATISTICS",
    "WIDE",
    "WINDOW",
    "Check",
    "FittedLink",
    "LinkProcesses",
    "NetworkProcess",
    "NetworkState",
    "PathFit",
    "Series",
    "best_kind",
    "best_predictor",
    "build_trace",
    "ceiling",
    "check_crossed",
    "check_later",
    "check_others",
    "check_span",
    "combine",
    "domain_uniforms",
    "draw_links",
    "fit_path",
    "fitted_links",
    "folds_of",
    "held_out_errors",
    "init_network",
    "interval_key",
    "interval_uniforms",
    "is_file_name",
    "link_uniforms",
    "load_link_processes",
    "network_process",
    "own_rows",
    "pooled_autocorrelation",
    "process_of_links",
    "random_halves",
    "read_measurements",
    "read_network_trace",
    "read_series",
    "relative_movement",
    "replicate",
    "step_network",
    "stretched",
    "summarise",
    "summarise_errors",
]
